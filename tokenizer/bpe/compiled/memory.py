"""What the compiled encoder is written with: helpers compiled into the kernel, and reads and writes of
memory.

Everything that the kernel works on lies in arrays of the encoder (`encoder.py`); it gets their addresses in
records of int64 fields (`records.py`). `u8(address, i)` is item i of the uint8 array at an address; `put_u8`
sets it; `vocabulary_at` and its like give a record whose fields are attributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from .records import CALL, ENTERING, MERGING, PART, SCRATCH, VOCABULARY

_OPTIONS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
helper = njit(nogil=True, error_model="numpy", forceinline=True, **_OPTIONS)


@intrinsic
def _as_pointer(typingctx: Any, address: Any) -> Any:
    """An address as the pointer that `carray` takes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


_pointer: Any = _as_pointer


def _reader(dtype: Any) -> Any:
    """A helper that reads item i of the array of `dtype` at an address."""

    @helper
    def read(address: int, i: int) -> Any:
        return carray(_pointer(address + i * _size), 1, dtype)[0]

    _size = np.dtype(dtype).itemsize
    return read


def _writer(dtype: Any) -> Any:
    """A helper that writes item i of the array of `dtype` at an address."""

    @helper
    def write(address: int, i: int, value: Any) -> None:
        carray(_pointer(address + i * _size), 1, dtype)[0] = value

    _size = np.dtype(dtype).itemsize
    return write


u8, i32, i64, u64 = _reader(np.uint8), _reader(np.int32), _reader(np.int64), _reader(np.uint64)
put_u8, put_i32, put_i64, put_u64 = (
    _writer(np.uint8),
    _writer(np.int32),
    _writer(np.int64),
    _writer(np.uint64),
)
vocabulary_at, call_at, merging_at = _reader(VOCABULARY), _reader(CALL), _reader(MERGING)
entering_at, part_at, scratch_at = _reader(ENTERING), _reader(PART), _reader(SCRATCH)
