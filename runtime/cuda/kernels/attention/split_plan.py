"""Divides the contexts of a step's rows among blocks of `decode_attention`, once a step for all layers.

Contexts of different lengths are cut into splits of about the same length, so that a long one is shared by
many blocks while a short one takes one. The number of blocks does not depend on the lengths, so that the
launches of a step stay the same while they grow: those that have nothing to do end at once.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments
from ...compile.stage import device, registers, static
from ...ptx import (
    barrier,
    div_u32,
    load_int,
    load_shared,
    shared,
    shift_right,
    shuffle,
    store_int,
    store_shared,
    thread,
    to_float,
    to_int,
)
from ..common.common import begin
from .scores import window_start

WARPS = WINDOW = PDL = 0  # constants: see `plan_splits`
ENTRY = 32  # bytes of an item: row, split, splits of the row, first tile, end tile, position, first position
THREADS = 256


class PlanArguments(KernelArguments):
    """Arguments of `plan_splits`: `positions` are int32 [rows], `items` int32 [rows + budget, 8]."""

    positions: int
    rows: int
    window: int
    budget: int
    items: int


@device
def tiles_of(position, window):
    """The tiles of 16 tokens that a row at `position` sees."""
    return (position >> 4) + 1 - (window_start(position, window) >> 4)


@device
def sums_before(value):
    """Sums of whole numbers below 2²⁴: over the threads in front of this one, and over all of the block."""
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    own = to_float(value)
    upto = own
    for i in static(5):
        other = shuffle(upto, (lane - (1 << i)) & 31)
        if lane >= 1 << i:
            upto = upto + other
    barrier()
    if lane == 31:
        store_shared(shared() + 4 * warp, upto)
    barrier()
    before = upto - own
    total = 0.0
    for w in static(8):
        sum_ = load_shared(shared() + 4 * w)
        total = total + sum_
        if warp > w:
            before = before + sum_
    return to_int(before), to_int(total)


def plan_splits(args: PlanArguments) -> None:
    """Write the items of `decode_attention`'s grid: a split of a row each; behind the last one row is -1.

    A split has a multiple of WARPS tiles, as many as make `budget` splits of all tiles of all rows. Grid:
    (1,), 256 threads, which take consecutive rows; 32 bytes of shared memory.
    """
    begin()
    each = div_u32(args.rows + (THREADS - 1), THREADS)
    first = thread() * each
    last = first + each
    if last > args.rows:
        last = args.rows
    tiles = 0
    for row in range(first, last):
        tiles = tiles + tiles_of(load_int(args.positions + 4 * row), args.window)
    sums = registers(2)
    sums[()] = sums_before(tiles)
    split = div_u32(sums[1] + args.budget - 1, args.budget)
    split = div_u32(split + (WARPS - 1), WARPS) * WARPS
    parts = 0
    for row in range(first, last):
        tiles = tiles_of(load_int(args.positions + 4 * row), args.window)
        parts = parts + div_u32(tiles + split - 1, split)
    sums[()] = sums_before(parts)
    item = args.items + ENTRY * sums[0]
    for row in range(first, last):
        position = load_int(args.positions + 4 * row)
        low = window_start(position, args.window)
        end = (position >> 4) + 1
        splits = div_u32(tiles_of(position, args.window) + split - 1, split)
        for m in range(splits):
            begins = (low >> 4) + m * split
            ends = begins + split
            if ends > end:
                ends = end
            store_int(item, row)
            store_int(item + 4, m)
            store_int(item + 8, splits)
            store_int(item + 12, begins)
            store_int(item + 16, ends)
            store_int(item + 20, position)
            store_int(item + 24, low)
            item = item + ENTRY
    for i in range(sums[1] + thread(), args.rows + args.budget, THREADS):
        store_int(args.items + ENTRY * i, -1)
