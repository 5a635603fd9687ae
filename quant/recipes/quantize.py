"""Writing a quantised GGUF file from a plan: tensors are read, checked, encoded and written chunk by
chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..block import QTensor
from ..errors import DamagedFile, NonFinite
from ..formats import FORMATS
from ..gguf.gathered import CHUNK_WEIGHTS, GatheredTensor
from ..gguf.writer import TensorRecord, write_gguf
from ..rounding.encode import encode_tensor, holds
from .recipes import PlannedTensor
from .tensor_scales import factors_of, scale_record, without_factor

# (planned tensor, number of the first row, rows) → uint8 [rows, row_bytes] in the planned format
Encoder = Callable[[PlannedTensor, int, QTensor], np.ndarray]


@dataclass(frozen=True)
class QuantizedFile:
    """The size of a written file."""

    n_bytes: int
    n_weights: int
    n_tensor_bytes: int  # without metadata and padding

    @property
    def bits_per_weight(self) -> float:
        return self.n_tensor_bytes * 8 / max(1, self.n_weights)


def uncalibrated_encoder(threads: int | None = None, zero_nonfinite: bool = False) -> Encoder:
    """An encoder without importance; see `encode_tensor`."""
    return lambda planned, start, rows: encode_tensor(
        rows, planned.format, threads=threads, zero_nonfinite=zero_nonfinite
    )


def write_quantized(
    path: Path,
    metadata: Mapping[str, Any],
    types: Mapping[str, int],
    plan: Sequence[PlannedTensor],
    encode: Encoder,
    release: Callable[[QTensor], None],
    progress: Callable[[int], None],
) -> QuantizedFile:
    """Write the planned tensors to the file `path`; `metadata` and `types` are as for `write_gguf`.

    - `encode` encodes the rows of a chunk; it copies tensors that keep their format.
    - `release` is called with rows of the source that are not needed any more, which may be copies.
    - `progress` is called after each chunk with the number of source bytes that are done.

    Raises DamagedFile, which names the tensor, for a weight that is NaN or infinite, and what `write_gguf`
    raises.
    """
    done, factors = 0, dict[str, np.ndarray]()  # of tensors in NVFP4, until they are written

    def pieces(planned: PlannedTensor) -> Iterator[np.ndarray]:
        nonlocal done
        tensor = planned.tensor
        before, start = done, 0
        if planned.format is FORMATS["NVFP4"]:
            factors[planned.name] = factors_of(planned, release)
        for rows in tensor.chunks():
            if planned.name in factors:
                rows = without_factor(rows, factors[planned.name][start // tensor.matrix_rows])
            try:
                yield encode(planned, start, rows)
            except NonFinite:
                raise nonfinite(planned.name) from None
            release(rows)
            start += len(rows.data)
            done = before + tensor.n_source_bytes * start // max(1, tensor.n_rows)
            progress(done)

    def scales(planned: PlannedTensor) -> Iterator[np.ndarray]:
        yield factors.pop(planned.name)

    records, data = list[TensorRecord](), list[Iterator[np.ndarray]]()
    for planned in plan:
        records.append(planned.record)
        data.append(pieces(planned))
        if (record := scale_record(planned)) is not None:
            records.append(record)
            data.append(scales(planned))
    n_bytes = write_gguf(path, metadata, types, records, data)
    n_tensor_bytes = sum(record.n_bytes for record in records)
    return QuantizedFile(n_bytes, sum(planned.tensor.n_weights for planned in plan), n_tensor_bytes)


def check_plan(
    plan: Iterable[PlannedTensor], zero_nonfinite: bool, release: Callable[[QTensor], None]
) -> list[PlannedTensor]:
    """The plan with BF16 or F32 for tensors whose largest weight is beyond the range of the planned format.

    Raises DamagedFile, which names the tensor, for a weight that is NaN or infinite, unless `zero_nonfinite`
    is set. Only float tensors are checked; the encoder checks quantised ones.
    """
    checked = []
    for planned in plan:
        floats = all(part.format.is_float for part in planned.tensor.parts)
        if floats and planned.format is not FORMATS["F32"]:
            largest = peak(planned.tensor, zero_nonfinite, release)
            if not np.isfinite(largest):
                raise nonfinite(planned.name)
            if not holds(planned.format, largest):
                wider = FORMATS["BF16" if planned.tensor.format.name == "BF16" else "F32"]
                note = f"a weight of {largest:.6g} is beyond the range of {planned.format.name}"
                planned = replace(planned, format=wider, note=note)
        checked.append(planned)
    return checked


def nonfinite(name: str) -> DamagedFile:
    """The error for a tensor with a weight that is NaN or infinite."""
    return DamagedFile(f"tensor {name} has a weight that is NaN or infinite; --zero-nonfinite makes those 0")


def peak(
    tensor: GatheredTensor, finite: bool = False, release: Callable[[QTensor], None] | None = None
) -> float:
    """The largest magnitude in a float tensor; NaN or infinity if a weight is, unless `finite` skips those.

    `release` is called with the rows that have been read.
    """
    largest = 0.0
    for part in tensor.parts:
        step = max(1, CHUNK_WEIGHTS // part.shape[-1]) if part.shape else 1
        for first in range(0, len(part.data), step):
            data = part.data[first : first + step]
            largest_here = _peak(data, part.format.name, finite)
            if release:
                release(replace(part, shape=(len(data), data.shape[1]), data=data))
            if not np.isfinite(largest_here):
                return largest_here
            largest = max(largest, largest_here)
    scale = 1.0 if tensor.scale is None else float(np.abs(tensor.scale).max())
    return largest * scale


_INFINITY: dict[str, Any] = {
    "F32": np.uint32(0x7F800000),
    "F16": np.uint16(0x7C00),
    "BF16": np.uint16(0x7F80),
}


def _peak(data: np.ndarray, form: str, finite: bool) -> float:
    """The largest magnitude in rows of a float format: bits without the sign compare as the magnitudes do."""
    infinity = _INFINITY[form]
    bits = np.ascontiguousarray(data).view(infinity.dtype)
    bits = bits << 1  # without the sign
    if finite:
        bits = bits[bits < infinity << 1]
    largest = (np.atleast_1d(bits.max(initial=0)) >> 1).astype(infinity.dtype)
    return float(FORMATS[form].dequantize(largest.view(np.uint8).reshape(1, -1))[0, 0])
