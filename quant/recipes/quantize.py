"""From a plan to a file: tensors read, checked, encoded and written a few rows at a time."""

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
from ..gguf.writer import write_gguf
from ..rounding.encode import encode_tensor, holds
from .recipes import PlannedTensor

# The plan of a tensor, the number of its first row that is meant, the rows → uint8 [rows, row_bytes]
Encoder = Callable[[PlannedTensor, int, QTensor], np.ndarray]


@dataclass(frozen=True)
class QuantizedFile:
    """What became of a model."""

    n_bytes: int  # of the file
    n_weights: int
    n_tensor_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return self.n_tensor_bytes * 8 / self.n_weights


def nearest(threads: int | None = None, zero_nonfinite: bool = False) -> Encoder:
    """The encoder without calibration; see `encode_tensor`."""
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
    """Write the file `path` as planned; arguments as for `write_gguf`, which says what it raises.

    - `encode`: see `Encoder`; tensors that keep their format are copied.
    - `release`: lets go of the memory of rows of the source; it is handed copies as well.
    - `progress`: is told after each piece how many bytes of the source are done.

    Raises DamagedFile naming the tensor that has a weight that is no number.
    """
    done = 0

    def pieces(planned: PlannedTensor) -> Iterator[np.ndarray]:
        nonlocal done
        tensor = planned.tensor
        before, start = done, 0
        for rows in tensor.chunks():
            try:
                yield encode(planned, start, rows)
            except NonFinite:
                raise nonfinite(planned.name) from None
            release(rows)
            start += len(rows.data)
            done = before + tensor.n_source_bytes * start // max(1, tensor.n_rows)
            progress(done)

    n_bytes = write_gguf(path, metadata, types, [p.record for p in plan], map(pieces, plan))
    records = [planned.record.n_bytes for planned in plan]
    return QuantizedFile(n_bytes, sum(planned.tensor.n_weights for planned in plan), sum(records))


def checked(
    plan: Iterable[PlannedTensor], zero_nonfinite: bool, release: Callable[[QTensor], None]
) -> list[PlannedTensor]:
    """The plan with formats that hold the largest weight of each tensor; what does not becomes BF16 or F32.

    Raises DamagedFile naming the first tensor that has a weight that is NaN or infinite, unless those are
    going to be zeros. Tensors that are quantised already are left for the encoder to check.
    """
    found = []
    for planned in plan:
        floats = all(part.format.is_float for part in planned.tensor.parts)
        if floats and planned.format is not FORMATS["F32"]:
            largest = peak(planned.tensor, zero_nonfinite, release)
            if not np.isfinite(largest):
                raise nonfinite(planned.name)
            if not holds(planned.format, largest):
                wide = FORMATS["BF16" if planned.tensor.format.name == "BF16" else "F32"]
                note = f"a weight of {largest:.6g} is beyond the range of {planned.format.name}"
                planned = replace(planned, format=wide, note=note)
        found.append(planned)
    return found


def nonfinite(name: str) -> DamagedFile:
    """The error for a tensor with a weight that is no number."""
    return DamagedFile(f"tensor {name} has a weight that is NaN or infinite; --zero-nonfinite makes those 0")


def peak(
    tensor: GatheredTensor, finite: bool = False, release: Callable[[QTensor], None] | None = None
) -> float:
    """The largest magnitude in a tensor of floats, or of its `finite` weights only; else NaN or infinity if
    a weight is. `release` is told what has been looked at."""
    largest = 0.0
    for part in tensor.parts:
        step = max(1, CHUNK_WEIGHTS // part.shape[-1]) if part.shape else 1
        for first in range(0, len(part.data), step):
            data = part.data[first : first + step]
            found = _peak(data, part.format.name, finite)
            if release:
                release(replace(part, shape=(len(data), data.shape[1]), data=data))
            if not np.isfinite(found):
                return found
            largest = max(largest, found)
    scale = 1.0 if tensor.scale is None else float(np.abs(tensor.scale).max())
    return largest * scale


_INFINITY: dict[str, Any] = {
    "F32": np.uint32(0x7F800000),
    "F16": np.uint16(0x7C00),
    "BF16": np.uint16(0x7F80),
}


def _peak(data: np.ndarray, form: str, finite: bool) -> float:
    """Magnitudes of floats are in the order of their bits without the sign."""
    infinity = _INFINITY[form]
    bits = np.ascontiguousarray(data).view(infinity.dtype)
    bits = bits << 1  # without the sign
    if finite:
        bits = bits[bits < infinity << 1]
    largest = (np.atleast_1d(bits.max(initial=0)) >> 1).astype(infinity.dtype)
    return float(FORMATS[form].dequantize(largest.view(np.uint8).reshape(1, -1))[0, 0])
