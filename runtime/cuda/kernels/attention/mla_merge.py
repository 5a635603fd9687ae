"""Merging the splits that `mla.py` has left of each row and head.

Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    div_f32,
    div_u32,
    exp2,
    load_constant,
    load_float,
    load_float4,
    load_int,
    load_shared,
    maximum,
    shared,
    store_float,
    store_shared,
    thread,
)
from ..common.common import begin, warp_maximum, warp_sum
from .scores import NO_MAXIMUM, window_start

VP = TILE = SINKS = THREADS = 0  # constants: see `mla_merge_splits`


class MergeArguments(KernelArguments):
    """What `mla_merge_splits` takes."""

    partials: int  # float32 [rows, heads, splits, VP + 4]: see `MLAArguments`
    positions: int  # int32 [rows]
    window: int
    sinks: int  # as in `ScoreArguments`
    out: Region  # float32 [rows, heads · VP]
    heads: int
    splits: int  # of the grid of `mla_attention`, 64 at most


def mla_merge_splits(args: MergeArguments) -> None:
    """out = the results of the splits of a row's context, weighted by their shares of all probabilities.

    Grid: (heads, rows), of THREADS threads. A thread adds up four dimensions of every n-th split; what the n
    threads have of a dimension is added in shared memory. Shared memory: 256 + 16 · THREADS bytes.

    Constants besides WINDOW and SINKS, see `scores.py`:
        VP       dimensions of a value
        TILE     tokens of a tile in `mla_attention`
        THREADS  a multiple of 32, at least VP / 4
    """
    begin()
    lane = thread() & 31
    row = block_y()
    head = block_x()
    position = load_int(args.positions + 4 * row)
    low = window_start(position, args.window)
    count = div_u32(position, TILE) + 1 - div_u32(low, TILE)
    split = div_u32(count + args.splits - 1, args.splits)
    splits = div_u32(count + split - 1, split)
    part = args.partials + 4 * (row * args.heads + head) * args.splits * (VP + 4)
    if thread() < 32:  # the weight of each split
        best = registers(2, NO_MAXIMUM)
        total = registers(2, 0.0)
        for j in static(2):
            if 32 * j + lane < splits:
                at = part + 4 * ((32 * j + lane) * (VP + 4) + VP)
                best[j] = load_float(at)
                total[j] = load_float(at + 4)
        highest = warp_maximum(maximum(best[0], best[1]))
        sum_ = 0.0
        if SINKS:
            sink = load_constant(args.sinks + 4 * head)
            highest = maximum(highest, sink)
            if lane == 0:
                sum_ = exp2(sink - highest)
        for j in static(2):
            best[j] = exp2(best[j] - highest)
            sum_ = sum_ + best[j] * total[j]
        sum_ = warp_sum(sum_)
        for j in static(2):
            store_shared(shared() + 4 * (32 * j + lane), div_f32(best[j], sum_))
    barrier()
    results = shared() + 256
    first_split = div_u32(thread(), VP // 4)
    dim = 4 * (thread() - first_split * (VP // 4))
    if first_split < THREADS // (VP // 4):
        value = registers(4, 0.0)
        for start in range(first_split, splits, 8 * (THREADS // (VP // 4))):
            x = registers((8, 4))
            for u in static(8):
                m = start + u * (THREADS // (VP // 4))
                if m >= splits:
                    m = start
                x[u, 0], x[u, 1], x[u, 2], x[u, 3] = load_float4(part + 4 * (m * (VP + 4) + dim))
            for u in static(8):
                share = 0.0
                if start + u * (THREADS // (VP // 4)) < splits:
                    share = load_shared(shared() + 4 * (start + u * (THREADS // (VP // 4))))
                for j in static(4):
                    value[j] = value[j] + share * x[u, j]
        for j in static(4):
            store_shared(results + 4 * (first_split * VP + dim + j), value[j])
    barrier()
    for i in range(thread(), VP, THREADS):
        value = 0.0
        for m in static(THREADS // (VP // 4)):
            value = value + load_shared(results + 4 * (m * VP + i))
        store_float(args.out.address + row * args.out.stride + 4 * (head * VP + i), value)
