"""Multi-head latent attention (MLA) over the paged cache, on tensor cores.

All query heads share one key-value head of many dimensions (DeepSeek-V2: 576), the first of which (512) are
the values. `mla_merge.py` merges the splits of a context in a launch of its own: 32 heads of 512 dimensions
are too many for a single block.

DeepSeek-AI 2024, "DeepSeek-V2"; Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    block_z,
    blocks_x,
    blocks_y,
    commit_copies,
    div_f32,
    div_u32,
    exp2,
    launch_dependents,
    ldmatrix,
    ldmatrix_transposed,
    load_constant,
    load_float4,
    load_int,
    load_shared,
    load_shared4,
    maximum,
    mma_f16,
    pack_f16,
    shared,
    shift_right,
    store_float,
    store_shared,
    store_shared_int,
    store_shared_int4,
    thread,
    wait_copies,
    wait_for_grid,
)
from ..common.common import tanh
from .cache import PagedCache, block_table_of
from .mla_tile import fetch_tile, head_of, load_query, row_of, swizzled_probabilities
from .scores import MASKED, NO_MAXIMUM, ScoreArguments, quad_maximum, quad_sum, window_start
from .tile import swizzled

G = HD = VP = TILE = M_TILES = N_TILES = HEAD_WARPS = V_TILES = WARP_V_TILES = WARPS = Q_KEPT = 0
SOFTCAP = WINDOW = SINKS = ONE_SPLIT = PREFILL = SINGLE_ROW = PDL = 0  # constants: see `mla_attention`


class MLAArguments(KernelArguments):
    """What `mla_attention` takes."""

    q: Region  # float32 [rows, heads · HD]
    cache: PagedCache  # float16, or codes; `values` is not read
    scores: ScoreArguments
    partials: int  # float32 [rows, heads, splits, VP + 4]: sums, the maximum and the total of each split
    out: Region  # float32 [rows, heads · VP]; with ONE_SPLIT
    heads: int
    rows: int


def mla_attention(args: MLAArguments) -> None:
    """softmax(scores) v of one split of the context, into `partials`, or into `out` with ONE_SPLIT.

    Grid: (heads / G, most splits of a context, rows), or with PREFILL (rows · heads / (16 · M_TILES)), of
    32 · WARPS threads; pages have 64 tokens. A block takes G heads of a row and a split of its context; with
    PREFILL the step's rows are consecutive positions of one sequence, their heads are counted row after row,
    and a block takes 16 · M_TILES of these and the whole context.

    All warps copy a tile of TILE tokens to shared memory together, the next one while the current one is
    used. For the scores, a warp takes 16 heads and TILE · M_TILES / WARPS tokens; for the result it takes all
    heads and a part of the values' dimensions. Probabilities go from one to the other through shared memory,
    as float16. For a tile of 64 tokens, 32 heads and 576 dimensions, 144 KB are read for scores, 64 KB for
    values, 32 KB for probabilities, and 4 KB are written. If instead warps shared the dimensions of the
    scores, keys would be read once (72 KB), but the float32 sums of 8 warps (64 KB) written and read.

    Shared memory: two tiles, queries, probabilities, and a maximum for each head and warp: see
    `lowering.mla.BlockShape`.

    Constants besides those of `cache.py`, `scores.py` and `tile.py`:
        G             heads of a block
        HD, VP        dimensions of a key and of a value, multiples of 16
        WARPS         of a block
        TILE          tokens of a tile, 32 or 64
        M_TILES       mma tiles of 16 heads in a block, 1 or 2
        N_TILES       mma tiles of 8 tokens in a warp's scores, TILE · M_TILES / (8 · WARPS), 1 or 2
        HEAD_WARPS    warps that take the same heads, WARPS / M_TILES, a multiple of 4
        V_TILES       16 dimensions each of the values, VP / 16; WARP_V_TILES of a warp
        Q_KEPT        16 dimensions each of the queries that stay in registers; the rest is read each time
        ONE_SPLIT     1: a block takes the whole context of its rows
        PREFILL       1: see above
        SINGLE_ROW    1: the step has one row; as in `decode.py`
    """
    if PDL:
        launch_dependents()
    if PDL and not SINGLE_ROW:
        wait_for_grid()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    head = block_x() * G
    row = block_z()
    if PREFILL:
        head = (blocks_x() - 1 - block_x()) * (16 * M_TILES)  # the longest contexts first
    position = load_int(args.cache.positions + 4 * row)
    lowest = position  # the first that a row of this block has
    if PREFILL:
        lowest = position + div_u32(head, args.heads)
        position = position + div_u32(head + 16 * M_TILES - 1, args.heads)
        if position > load_int(args.cache.positions + 4 * (args.rows - 1)):
            position = load_int(args.cache.positions + 4 * (args.rows - 1))
    block_table = block_table_of(args.cache, row)
    low = window_start(lowest, args.scores.window)
    count = div_u32(position, TILE) + 1 - div_u32(low, TILE)
    span = div_u32(count + blocks_y() - 1, blocks_y())
    first = div_u32(low, TILE) + block_y() * span
    end = first + span
    if end > div_u32(position, TILE) + 1:
        end = div_u32(position, TILE) + 1
    if first >= end:
        return
    live = G
    if PREFILL:
        live = args.rows * args.heads - head
    queries = shared() + 4 * TILE * HD
    probabilities = queries + 32 * M_TILES * HD
    maxima = probabilities + 32 * M_TILES * TILE
    page = load_int(block_table + 4 * div_u32(first * TILE, 64))
    if SINGLE_ROW:
        older = div_u32(position, TILE)  # tiles before this one hold no token of the step
        if first < older:
            fetch_tile(shared(), args.cache.keys, page, first, position)
        if PDL:
            wait_for_grid()
        if first >= older:
            fetch_tile(shared(), args.cache.keys, page, first, position)
    else:
        fetch_tile(shared(), args.cache.keys, page, first, position)
    commit_copies()
    following = first + 1
    if following >= end:
        following = first
    page = load_int(block_table + 4 * div_u32(following * TILE, 64))

    for i in range(thread(), 2 * M_TILES * HD, 32 * WARPS):
        of_head = div_u32(i, HD // 8)
        piece = i - of_head * (HD // 8)
        x = registers(8, 0.0)
        if of_head < live:
            line = row_of(row, head + of_head, args.heads)
            source = (
                args.q.address
                + line * args.q.stride
                + 4 * (head_of(head + of_head, args.heads) * HD + 8 * piece)
            )
            x[0], x[1], x[2], x[3] = load_float4(source)
            x[4], x[5], x[6], x[7] = load_float4(source + 16)
        store_shared_int4(
            queries + swizzled(of_head, piece),
            pack_f16(x[0] * args.scores.scale, x[1] * args.scores.scale),
            pack_f16(x[2] * args.scores.scale, x[3] * args.scores.scale),
            pack_f16(x[4] * args.scores.scale, x[5] * args.scores.scale),
            pack_f16(x[6] * args.scores.scale, x[7] * args.scores.scale),
        )
    barrier()
    own = warp & (M_TILES - 1)  # the number of the 16 heads of this warp
    group = div_u32(warp, M_TILES)  # the number of its tokens
    own_queries = queries + 2 * HD * (16 * own + (lane & 7) + ((lane >> 3) & 1) * 8)
    query = registers((HD // 16, 4))
    for k in static(Q_KEPT):
        query[k] = load_query(own_queries, k)
    unit = registers(WARP_V_TILES)
    for u in static(WARP_V_TILES):
        unit[u] = warp * WARP_V_TILES + u
        if V_TILES < WARP_V_TILES * WARPS:
            if unit[u] >= V_TILES:
                unit[u] = V_TILES - 1
    last_seen = registers(2, position)  # the last position that the rows of this lane's scores see
    if PREFILL:
        for r in static(2):
            last_seen[r] = load_int(args.cache.positions) + div_u32(
                head + 16 * own + 8 * r + (lane >> 2), args.heads
            )
            if last_seen[r] > position:  # a row that was added and repeats the last one
                last_seen[r] = position
    best = registers((M_TILES, 2), NO_MAXIMUM)
    total = registers(2, 0.0)
    acc = registers((M_TILES, 2 * WARP_V_TILES, 4), 0.0)
    stage = shared()
    following_stage = shared() + 2 * TILE * HD
    for tile in range(first, end):
        wait_copies()
        barrier()
        if tile + 1 < end:
            fetch_tile(following_stage, args.cache.keys, page, tile + 1, position)
            following = tile + 2
            if following >= end:
                following = tile
            page = load_int(block_table + 4 * div_u32(following * TILE, 64))
        commit_copies()
        # Several accumulators, so that products wait less for each other.
        part = registers((4 // N_TILES, N_TILES, 4), 0.0)
        b = registers((2, 2))
        for j in static(0, 4, 3 - N_TILES):  # the 16 dimensions in a line of 128 bytes
            if N_TILES == 2:
                source = stage + swizzled(
                    16 * group + (lane & 7) + (lane >> 4) * 8, 2 * j + ((lane >> 3) & 1)
                )
            else:
                source = stage + swizzled(8 * group + (lane & 7), 2 * j + (lane >> 3))
            for k in static(j, HD // 16, 4):
                if N_TILES == 1 and HD // 16 == k + 1:
                    source = stage + swizzled(8 * group + (lane & 7), 2 * j + ((lane >> 3) & 1))
                b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix(source + 128 * (k // 4))
                if k >= Q_KEPT:
                    query[k] = load_query(own_queries, k)
                if N_TILES == 1 and HD // 16 > k + 1 and k + 1 >= Q_KEPT:
                    query[k + 1] = load_query(own_queries, k + 1)
                for n in static(2):
                    if N_TILES == 2:
                        part[k // 4 % 2, n] = mma_f16(*query[k], *b[n], *part[k // 4 % 2, n])
                    elif HD // 16 > k + n:
                        part[2 * (k // 4 % 2) + n, 0] = mma_f16(
                            *query[k + n], *b[n], *part[2 * (k // 4 % 2) + n, 0]
                        )
        score = registers((N_TILES, 4))
        for n in static(N_TILES):
            for i in static(4):
                score[n, i] = part[0, n, i] + part[1, n, i]
                if N_TILES == 1:
                    score[n, i] = score[n, i] + (part[2, n, i] + part[3, n, i])
                if SOFTCAP:
                    score[n, i] = args.scores.softcap * tanh(score[n, i])
        if TILE * tile + TILE - 1 > lowest or WINDOW:
            for n in static(N_TILES):
                for i in static(4):
                    token = TILE * tile + 8 * (N_TILES * group + n) + 2 * (lane & 3) + i % 2
                    if token > last_seen[i // 2]:
                        score[n, i] = MASKED
                    if WINDOW:
                        if token <= last_seen[i // 2] - args.scores.window:
                            score[n, i] = MASKED
        for r in static(2):
            highest = NO_MAXIMUM
            for n in static(N_TILES):
                highest = maximum(highest, maximum(score[n, 2 * r], score[n, 2 * r + 1]))
            highest = quad_maximum(highest)
            if (lane & 3) == 0:
                store_shared(maxima + 4 * ((16 * own + 8 * r + (lane >> 2)) * HEAD_WARPS + group), highest)
        barrier()
        shrink = registers((M_TILES, 2))
        for m in static(M_TILES):
            for r in static(2):
                highest = best[m, r]
                for j in static(HEAD_WARPS // 4):
                    x = registers(4)
                    x[()] = load_shared4(maxima + 4 * ((16 * m + 8 * r + (lane >> 2)) * HEAD_WARPS + 4 * j))
                    for i in static(4):
                        highest = maximum(highest, x[i])
                shrink[m, r] = exp2(best[m, r] - highest)
                best[m, r] = highest
        for r in static(2):
            highest = best[0, r]
            factor = shrink[0, r]
            if M_TILES == 2:
                if own == 1:
                    highest = best[M_TILES - 1, r]
                    factor = shrink[M_TILES - 1, r]
            total[r] = total[r] * factor
            of_head = 16 * own + 8 * r + (lane >> 2)
            for n in static(N_TILES):
                even = exp2(score[n, 2 * r] - highest)
                odd = exp2(score[n, 2 * r + 1] - highest)
                total[r] = total[r] + even + odd
                to = probabilities + swizzled_probabilities(of_head, N_TILES * group + n)
                store_shared_int(to + 4 * (lane & 3), pack_f16(even, odd))
        for m in static(M_TILES):
            for n in static(2 * WARP_V_TILES):
                for i in static(4):
                    acc[m, n, i] = acc[m, n, i] * shrink[m, i // 2]
        barrier()
        value = registers(WARP_V_TILES)
        for u in static(WARP_V_TILES):
            value[u] = stage + swizzled((lane & 7) + ((lane >> 3) & 1) * 8, 2 * unit[u] + (lane >> 4))
        for k in static(TILE // 16):
            p = registers((M_TILES, 4))
            for m in static(M_TILES):
                of_head = 16 * m + (lane & 7) + ((lane >> 3) & 1) * 8
                p[m] = ldmatrix(probabilities + swizzled_probabilities(of_head, 2 * k + (lane >> 4)))
            for u in static(WARP_V_TILES):
                b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix_transposed(value[u] + 32 * HD * k)
                for m in static(M_TILES):
                    for n in static(2):
                        acc[m, 2 * u + n] = mma_f16(*p[m], *b[n], *acc[m, 2 * u + n])
        following = stage
        stage = following_stage
        following_stage = following
    barrier()
    for r in static(2):
        total[r] = quad_sum(total[r])
        if (lane & 3) == 0:
            store_shared(maxima + 4 * ((16 * own + 8 * r + (lane >> 2)) * HEAD_WARPS + group), total[r])
    barrier()
    for m in static(M_TILES):
        for r in static(2):
            of_head = 16 * m + 8 * r + (lane >> 2)
            if of_head < live:
                sum_ = 0.0
                for j in static(HEAD_WARPS):
                    sum_ = sum_ + load_shared(maxima + 4 * (of_head * HEAD_WARPS + j))
                to = args.partials + 4 * ((row * args.heads + head + of_head) * blocks_y() + block_y()) * (
                    VP + 4
                )
                factor = 1.0
                if ONE_SPLIT:
                    row_head = head_of(head + of_head, args.heads)
                    to = args.out.address + row_of(row, head + of_head, args.heads) * args.out.stride
                    to = to + 4 * row_head * VP
                    factor = div_f32(1.0, sum_)
                    if SINKS:
                        sink = load_constant(args.scores.sinks + 4 * row_head)
                        highest = maximum(best[m, r], sink)
                        factor = exp2(best[m, r] - highest)
                        factor = div_f32(factor, sum_ * factor + exp2(sink - highest))
                elif warp == 0 and (lane & 3) == 0:
                    store_float(to + 4 * VP, best[m, r])
                    store_float(to + 4 * VP + 4, sum_)
                for u in static(WARP_V_TILES):
                    if warp * WARP_V_TILES + u < V_TILES:
                        for n in static(2):
                            for i in static(2):
                                dim = 16 * unit[u] + 8 * n + 2 * (lane & 3) + i
                                store_float(to + 4 * dim, acc[m, 2 * u + n, 2 * r + i] * factor)
