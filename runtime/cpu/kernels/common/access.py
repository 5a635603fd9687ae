"""Views of memory at an address, for compiled code: argument records and float32 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .....quant.jit.decorators import jit
from .....quant.jit.simd.memory import as_pointer
from ...abi.records import STEP


def record_reader(dtype: np.dtype) -> Any:
    """A compiled function that returns the record of type `dtype` at an address."""

    @jit
    def read(address: int) -> Any:
        return carray(as_pointer(address), 1, dtype)[0]

    return read


step_at = record_reader(STEP)


@jit
def floats_at(address: int, n: int) -> Any:
    """The float32 [n] array at an address, as a view."""
    return carray(as_pointer(address), n, np.float32)
