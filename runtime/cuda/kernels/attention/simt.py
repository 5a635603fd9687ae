"""Attention over the paged cache for single rows: the context is cut into spans that blocks share
(flash-decoding).

A block takes `G` query heads that share a key-value head, so that every load serves all of them. `LANES`
lanes hold a token's key, `VEC` times 8 dimensions each; a warp has 32 / `LANES` tokens side by side and `U`
of those behind each other in flight. Each lane keeps a softmax of its own, of powers of two; lanes, warps
and blocks are merged at the end, blocks by the one that is done last, in an order that does not depend on
which that is.

`cache.py` reads the cache. With `LATENT`, values are the first `VD` dimensions of the keys.

Dao et al. 2022, "FlashAttention"; Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

from ...compile.stage import registers, static
from ...ptx import (
    block_x,
    block_y,
    block_z,
    blocks_y,
    divide,
    exp2,
    load_float,
    load_float4,
    load_int,
    maximum,
    shared,
    shift_right,
    shuffle_xor,
    store_shared,
    thread,
)
from ..common.common import begin, tanh
from .cache import eight_floats, load_eight, page_of, piece_of
from .split_kv_merge import combine

# Constants of the launch. HD: dimensions of a head, VD of its values; DP and VP padded. CHUNKS: blocks that
# share a key-value head. SPAN: the fewest tokens a block takes. EMIT: the result in 8 bits, too.
G = HD = DP = VD = VP = LANES = VEC = U = WARPS = CHUNKS = PAGE = SPAN = SOFTCAP = SINKS = WINDOW = EMIT = 0
LATENT = 0
NOTHING = -1e30  # a maximum of no scores
HIDDEN = -2e30  # a score that does not count, even where there is no other


def attend(
    q,
    q_stride,
    keys,
    values,
    table,
    table_stride,
    sequences,
    positions,
    scale: float,
    softcap: float,
    window,
    sinks,
    partials,
    counters,
    out,
    out_stride,
    codes,
    heads,
    kv_heads,
):
    """out = softmax(scale · q·k) v. Grid: (key-value heads · CHUNKS, spans at most, rows), of 32 · WARPS
    threads.

    `scale` and `sinks` are times log2 e; so is `softcap`, and `scale` then divided by it. `partials` has
    room for [rows, heads, spans, VP + 4] float32, `counters` are zeros, one for each (row, block of heads),
    and are left so.
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    li = lane & (LANES - 1)
    sub = divide(lane, LANES)
    row = block_z()
    position = load_int(positions + 4 * row)
    pages = table + load_int(sequences + 4 * row) * table_stride
    low = 0
    if WINDOW:
        low = position - window + 1
        if low < 0:
            low = 0
    count = position + 1 - low
    span = divide(count + blocks_y() - 1, blocks_y())
    span = divide(span + SPAN - 1, SPAN) * SPAN
    live = divide(count + span - 1, span)
    if block_y() >= live:
        return
    first = low + block_y() * span
    end = first + span
    if end > position + 1:
        end = position + 1
    head = block_x() * G
    kv_head = divide(block_x(), CHUNKS)

    query = registers((G, VEC, 8), 0.0)
    offset = registers(VEC)
    for v in static(VEC):
        dim = 8 * (li + v * LANES)
        offset[v] = 0
        if dim < DP:
            offset[v] = dim
            for g in static(G):
                at = q + row * q_stride + 4 * ((head + g) * HD + dim)
                if HD == DP:
                    x = registers(8)
                    x[0], x[1], x[2], x[3] = load_float4(at)
                    x[4], x[5], x[6], x[7] = load_float4(at + 16)
                    for j in static(8):
                        query[g, v, j] = scale * x[j]
                else:
                    for j in static(8):
                        if dim + j < HD:
                            query[g, v, j] = scale * load_float(at + 4 * j)
    best = registers(G, NOTHING)
    total = registers(G, 0.0)
    acc = registers((G, VEC, 8), 0.0)
    for start in range(first + warp * (32 // LANES) * U, end, WARPS * (32 // LANES) * U):
        k = registers((U, VEC, 8))
        w = registers((U, VEC, 8))
        for u in static(U):
            at = start + u * (32 // LANES) + sub
            if at >= end:
                at = end - 1
            page = page_of(pages, at)
            slot = at & ((1 << PAGE) - 1)
            piece = piece_of(keys, page, kv_head, kv_heads)
            for v in static(VEC):
                k[u, v] = load_eight(piece, slot, offset[v])
            if not LATENT:
                piece = piece_of(values, page, kv_head, kv_heads)
                for v in static(VEC):
                    w[u, v] = load_eight(piece, slot, offset[v])
        score = registers((U, G), 0.0)
        for u in static(U):
            for v in static(VEC):
                f = registers(8)
                f[()] = eight_floats(*k[u, v])
                for g in static(G):
                    for j in static(8):
                        score[u, g] = score[u, g] + query[g, v, j] * f[j]
        for u in static(U):
            for g in static(G):
                for b in static(LANE_BITS):
                    score[u, g] = score[u, g] + shuffle_xor(score[u, g], 1 << b)
                if SOFTCAP:
                    score[u, g] = softcap * tanh(score[u, g])
                if start + u * (32 // LANES) + sub >= end:
                    score[u, g] = HIDDEN
        for g in static(G):
            highest = best[g]
            for u in static(U):
                highest = maximum(highest, score[u, g])
            shrink = exp2(best[g] - highest)
            best[g] = highest
            total[g] = total[g] * shrink
            for u in static(U):
                score[u, g] = exp2(score[u, g] - highest)
                total[g] = total[g] + score[u, g]
            for v in static(VEC):
                for j in static(8):
                    acc[g, v, j] = acc[g, v, j] * shrink
        for u in static(U):
            for v in static(VEC):
                f = registers(8)
                if LATENT:
                    f[()] = eight_floats(*k[u, v])
                else:
                    f[()] = eight_floats(*w[u, v])
                for g in static(G):
                    for j in static(8):
                        acc[g, v, j] = acc[g, v, j] + score[u, g] * f[j]

    # The tokens that lanes have side by side, then the warps.
    for b in static(LANE_BITS, 5):
        for g in static(G):
            other = shuffle_xor(best[g], 1 << b)
            highest = maximum(best[g], other)
            mine = exp2(best[g] - highest)
            theirs = exp2(other - highest)
            best[g] = highest
            total[g] = total[g] * mine + shuffle_xor(total[g], 1 << b) * theirs
            for v in static(VEC):
                for j in static(8):
                    acc[g, v, j] = acc[g, v, j] * mine + shuffle_xor(acc[g, v, j], 1 << b) * theirs
    if sub == 0:
        for g in static(G):
            to = shared() + 4 * (warp * G + g) * (VP + 2)
            if li == 0:
                store_shared(to + 4 * VP, best[g])
                store_shared(to + 4 * VP + 4, total[g])
            for v in static(VEC):
                dim = 8 * (li + v * LANES)
                if dim < VP:
                    for j in static(8):
                        store_shared(to + 4 * (dim + j), acc[g, v, j])
    combine(row, head, heads, live, sinks, partials, counters, out, out_stride, codes)


LANE_BITS = 0  # log2 of LANES, another constant
