"""Attention of the rows of one prompt over the paged cache, on tensor cores.

Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    commit_copies,
    copy_async,
    div_f32,
    div_u32,
    exp2,
    ldmatrix,
    ldmatrix_transposed,
    load_constant,
    load_float4,
    load_int,
    maximum,
    mma_f16,
    pack_f16,
    shared,
    shift_right,
    store_float,
    store_shared_int4,
    thread,
    wait_copies,
)
from ..common.common import begin, tanh
from .cache import PagedCache, block_table_of, head_in_page, load_eight
from .scores import MASKED, NO_MAXIMUM, ScoreArguments, quad_sum, softmax_64_tokens, window_start
from .tile import store_halves, swizzled

HD = GROUP = KV = Q_IN_REGISTERS = WINDOW = SOFTCAP = SINKS = 0  # constants: see `prefill_attention`


class PrefillAttentionArguments(KernelArguments):
    """What `prefill_attention` takes."""

    q: Region  # float32 [rows, heads · HD]
    cache: PagedCache
    scores: ScoreArguments
    out: Region  # float32 [rows, heads · HD]
    rows: int
    kv_heads: int


@device
def fetch_page(stage, cache: PagedCache, page, kv_head, kv_heads):
    """Start copying the keys and values of a page to shared memory, by all warps, as float16."""
    keys = head_in_page(cache.keys, page, kv_head, kv_heads)
    values = head_in_page(cache.values, page, kv_head, kv_heads)
    for i in range(thread(), 8 * HD, 128):
        row = div_u32(i, HD // 8)
        piece = i - row * (HD // 8)
        to = stage + swizzled(row, piece)
        if KV == 16:
            copy_async(to, keys + 16 * i, 16)
            copy_async(to + 128 * HD, values + 16 * i, 16)
        else:
            store_halves(to, *load_eight(keys, row, 8 * piece))
            store_halves(to + 128 * HD, *load_eight(values, row, 8 * piece))
    commit_copies()


def prefill_attention(args: PrefillAttentionArguments) -> None:
    """out = softmax(scores) v of rows that are consecutive positions of one sequence; pages have 64 tokens.

    Grid: (rows / 64, heads), of 128 threads. A block takes 64 rows of one head, a warp 16 of these. Keys and
    values come to shared memory a page at a time, the next page while the current one is used. Scores, the
    online softmax and the result stay in registers. Shared memory: two pages of keys and values, 512 · HD
    bytes, and 128 · HD more for the queries unless Q_IN_REGISTERS.

    Constants besides those of `cache.py`, `scores.py` and `tile.py`:
        GROUP           query heads that share a key-value head
        Q_IN_REGISTERS  1: queries stay in registers; 0: heads are too large for that, queries are read from
                        shared memory for each page
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    head = block_y()
    kv_head = div_u32(head, GROUP)
    first_row = block_x() * 64
    first = load_int(args.cache.positions + 4 * first_row)
    block_table = block_table_of(args.cache, 0)
    last = first + 63
    if last > load_int(args.cache.positions + 4 * (args.rows - 1)):
        last = load_int(args.cache.positions + 4 * (args.rows - 1))
    at = window_start(first, args.scores.window) >> 6
    end = (last >> 6) + 1
    page = load_int(block_table + 4 * at)
    fetch_page(shared() + (at & 1) * (256 * HD), args.cache, page, kv_head, args.kv_heads)

    # Queries become mma fragments by way of the stage that is free, or of shared memory of their own.
    if Q_IN_REGISTERS:
        staged = shared() + (1 - (at & 1)) * (256 * HD)
    else:
        staged = shared() + 512 * HD
    for i in range(thread(), 8 * HD, 128):
        row = div_u32(i, HD // 8)
        piece = i - row * (HD // 8)
        line = first_row + row
        if line >= args.rows:
            line = args.rows - 1
        source = args.q.address + line * args.q.stride + 4 * (head * HD + 8 * piece)
        a, b, c, d = load_float4(source)
        e, f, g, h = load_float4(source + 16)
        store_shared_int4(
            staged + swizzled(row, piece),
            pack_f16(a * args.scores.scale, b * args.scores.scale),
            pack_f16(c * args.scores.scale, d * args.scores.scale),
            pack_f16(e * args.scores.scale, f * args.scores.scale),
            pack_f16(g * args.scores.scale, h * args.scores.scale),
        )
    barrier()
    query = registers((HD // 16, 4))
    own = 16 * warp + (lane & 7) + ((lane >> 3) & 1) * 8
    if Q_IN_REGISTERS:
        for k in static(HD // 16):
            query[k] = ldmatrix(staged + swizzled(own, 2 * k + (lane >> 4)))
        barrier()

    best = registers(2, NO_MAXIMUM)
    total = registers(2, 0.0)
    acc = registers((HD // 8, 4), 0.0)
    lowest = first + 16 * warp
    for page in range(at, end):
        stage = shared() + (page & 1) * (256 * HD)
        wait_copies()
        barrier()
        if page + 1 < end:
            following = load_int(block_table + 4 * (page + 1))
            following_stage = shared() + ((page + 1) & 1) * (256 * HD)
            fetch_page(following_stage, args.cache, following, kv_head, args.kv_heads)
        score = registers((8, 4), 0.0)
        for k in static(HD // 16):
            b = registers((8, 2))
            for n in static(4):
                row = 16 * n + (lane & 7) + (lane >> 4) * 8
                b[2 * n, 0], b[2 * n, 1], b[2 * n + 1, 0], b[2 * n + 1, 1] = ldmatrix(
                    stage + swizzled(row, 2 * k + ((lane >> 3) & 1))
                )
            if not Q_IN_REGISTERS:
                query[k] = ldmatrix(staged + swizzled(own, 2 * k + (lane >> 4)))
            for n in static(8):
                score[n] = mma_f16(*query[k], *b[n], *score[n])
        if SOFTCAP:
            for n in static(8):
                for i in static(4):
                    score[n, i] = args.scores.softcap * tanh(score[n, i])
        if 64 * page + 63 > lowest or WINDOW:
            for n in static(8):
                for i in static(4):
                    token = 64 * page + 8 * n + 2 * (lane & 3) + i % 2
                    position = lowest + (lane >> 2) + 8 * (i // 2)
                    if position > last:  # a row that was added and repeats the last one
                        position = last
                    if token > position:
                        score[n, i] = MASKED
                    if WINDOW:
                        if token <= position - args.scores.window:
                            score[n, i] = MASKED
        shrink = registers(2)
        score[()], best[()], total[()], shrink[()] = softmax_64_tokens(*score[()], *best[()], *total[()])
        for n in static(HD // 8):
            for i in static(4):
                acc[n, i] = acc[n, i] * shrink[i // 2]
        for k in static(4):
            p = registers(4)
            p[0] = pack_f16(score[2 * k, 0], score[2 * k, 1])
            p[1] = pack_f16(score[2 * k, 2], score[2 * k, 3])
            p[2] = pack_f16(score[2 * k + 1, 0], score[2 * k + 1, 1])
            p[3] = pack_f16(score[2 * k + 1, 2], score[2 * k + 1, 3])
            for n in static(HD // 16):
                row = 16 * k + (lane & 7) + ((lane >> 3) & 1) * 8
                b = registers((2, 2))
                b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix_transposed(
                    stage + 128 * HD + swizzled(row, 2 * n + (lane >> 4))
                )
                for m in static(2):
                    acc[2 * n + m] = mma_f16(*p[()], *b[m], *acc[2 * n + m])
    for r in static(2):
        total[r] = quad_sum(total[r])
        row = first_row + 16 * warp + (lane >> 2) + 8 * r
        if row < args.rows:
            if SINKS:
                sink = load_constant(args.scores.sinks + 4 * head)
                highest = maximum(best[r], sink)
                shrunk = exp2(best[r] - highest)
                inverse = div_f32(shrunk, total[r] * shrunk + exp2(sink - highest))
            else:
                inverse = div_f32(1.0, total[r])
            to = args.out.address + row * args.out.stride + 4 * (head * HD + 2 * (lane & 3))
            for n in static(HD // 8):
                for i in static(2):
                    store_float(to + 32 * n + 4 * i, acc[n, 2 * r + i] * inverse)
