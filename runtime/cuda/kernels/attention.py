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

from ..ptx import (
    atomic_add,
    barrier,
    block_x,
    block_y,
    block_z,
    blocks_x,
    blocks_y,
    divide,
    exp2,
    fence,
    load_float,
    load_float4,
    load_int,
    load_shared,
    load_shared_int,
    load_weight,
    maximum,
    quotient,
    shared,
    shift_right,
    shuffle_xor,
    store_float,
    store_int,
    store_shared,
    store_shared_int,
    thread,
)
from ..stage import device, registers, static
from .cache import eight_floats, load_eight, page_of, piece_of
from .common import begin, emit_codes, tanh, warp_maximum, warp_sum

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
    barrier()
    flag = shared() + 4 * WARPS * G * (VP + 2)
    part = partials + 4 * ((row * heads + head) * blocks_y() + block_y()) * (VP + 4)
    for i in range(thread(), G * VP, 32 * WARPS):
        g = divide(i, VP)
        dim = i - g * VP
        highest = NOTHING
        for m in static(WARPS):
            highest = maximum(highest, load_shared(shared() + 4 * ((m * G + g) * (VP + 2) + VP)))
        sum_ = 0.0
        value = 0.0
        for m in static(WARPS):
            at = shared() + 4 * (m * G + g) * (VP + 2)
            share = exp2(load_shared(at + 4 * VP) - highest)
            sum_ = sum_ + share * load_shared(at + 4 * VP + 4)
            value = value + share * load_shared(at + 4 * dim)
        if live == 1:
            if SINKS:
                sink = load_weight(sinks + 4 * (head + g))
                above = maximum(highest, sink)
                value = value * exp2(highest - above)
                sum_ = sum_ * exp2(highest - above) + exp2(sink - above)
            finish(
                out + row * out_stride,
                codes,
                row,
                heads,
                head + g,
                dim,
                quotient(value, sum_),
            )
        else:
            to = part + 4 * g * blocks_y() * (VP + 4)
            store_float(to + 4 * dim, value)
            if dim == 0:
                store_float(to + 4 * VP, highest)
                store_float(to + 4 * VP + 4, sum_)
    if live == 1:
        return
    fence()
    barrier()
    counter = counters + 4 * (row * blocks_x() + block_x())
    if thread() == 0:
        store_shared_int(flag, atomic_add(counter, 1))
    barrier()
    if load_shared_int(flag) != live - 1:
        return
    fence()
    if thread() == 0:
        store_int(counter, 0)
    part = partials + 4 * (row * heads + head) * blocks_y() * (VP + 4)
    for i in range(thread(), G * live, 32 * WARPS):
        g = divide(i, live)
        at = part + 4 * (g * blocks_y() + i - g * live) * (VP + 4) + 4 * VP
        store_shared(shared() + 8 * i, load_float(at))
        store_shared(shared() + 8 * i + 4, load_float(at + 4))
    barrier()
    for g in range(warp, G, WARPS):  # each span's share of the result, divided by the sum
        held = shared() + 8 * g * live
        highest = NOTHING
        for m in range(lane, live, 32):
            highest = maximum(highest, load_shared(held + 8 * m))
        highest = warp_maximum(highest)
        sum_ = 0.0
        if SINKS:
            sink = load_weight(sinks + 4 * (head + g))
            highest = maximum(highest, sink)
            if lane == 0:
                sum_ = exp2(sink - highest)
        for m in range(lane, live, 32):
            sum_ = sum_ + exp2(load_shared(held + 8 * m) - highest) * load_shared(held + 8 * m + 4)
        sum_ = warp_sum(sum_)
        for m in range(lane, live, 32):
            store_shared(held + 8 * m, quotient(exp2(load_shared(held + 8 * m) - highest), sum_))
    barrier()
    results = shared() + 8 * G * blocks_y()
    for i in range(4 * thread(), G * VP, 128 * WARPS):
        g = divide(i, VP)
        source = part + 4 * (g * blocks_y() * (VP + 4) + i - g * VP)
        value = registers(4, 0.0)
        for start in range(0, live, 8):
            x = registers((8, 4))
            for u in static(8):
                m = start + u
                if m >= live:
                    m = live - 1
                x[u, 0], x[u, 1], x[u, 2], x[u, 3] = load_float4(source + 4 * m * (VP + 4))
            for u in static(8):
                share = 0.0
                if start + u < live:
                    share = load_shared(shared() + 8 * (g * live + start + u))
                for j in static(4):
                    value[j] = value[j] + share * x[u, j]
        for j in static(4):
            store_shared(results + 4 * (i + j), value[j])
    barrier()
    for i in range(thread(), G * VP, 32 * WARPS):
        g = divide(i, VP)
        to = out + row * out_stride
        finish(to, codes, row, heads, head + g, i - g * VP, load_shared(results + 4 * i))


@device
def finish(out, codes, row, heads, head, dim, value):
    """A result into its row, and a warp's 32 of them in 8 bits."""
    i = head * VD + dim
    if dim < VD:
        store_float(out + 4 * i, value)
    if EMIT:
        emit_codes(codes, heads * VD // 32, row, i, value)


LANE_BITS = 0  # log2 of LANES, another constant
