"""Saved logits: a file with a baseline's predictions of a text, for comparing other models with it later.

It is a safetensors file. For n windows of `context` tokens, of which s are scored as the second half
(`scores.evaluate`), its tensors are:

    nll     F64 [n, context - 1]   negative log-likelihoods of tokens 1 … context - 1
    ids     I32 [n, context]       the windows
    scales  F32 [n, s, 2]          of each row: smallest log probability, and step between codes
    codes   U16 [n, s, vocab]      log probability = smallest + code · step

Its metadata are `format` and the entries that the writer was given. Log probabilities more than 32 below the
largest of their row (probabilities below 10⁻¹⁴) are clipped there, so the step is at most 0.0005. llama.cpp's
files for `--kl-divergence-base` quantise the same rows with a range of 16 instead of 32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ...quant.checkpoint.safetensors_header import read_header
from ...quant.errors import DamagedFile
from ...quant.mapped_file import MappedFile
from ...quant.safe_files import NewFile
from ...untrusted import open_file
from ..cpu.row_scores import LogSums

FORMAT = "kukri-logits-1"
RANGE = 32.0  # nats from the largest to the smallest log probability of a row
LARGEST_CODE = 65535
BLOCK = 1 << 20  # logits encoded or decoded at a time
DTYPES = {"I32": np.int32, "F64": np.float64, "F32": np.float32, "U16": np.uint16}


def saved_bytes(n: int, context: int, vocab_size: int) -> int:
    """The size in bytes of a file of n windows, without its header."""
    return sum(_n_bytes(*entry) for entry in _tensors(n, context, vocab_size).values())


def _tensors(n: int, context: int, vocab_size: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each tensor, in file order."""
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
    """A context manager that writes a file row by row, and gives it its name `path` when it is complete.

    `windows` is the text, int32 [n, context]. Raises OSError: see `safe_files.NewFile`.
    """

    def __init__(self, path: Path, windows: np.ndarray, vocab_size: int, metadata: Mapping[str, str]) -> None:
        self._path = path
        self._windows = windows
        self._scales: list[np.ndarray] = []
        n, context = windows.shape
        self._tensors = _tensors(n, context, vocab_size)
        self._header = _header(self._tensors, {"format": FORMAT, **metadata})
        self._new: NewFile | None = None

    def __enter__(self) -> Self:
        self._new = NewFile(self._path)
        try:
            self._new.file.write(self._header)
            before_codes = (entry for name, entry in self._tensors.items() if name != "codes")
            self._new.file.seek(sum(_n_bytes(*entry) for entry in before_codes), os.SEEK_CUR)
        except BaseException:
            self._new.discard()
            raise
        return self

    def add(self, logits: np.ndarray, sums: LogSums) -> None:
        """Write the next rows of the second half: float32 logits [rows, vocab] with their log sums."""
        assert self._new is not None
        step = max(1, BLOCK // logits.shape[1])
        for start in range(0, len(logits), step):
            rows = logits[start : start + step]
            log_sum = sums.log_sum[start : start + step, None]
            top = rows.max(axis=1, keepdims=True)
            low = np.maximum(rows.min(axis=1, keepdims=True), top - np.float32(RANGE))
            width = (top - low) / np.float32(LARGEST_CODE)
            codes = (np.maximum(rows, low) - low) * np.where(width > 0, 1 / np.where(width > 0, width, 1), 0)
            self._new.file.write(np.minimum(np.rint(codes), LARGEST_CODE).astype("<u2").data)
            self._scales.append(np.concatenate([low - log_sum, width], axis=1).astype("<f4"))

    def finish(self, nll: np.ndarray) -> None:
        """Complete the file with `nll`, float64 [n, context - 1], and give it its name."""
        assert self._new is not None
        file = self._new.file
        file.seek(len(self._header))
        file.write(nll.astype("<f8").tobytes())
        file.write(self._windows.astype("<i4").tobytes())
        file.write(np.concatenate(self._scales).tobytes())
        self._new.commit()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._new is not None:
            self._new.discard(error)


def _header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The header of a safetensors file with these tensors and metadata."""
    # A file name may hold bytes that are not UTF-8, as lone surrogates, and readers of JSON refuse those.
    entries = {key: text.encode("utf-8", "replace").decode() for key, text in metadata.items()}
    header: dict[str, object] = {"__metadata__": entries}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + _n_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class SavedLogits:
    """An open file of saved logits, memory-mapped.

    `windows` int32 [n, context], `nll` float64 [n, context - 1], `metadata` as the writer was given it.
    Raises OSError, or DamagedFile for a file that is incomplete or of another kind.
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
        """Yields the log probabilities of a window's second half in parts, float32 [rows, vocab].

        A part is valid until the next is yielded.
        """
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
    """Whether a file begins like a file of saved logits; False if it cannot be read."""
    try:
        with open_file(path, DamagedFile) as file:
            return f'"format": "{FORMAT}"'.encode() in file.read(4096)
    except (OSError, DamagedFile):
        return False


def _read(file: MappedFile) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors, as views of the file, and the metadata. Raises DamagedFile."""
    name = file.path.name
    found = read_header(file)
    metadata, header, start = found.metadata, found.entries, found.data_start
    if metadata.get("format") != FORMAT:
        raise DamagedFile(f"{name}: is not a file of saved logits")
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
