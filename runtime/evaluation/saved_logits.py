"""A model's predictions of a text in a file, to compare other models with later.

A safetensors file of these tensors, for windows of `context` tokens, n of them, of which s are scored as
second half (`evaluate`):

    nll     F64 [n, context - 1]   negative log-likelihoods of tokens 1 … context - 1
    ids     I32 [n, context]       the windows
    scales  F32 [n, s, 2]          of each row: least log probability, and the step from code to code
    codes   U16 [n, s, vocab]      log probability = least + code · step

and of metadata: `format`, and whatever else the writer was given. Log probabilities that are more than 32
below their row's largest (probabilities below 10⁻¹⁴) count as 32 below, so a step is 0.0005 at most.
llama.cpp's files of this kind hold the same tokens with 16 instead of 32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from ...quant.errors import DamagedFile
from ...quant.mapped_file import MappedFile
from ..cpu.row_scores import LogSums

FORMAT = "kukri-logits-1"
RANGE = 32.0  # in nats
LARGEST_CODE = 65535
BLOCK = 1 << 20  # logits encoded or decoded at a time
DTYPES = {"I32": np.int32, "F64": np.float64, "F32": np.float32, "U16": np.uint16}


def saved_bytes(n: int, context: int, vocab_size: int) -> int:
    """The size of a file, but for its header."""
    return sum(_n_bytes(*what) for what in _tensors(n, context, vocab_size).values())


def _tensors(n: int, context: int, vocab_size: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes, in the order in which they lie in the file."""
    scored = context - 1 - context // 2
    return {
        "nll": ("F64", (n, context - 1)),
        "ids": ("I32", (n, context)),
        "scales": ("F32", (n, scored, 2)),
        "codes": ("U16", (n, scored, vocab_size)),
    }


def _n_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=object)) * np.dtype(DTYPES[dtype]).itemsize


class LogitsWriter:
    """Writes a file row by row; it gets its name once it is whole. A context manager.

    `windows` are int32 [n, context]. Raises OSError.
    """

    def __init__(self, path: Path, windows: np.ndarray, vocab_size: int, metadata: Mapping[str, str]) -> None:
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
        self._windows = windows
        self._scales: list[np.ndarray] = []
        n, context = windows.shape
        self._tensors = _tensors(n, context, vocab_size)
        self._header = _header(self._tensors, {"format": FORMAT, **metadata})
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._file = self._unfinished.open("wb")
        self._file.write(self._header)
        before = (what for name, what in self._tensors.items() if name != "codes")
        self._file.seek(sum(_n_bytes(*what) for what in before), os.SEEK_CUR)
        return self

    def add(self, logits: np.ndarray, sums: LogSums) -> None:
        """The next rows of the second half, float32 [rows, vocab] with their sums."""
        assert self._file is not None
        step = max(1, BLOCK // logits.shape[1])
        for start in range(0, len(logits), step):
            rows = logits[start : start + step]
            log_sum = sums.log_sum[start : start + step, None]
            top = rows.max(axis=1, keepdims=True)
            low = np.maximum(rows.min(axis=1, keepdims=True), top - np.float32(RANGE))
            width = (top - low) / np.float32(LARGEST_CODE)
            codes = (np.maximum(rows, low) - low) * np.where(width > 0, 1 / np.where(width > 0, width, 1), 0)
            self._file.write(np.minimum(np.rint(codes), LARGEST_CODE).astype("<u2").data)
            self._scales.append(np.concatenate([low - log_sum, width], axis=1).astype("<f4"))

    def finish(self, nll: np.ndarray) -> None:
        """Complete the file with the scores, float64 [n, context - 1], and give it its name."""
        assert self._file is not None
        self._file.seek(len(self._header))
        self._file.write(nll.astype("<f8").tobytes())
        self._file.write(self._windows.astype("<i4").tobytes())
        self._file.write(np.concatenate(self._scales).tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._unfinished.replace(self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._unfinished.unlink(missing_ok=True)


def _header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Of a safetensors file."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + _n_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class SavedLogits:
    """An open file, mapped into memory: rows are read when they are asked for.

    `windows` int32 [n, context], `nll` float64 [n, context - 1]; `metadata` as it was given.
    Raises OSError, or DamagedFile for a file that is no such one or is not whole.
    """

    def __init__(self, path: Path) -> None:
        file = MappedFile(path)
        arrays, metadata = _read(file)
        self.metadata = metadata
        self.windows = arrays["ids"]
        self.nll = arrays["nll"]
        self.vocab_size = arrays["codes"].shape[2]
        self._scales, self._codes = arrays["scales"], arrays["codes"]
        self._file = file

    def rows(self, window: int) -> Iterator[np.ndarray]:
        """Log probabilities of a window's second half, float32 [rows, vocab] in parts, each valid until the
        next."""
        codes, scales = self._codes[window], self._scales[window]
        step = min(len(codes), max(1, BLOCK // self.vocab_size))
        decoded = np.empty((step, self.vocab_size), np.float32)
        for start in range(0, len(codes), step):
            part = decoded[: len(codes) - start]
            low, width = scales[start : start + step, :1], scales[start : start + step, 1:]
            np.multiply(codes[start : start + step], width, out=part)
            part += low
            yield part
        self._file.release(codes)


def is_saved_logits(path: Path) -> bool:
    """Whether a file looks like one of these, from its beginning."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return f'"format": "{FORMAT}"'.encode() in file.read(4096)
    except OSError:
        return False


def _read(file: MappedFile) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    name = file.path.name
    try:
        with safe_open(file.path, "np") as opened:
            metadata = opened.metadata() or {}
    except SafetensorError as error:
        raise DamagedFile(f"{name}: {' '.join(str(error).split())}") from None
    if metadata.get("format") != FORMAT:
        raise DamagedFile(f"{name}: is not a file of saved logits")
    start = 8 + int.from_bytes(file.buffer[:8], "little")
    header = json.loads(file.buffer[8:start])
    try:
        n, context = header["ids"]["shape"]
        vocab_size = header["codes"]["shape"][2]
        tensors = _tensors(n, context, vocab_size)
        if min(n, context - 3, vocab_size) < 1:
            raise ValueError
        arrays = {}
        for tensor, (dtype, shape) in tensors.items():
            if (header[tensor]["dtype"], tuple(header[tensor]["shape"])) != (dtype, shape):
                raise ValueError
            first, last = (start + offset for offset in header[tensor]["data_offsets"])
            arrays[tensor] = (
                file.bytes[first:last].view(np.dtype(DTYPES[dtype]).newbyteorder("<")).reshape(shape)
            )
    except (KeyError, ValueError, TypeError, IndexError):
        raise DamagedFile(f"{name}: its tensors are not those of saved logits") from None
    return arrays, metadata
