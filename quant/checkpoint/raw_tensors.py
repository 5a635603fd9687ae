"""The tensors of a checkpoint before anybody says what their bytes mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import DamagedFile
from ..gguf.metadata import shown

DTYPES = {  # of safetensors, and how NumPy reads what it has no type for
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
    """float32 [256]: what each byte stands for.

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
    """A tensor as it lies in its file: `data` is uint8 [n_bytes]."""

    name: str
    dtype: str  # one of DTYPES
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def array(self) -> np.ndarray:
        """The elements; of types that NumPy lacks, their bits as unsigned integers."""
        return self.data.view(DTYPES[self.dtype]).reshape(self.shape)

    def floats(self) -> np.ndarray:
        """The values as float32."""
        return as_floats(self.array, self.dtype)


def as_floats(array: np.ndarray, dtype: str) -> np.ndarray:
    """Elements of `RawTensor.array`, or some of them, as float32."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.startswith("F8"):
        return float8_values(dtype).take(array)
    return array.astype(np.float32)


class RawTensors:
    """Tensors by name, and which of them somebody has taken."""

    def __init__(self, held: Mapping[str, RawTensor]) -> None:
        self._held = held
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def __iter__(self) -> Iterator[RawTensor]:
        return iter(self._held.values())

    def ending(self, *endings: str) -> Iterator[RawTensor]:
        """Those whose names end so."""
        return (tensor for name, tensor in self._held.items() if name.endswith(endings))

    def take(self, name: str, dtypes: Iterable[str], shape: tuple[int, ...] | None = None) -> RawTensor:
        """The tensor of that name. DamagedFile if it is not there, of no such dtype or of another shape."""
        if name not in self._held:
            raise DamagedFile(f"tensor {shown(name)} is missing")
        tensor = self._held[name]
        if tensor.dtype not in tuple(dtypes):
            raise DamagedFile(
                f"tensor {shown(name)} has dtype {tensor.dtype}; needed is {' or '.join(dtypes)}"
            )
        if shape is not None and tensor.shape != shape:
            raise DamagedFile(f"tensor {shown(name)} has shape {tensor.shape}, but {shape} is needed")
        self.taken.add(name)
        return tensor


def need(condition: object, tensor: RawTensor, problem: str) -> None:
    """DamagedFile unless `condition`."""
    if not condition:
        raise DamagedFile(f"tensor {shown(tensor.name)} {problem}")
