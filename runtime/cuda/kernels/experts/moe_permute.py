"""Prefill of mixtures of experts: (row, choice) pairs are sorted by expert, and results are added up again.

Pair row · top + choice is the choice number `choice` of a row's `top` experts. Sorted by expert, a pair has a
*place*, and the places of one expert are divided into tiles, which the prefill products take.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...ptx import (
    atomic_add,
    barrier,
    block_x,
    block_y,
    div_u32,
    load_float,
    load_int,
    load_shared_int,
    shared,
    store_float,
    store_int,
    store_shared_int,
    thread,
    to_int,
)
from ..common.common import begin

# Constants of the launch. ROWS: places of a tile. PERMUTED: x is sorted by expert.
ROWS = 128
PERMUTED = 0


class PermuteArguments(KernelArguments):
    """Arguments of `permute_by_expert`.

    `experts`, float32 [rows, top], are the numbers of the experts that each row has chosen. The other arrays
    are int32 and written: `counts` [n_experts] is scratch memory; `tiles` [1 + tiles, 4] has the number of
    tiles, then for each tile its expert, first place, and number of places; `sources` [pairs] is the row of
    each place, and `places` [pairs] the place of each pair.
    """

    experts: Region
    rows: int
    top: int
    n_experts: int
    counts: int
    tiles: int
    sources: int
    places: int


def permute_by_expert(args: PermuteArguments):
    """Sort pairs by expert. Grid: (1,), blocks of 256 threads; shared memory: int32 [2, n_experts].

    The order of the pairs of one expert depends on timing, which changes no result: each row of a product is
    computed by itself.
    """
    begin()
    for e in range(thread(), args.n_experts, 256):
        store_int(args.counts + 4 * e, 0)
    barrier()
    for pair in range(thread(), args.rows * args.top, 256):
        row = div_u32(pair, args.top)
        e = to_int(load_float(args.experts.address + row * args.experts.stride + 4 * (pair - row * args.top)))
        store_int(args.places + 4 * pair, atomic_add(args.counts + 4 * e, 1))
    barrier()
    for e in range(thread(), args.n_experts, 256):
        store_shared_int(shared() + 4 * e, load_int(args.counts + 4 * e))
    barrier()
    firsts = shared() + 4 * args.n_experts
    for e in range(thread(), args.n_experts, 256):
        first = 0
        tile = 0
        for i in range(e):
            count = load_shared_int(shared() + 4 * i)
            first = first + count
            tile = tile + div_u32(count + (ROWS - 1), ROWS)
        count = load_shared_int(shared() + 4 * e)
        store_shared_int(firsts + 4 * e, first)
        for start in range(0, count, ROWS):
            n_places = count - start
            if n_places > ROWS:
                n_places = ROWS
            to = args.tiles + 16 * (1 + tile)
            store_int(to, e)
            store_int(to + 4, first + start)
            store_int(to + 8, n_places)
            tile = tile + 1
        if e == args.n_experts - 1:
            store_int(args.tiles, tile)
    barrier()
    for pair in range(thread(), args.rows * args.top, 256):
        row = div_u32(pair, args.top)
        e = to_int(load_float(args.experts.address + row * args.experts.stride + 4 * (pair - row * args.top)))
        place = load_shared_int(firsts + 4 * e) + load_int(args.places + 4 * pair)
        store_int(args.places + 4 * pair, place)
        store_int(args.sources + 4 * place, row)


class CombineArguments(KernelArguments):
    """Arguments of `combine_experts`: float32 routing_weights [rows, top], x [pairs, width] and out [rows,
    width]; `places`, int32 [rows, top], says which row of x belongs to a pair if PERMUTED.
    """

    routing_weights: Region
    places: int = 0
    top: int
    x: Region
    out: Region
    width: int


def combine_experts(args: CombineArguments):
    """out[row] = Σ_j routing_weights[row, j] · x[pair], or x[places[pair]] if PERMUTED.

    Grid: (⌈width / 256⌉, rows), blocks of 256 threads.
    """
    begin()
    i = block_x() * 256 + thread()
    row = block_y()
    if i < args.width:
        total = 0.0
        for j in range(args.top):
            at = row * args.top + j
            if PERMUTED:
                at = load_int(args.places + 4 * at)
            weight = load_float(args.routing_weights.address + row * args.routing_weights.stride + 4 * j)
            total = total + weight * load_float(args.x.address + at * args.x.stride + 4 * i)
        store_float(args.out.address + row * args.out.stride + 4 * i, total)
