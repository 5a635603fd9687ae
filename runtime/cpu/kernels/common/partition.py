"""How the threads of a team divide the work of an instruction."""

from __future__ import annotations

from typing import Any

from .....quant.jit.decorators import jit
from .....quant.jit.simd.memory import load_i32


@jit
def n_rows_of(a: Any, s: Any) -> int:
    """The number of rows that an instruction works on; `a` is its argument record, `s` the STEP record."""
    if a.n_rows_address != 0:
        return load_i32(a.n_rows_address)
    return s.n_logits if a.on_logits_rows else s.n_rows


@jit
def rows_within(a: Any, s: Any) -> int:
    """The same; none if there are fewer than `a.min_rows` or, unless that is 0, more than `a.max_rows`."""
    n = n_rows_of(a, s)
    return n if n >= a.min_rows and (a.max_rows == 0 or n <= a.max_rows) else 0


@jit
def partition(n: int, thread: int, n_threads: int) -> Any:
    """The range [first, last) of n items that belongs to a thread; ranges differ in size by at most one."""
    return n * thread // n_threads, n * (thread + 1) // n_threads


@jit
def pooled(a: Any, thread: int, n_threads: int) -> Any:
    """The range [first, last) of `a.n_panels` panels that belongs to a thread; `a` is the argument record.

    With a pool the panels of several products, one behind the other, are partitioned together. So a thread
    has most of its panels in one run of memory, which is read faster than many short ones, and the remainder
    of the division is that of all of them.
    """
    if a.pool == 0:
        return partition(a.n_panels, thread, n_threads)
    first, last = partition(a.pool, thread, n_threads)
    return min(max(first - a.pool_start, 0), a.n_panels), min(max(last - a.pool_start, 0), a.n_panels)


@jit
def partition_rows(n: int, thread: int, s: Any) -> Any:
    """The range [first, last) of n rows that belongs to a thread, in whole tiles of `s.row_tile` rows; `s` is
    the STEP record."""
    tile = s.row_tile
    tiles = (n + tile - 1) // tile
    return min(n, tile * (tiles * thread // s.n_threads)), min(
        n, tile * (tiles * (thread + 1) // s.n_threads)
    )


@jit
def thread_rows(a: Any, s: Any, thread: int) -> Any:
    """The range [first, last) of rows that a thread computes in a pointwise kernel.

    With `a.replicated` every thread computes the step's only row, into its own copy.
    """
    if a.replicated:
        return 0, 1
    return partition_rows(n_rows_of(a, s), thread, s)
