"""The tensors of safetensors files as stored: dtype, shape and bytes, before any packing is interpreted.

Source: the safetensors format description.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import DamagedFile
from ..gguf.metadata import quoted

DTYPES = {  # safetensors dtype → NumPy dtype; bits as unsigned integers where NumPy has no such type
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "BOOL": "u1",
}
FLOAT8 = ("F8_E4M3", "F8_E5M2")
FLOATS = ("F32", "F16", "BF16")


def float8_values(dtype: str) -> np.ndarray:
    """The values of all 256 codes of an 8-bit float type, float32 [256].

    F8_E4M3   s eeee mmm   no infinities, NaN where all of e and m are set; OCP 8-bit Floating Point 1.0
    F8_E5M2   s eeeee mm   the upper half of a binary16
    F8_E8M0   eeeeeeee     2^(e - 127), NaN at 255; OCP Microscaling Formats 1.0
    """
    byte = np.arange(256)
    if dtype == "F8_E5M2":
        return (byte << 8).astype("<u2").view("<f2").astype(np.float32)
    if dtype == "F8_E8M0":
        values = np.ldexp(np.ones(256), byte - 127)
        values[255] = np.nan
        return values.astype(np.float32)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    magnitude = np.ldexp(np.where(exponent, mantissa + 8.0, mantissa), np.maximum(exponent, 1) - 10)
    magnitude[byte & 127 == 127] = np.nan
    return np.where(byte & 128, -magnitude, magnitude).astype(np.float32)


@dataclass(frozen=True)
class RawTensor:
    """A tensor as stored in a safetensors file; `data` is uint8 [n_bytes]."""

    name: str
    dtype: str  # one of DTYPES
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def array(self) -> np.ndarray:
        """The elements, of `shape`; types that NumPy lacks come as their bits in unsigned integers."""
        return self.data.view(DTYPES[self.dtype]).reshape(self.shape)

    def floats(self) -> np.ndarray:
        """The values as float32."""
        return as_floats(self.array, self.dtype)


def as_floats(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values of elements of a `RawTensor.array` with that safetensors dtype."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.startswith("F8"):
        return float8_values(dtype).take(array)
    return array.astype(np.float32)


class RawCheckpoint:
    """All stored tensors of a checkpoint by name. `taken` are the names that a packing's reader has used."""

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        self._tensors = tensors
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[RawTensor]:
        return iter(self._tensors.values())

    def ending(self, *endings: str) -> Iterator[RawTensor]:
        """The tensors whose names end in one of `endings`."""
        return (tensor for name, tensor in self._tensors.items() if name.endswith(endings))

    def take(self, name: str, dtypes: Iterable[str], shape: tuple[int, ...] | None = None) -> RawTensor:
        """The tensor `name`, which becomes `taken`.

        Raises DamagedFile if it is missing, or has none of `dtypes` or another shape.
        """
        if name not in self._tensors:
            raise DamagedFile(f"tensor {quoted(name)} is missing")
        tensor = self._tensors[name]
        if tensor.dtype not in tuple(dtypes):
            raise DamagedFile(
                f"tensor {quoted(name)} has dtype {tensor.dtype}; needed is {' or '.join(dtypes)}"
            )
        if shape is not None and tensor.shape != shape:
            raise DamagedFile(f"tensor {quoted(name)} has shape {tensor.shape}, but {shape} is needed")
        self.taken.add(name)
        return tensor


def check_tensor(condition: object, tensor: RawTensor, problem: str) -> None:
    """Raise DamagedFile "tensor NAME `problem`" unless `condition` is true."""
    if not condition:
        raise DamagedFile(f"tensor {quoted(tensor.name)} {problem}")
