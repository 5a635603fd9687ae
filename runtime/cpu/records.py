"""What kernels are told: one record of int64 fields an instruction, one for the step.

Every kernel is called as `kernel(arguments, step, thread)` with the addresses of its record and of the
step's. Matrices are given by the address of their first element and the bytes from row to row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from ...quant.jit import jit
from ...quant.simd import as_pointer
from ...quant.tiles import TOKENS


def record(*fields: str, floats: tuple[str, ...] = ()) -> np.dtype:
    """A record type of int64 `fields`, then float64 `floats`."""
    return np.dtype([*((f, np.int64) for f in fields), *((f, np.float64) for f in floats)])


STEP = record(
    "instructions",  # address of INSTRUCTION[n_instructions]
    "n_instructions",
    "n_threads",
    "n_rows",
    "n_wanted",
    "tokens",  # int32 [n_rows], as the next two
    "sequences",
    "positions",
    "wanted",  # int32 [n_wanted]
    "blocks",  # int32 [sequences, pages], the block table
    "blocks_stride",
    "page_size",
)
INSTRUCTION = record("kernel", "arguments", "barrier")  # barrier: all threads wait for each other after it


def reader(dtype: np.dtype) -> Any:
    """A compiled accessor: the record of type `dtype` at an address."""

    @jit
    def read(address: int) -> Any:
        return carray(as_pointer(address), 1, dtype)[0]

    return read


step_at = reader(STEP)


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
