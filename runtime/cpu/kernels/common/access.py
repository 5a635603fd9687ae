"""How compiled code sees the records that it is told things by, and its share of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .....quant.jit.jit import jit
from .....quant.jit.simd import as_pointer, load_i32
from ...abi.records import STEP
from ...simd.tile_sizes import TOKENS


def reader(dtype: np.dtype) -> Any:
    """A compiled accessor: the record of type `dtype` at an address."""

    @jit
    def read(address: int) -> Any:
        return carray(as_pointer(address), 1, dtype)[0]

    return read


step_at = reader(STEP)


@jit
def rows_of(a: Any, s: Any) -> int:
    """How many rows an instruction has to do."""
    if a.rows_at != 0:
        return load_i32(a.rows_at)
    return s.n_logits if a.on_logits_rows else s.n_rows


@jit
def my_rows(a: Any, s: Any, thread: int) -> Any:
    """A thread's rows [first, last) of work that treats every row by itself; see `pointwise`."""
    if a.every:
        return 0, 1
    return share_rows(rows_of(a, s), thread, s.n_threads)


@jit
def floats_at(address: int, n: int) -> Any:
    """float32 [n] at an address."""
    return carray(as_pointer(address), n, np.float32)


@jit
def share(n: int, thread: int, n_threads: int) -> Any:
    """The part [first, last) of n items that is this thread's."""
    return n * thread // n_threads, n * (thread + 1) // n_threads


@jit
def share_rows(n: int, thread: int, n_threads: int) -> Any:
    """The part [first, last) of n rows that is this thread's, whole tiles of them."""
    tiles = (n + TOKENS - 1) // TOKENS
    return min(n, TOKENS * (tiles * thread // n_threads)), min(
        n, TOKENS * (tiles * (thread + 1) // n_threads)
    )
