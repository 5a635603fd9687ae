"""Latent attention over the paged cache on tensor cores: keys of many dimensions (576 of DeepSeek's models),
whose first ones (512) are the values, for all query heads the same.

A block takes up to 16 · `MT` heads of a row and a span of its context, a tile of `T` tokens at a time, which
all warps bring into shared memory together, the next one while the present one is used. Warps share its
work in two ways. For the scores, a warp has 16 heads, whose queries stay in its registers, and
`T` · `MT` / `WARPS` tokens; for the result it has all heads, and its part of the values' dimensions. In
between, probabilities go through shared memory, in halves. Of a tile of 64 tokens and 32 heads that makes
144 KB read for scores, 64 KB for values, 4 KB written and 32 KB read of probabilities. If warps had shared
the dimensions of the scores instead, keys would be read once, 72 KB, but float32 sums of 8 warps, 64 KB, be
written and read.

Rows of shared memory as in `prompt_attention.py`. What blocks have of a row is merged by another launch:
with 512 dimensions of 32 heads it is too much for a single block.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    block_z,
    blocks_x,
    blocks_y,
    commit_copies,
    copy_async,
    div_f32,
    div_u32,
    exp2,
    launch_dependents,
    ldmatrix,
    ldmatrix_transposed,
    load_constant,
    load_float,
    load_float4,
    load_int,
    load_shared,
    load_shared4,
    maximum,
    mma_f16,
    pack_f16,
    shared,
    shift_right,
    shuffle_xor,
    store_float,
    store_shared,
    store_shared_int,
    store_shared_int4,
    thread,
    wait_copies,
    wait_for_grid,
)
from ..common.common import begin, tanh, warp_maximum, warp_sum
from .cache import load_eight, piece_of
from .prefill import place, store_halves

# Constants of the launch, as in attention.py and prompt_attention.py. G: heads of a block. T: tokens of a
# tile, 32 or 64. NT: 8 tokens of a warp's scores each, T · MT / (8 · WARPS), 1 or 2. GROUPS: warps with the
# same heads, WARPS / MT, a multiple of 4. VP: dimensions of a value. UNITS: 16 of them each; UW of these are
# a warp's. DIRECT: there is one span, and nothing to merge. PROMPT: a step's rows are
# consecutive positions of a sequence; their heads, one row's behind the other's, are dealt to blocks.
# KEPT: 16 dimensions each of the queries that stay in registers. ALONE: as in group_attention.py.
G = HD = VP = KV = MT = T = NT = GROUPS = UNITS = UW = WARPS = SOFTCAP = WINDOW = SINKS = DIRECT = 0
THREADS = PROMPT = DP = TURN = KEPT = ALONE = PDL = 0
NOTHING = -1e30
HIDDEN = -2e30


@device
def seen_from(position, window):
    """The first position that one sees."""
    low = 0
    if WINDOW:
        low = position - window + 1
        if low < 0:
            low = 0
    return low


@device
def row_of(row, head, heads):
    """The step's row that the head `head`, counted through all rows with PROMPT, belongs to."""
    if PROMPT:
        row = div_u32(head, heads)
    return row


@device
def head_of(head, heads):
    """Which of its row's heads it is."""
    if PROMPT:
        head = head - div_u32(head, heads) * heads
    return head


@device
def fetch_tile(stage, keys, page, tile, position):
    """Begin to bring a tile's keys; zeros behind `position`."""
    keys = piece_of(keys, page, 0, 1)
    lane = thread() & 31
    for u in static(T // (4 * WARPS)):  # 8 lanes take a row
        row = 4 * WARPS * u + div_u32(thread(), 8)
        slot = T * (tile & (64 // T - 1)) + row
        to = stage + place(row, lane & 7)
        source = keys + 2 * (slot * DP + 8 * (lane & 7))
        inside = 16
        if T * tile + row > position:
            inside = 0
        for j in static((HD + 63) // 64):
            if HD >= 64 * j + 64 or 64 * j + 8 * (lane & 7) < HD:
                if KV == 16:
                    copy_async(to + 128 * j, source + 128 * j, inside)
                elif inside > 0:
                    store_halves(to + 128 * j, *load_eight(keys, slot, 64 * j + 8 * (lane & 7)))
                else:
                    store_shared_int4(to + 128 * j, 0, 0, 0, 0)


@device
def place_of_probabilities(row, piece):
    """Where 8 tokens' probabilities of a head lie."""
    return 2 * T * row + 16 * (piece ^ ((row >> (64 // T - 1)) & (T // 8 - 1)))


@device
def load_query(queries, k):
    """Dimensions 16 k … of a warp's queries, of which `queries` is where the lane's row begins."""
    lane = thread() & 31
    return ldmatrix(queries + 16 * ((2 * k + (lane >> 4)) ^ (lane & TURN)))


def attend_latent(
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
    out,
    out_stride,
    heads,
    rows,
):
    """Parts of softmax(scale · q·k) v, or with DIRECT `out` itself. Grid: (heads / G, spans at most,
    rows), or with PROMPT (rows · heads / (16 · MT)), of 32 · WARPS threads.

    Arguments as for `attention.attend`; `values` are not looked at. Pages have 64 tokens. `partials` is as
    `spans.combine` leaves it, for `merge_spans`: of each row, head and span VP values, to be divided by their
    sum; the highest score; the sum.
    """
    if PDL:
        launch_dependents()
    if PDL and not ALONE:
        wait_for_grid()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    head = block_x() * G
    row = block_z()
    if PROMPT:
        head = (blocks_x() - 1 - block_x()) * (16 * MT)  # the longest contexts first
    position = load_int(positions + 4 * row)
    lowest = position  # the first that a row of this block has
    if PROMPT:
        lowest = position + div_u32(head, heads)
        position = position + div_u32(head + 16 * MT - 1, heads)
        if position > load_int(positions + 4 * (rows - 1)):
            position = load_int(positions + 4 * (rows - 1))
    pages = table + load_int(sequences + 4 * row) * table_stride
    low = seen_from(lowest, window)
    count = div_u32(position, T) + 1 - div_u32(low, T)
    span = div_u32(count + blocks_y() - 1, blocks_y())
    first = div_u32(low, T) + block_y() * span
    end = first + span
    if end > div_u32(position, T) + 1:
        end = div_u32(position, T) + 1
    if first >= end:
        return
    live = G
    if PROMPT:
        live = rows * heads - head
    queries = shared() + 4 * T * HD
    probabilities = queries + 32 * MT * HD
    tops = probabilities + 32 * MT * T
    page = load_int(pages + 4 * div_u32(first * T, 64))
    if ALONE:
        older = div_u32(position, T)  # tiles in front of this have only tokens from before the step
        if first < older:
            fetch_tile(shared(), keys, page, first, position)
        if PDL:
            wait_for_grid()
        if first >= older:
            fetch_tile(shared(), keys, page, first, position)
    else:
        fetch_tile(shared(), keys, page, first, position)
    commit_copies()
    following = first + 1
    if following >= end:
        following = first
    page = load_int(pages + 4 * div_u32(following * T, 64))

    for i in range(thread(), 2 * MT * HD, 32 * WARPS):
        of_head = div_u32(i, HD // 8)
        piece = i - of_head * (HD // 8)
        x = registers(8, 0.0)
        if of_head < live:
            line = row_of(row, head + of_head, heads)
            source = q + line * q_stride + 4 * (head_of(head + of_head, heads) * HD + 8 * piece)
            x[0], x[1], x[2], x[3] = load_float4(source)
            x[4], x[5], x[6], x[7] = load_float4(source + 16)
        store_shared_int4(
            queries + place(of_head, piece),
            pack_f16(x[0] * scale, x[1] * scale),
            pack_f16(x[2] * scale, x[3] * scale),
            pack_f16(x[4] * scale, x[5] * scale),
            pack_f16(x[6] * scale, x[7] * scale),
        )
    barrier()
    own = warp & (MT - 1)  # which 16 of the heads
    group = div_u32(warp, MT)  # which of the tokens
    own_queries = queries + 2 * HD * (16 * own + (lane & 7) + ((lane >> 3) & 1) * 8)
    query = registers((HD // 16, 4))
    for k in static(KEPT):
        query[k] = load_query(own_queries, k)
    unit = registers(UW)
    for u in static(UW):
        unit[u] = warp * UW + u
        if UNITS < UW * WARPS:
            if unit[u] >= UNITS:
                unit[u] = UNITS - 1
    seen = registers(2, position)  # of the heads of this lane's scores
    if PROMPT:
        for r in static(2):
            seen[r] = load_int(positions) + div_u32(head + 16 * own + 8 * r + (lane >> 2), heads)
    best = registers((MT, 2), NOTHING)
    total = registers(2, 0.0)
    acc = registers((MT, 2 * UW, 4), 0.0)
    held = shared()
    other = shared() + 2 * T * HD
    for tile in range(first, end):
        wait_copies()
        barrier()
        if tile + 1 < end:
            fetch_tile(other, keys, page, tile + 1, position)
            following = tile + 2
            if following >= end:
                following = tile
            page = load_int(pages + 4 * div_u32(following * T, 64))
        commit_copies()
        # Sums of every few steps, so that products wait less for each other.
        part = registers((4 // NT, NT, 4), 0.0)
        b = registers((2, 2))
        for j in static(0, 4, 3 - NT):  # which of the pieces in 128 bytes
            if NT == 2:
                source = held + place(16 * group + (lane & 7) + (lane >> 4) * 8, 2 * j + ((lane >> 3) & 1))
            else:
                source = held + place(8 * group + (lane & 7), 2 * j + (lane >> 3))
            for k in static(j, HD // 16, 4):
                if NT == 1 and HD // 16 == k + 1:
                    source = held + place(8 * group + (lane & 7), 2 * j + ((lane >> 3) & 1))
                b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix(source + 128 * (k // 4))
                if k >= KEPT:
                    query[k] = load_query(own_queries, k)
                if NT == 1 and HD // 16 > k + 1 and k + 1 >= KEPT:
                    query[k + 1] = load_query(own_queries, k + 1)
                for n in static(2):
                    if NT == 2:
                        part[k // 4 % 2, n] = mma_f16(*query[k], *b[n], *part[k // 4 % 2, n])
                    elif HD // 16 > k + n:
                        part[2 * (k // 4 % 2) + n, 0] = mma_f16(
                            *query[k + n], *b[n], *part[2 * (k // 4 % 2) + n, 0]
                        )
        score = registers((NT, 4))
        for n in static(NT):
            for i in static(4):
                score[n, i] = part[0, n, i] + part[1, n, i]
                if NT == 1:
                    score[n, i] = score[n, i] + (part[2, n, i] + part[3, n, i])
                if SOFTCAP:
                    score[n, i] = softcap * tanh(score[n, i])
        if T * tile + T - 1 > lowest or WINDOW:
            for n in static(NT):
                for i in static(4):
                    token = T * tile + 8 * (NT * group + n) + 2 * (lane & 3) + i % 2
                    if token > seen[i // 2]:
                        score[n, i] = HIDDEN
                    if WINDOW:
                        if token <= seen[i // 2] - window:
                            score[n, i] = HIDDEN
        for r in static(2):
            highest = NOTHING
            for n in static(NT):
                highest = maximum(highest, maximum(score[n, 2 * r], score[n, 2 * r + 1]))
            highest = maximum(highest, shuffle_xor(highest, 1))
            highest = maximum(highest, shuffle_xor(highest, 2))
            if (lane & 3) == 0:
                store_shared(tops + 4 * ((16 * own + 8 * r + (lane >> 2)) * GROUPS + group), highest)
        barrier()
        shrink = registers((MT, 2))
        for m in static(MT):
            for r in static(2):
                highest = best[m, r]
                for j in static(GROUPS // 4):
                    x = registers(4)
                    x[()] = load_shared4(tops + 4 * ((16 * m + 8 * r + (lane >> 2)) * GROUPS + 4 * j))
                    for i in static(4):
                        highest = maximum(highest, x[i])
                shrink[m, r] = exp2(best[m, r] - highest)
                best[m, r] = highest
        for r in static(2):
            highest = best[0, r]
            grown = shrink[0, r]
            if MT == 2:
                if own == 1:
                    highest = best[MT - 1, r]
                    grown = shrink[MT - 1, r]
            total[r] = total[r] * grown
            of_head = 16 * own + 8 * r + (lane >> 2)
            for n in static(NT):
                even = exp2(score[n, 2 * r] - highest)
                odd = exp2(score[n, 2 * r + 1] - highest)
                total[r] = total[r] + even + odd
                to = probabilities + place_of_probabilities(of_head, NT * group + n)
                store_shared_int(to + 4 * (lane & 3), pack_f16(even, odd))
        for m in static(MT):
            for n in static(2 * UW):
                for i in static(4):
                    acc[m, n, i] = acc[m, n, i] * shrink[m, i // 2]
        barrier()
        value = registers(UW)
        for u in static(UW):
            value[u] = held + place((lane & 7) + ((lane >> 3) & 1) * 8, 2 * unit[u] + (lane >> 4))
        for k in static(T // 16):
            p = registers((MT, 4))
            for m in static(MT):
                of_head = 16 * m + (lane & 7) + ((lane >> 3) & 1) * 8
                p[m] = ldmatrix(probabilities + place_of_probabilities(of_head, 2 * k + (lane >> 4)))
            for u in static(UW):
                b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix_transposed(value[u] + 32 * HD * k)
                for m in static(MT):
                    for n in static(2):
                        acc[m, 2 * u + n] = mma_f16(*p[m], *b[n], *acc[m, 2 * u + n])
        following = held
        held = other
        other = following
    barrier()
    for r in static(2):
        total[r] = total[r] + shuffle_xor(total[r], 1)
        total[r] = total[r] + shuffle_xor(total[r], 2)
        if (lane & 3) == 0:
            store_shared(tops + 4 * ((16 * own + 8 * r + (lane >> 2)) * GROUPS + group), total[r])
    barrier()
    for m in static(MT):
        for r in static(2):
            of_head = 16 * m + 8 * r + (lane >> 2)
            if of_head < live:
                sum_ = 0.0
                for j in static(GROUPS):
                    sum_ = sum_ + load_shared(tops + 4 * (of_head * GROUPS + j))
                to = partials + 4 * ((row * heads + head + of_head) * blocks_y() + block_y()) * (VP + 4)
                share = 1.0
                if DIRECT:
                    which = head_of(head + of_head, heads)
                    to = out + row_of(row, head + of_head, heads) * out_stride + 4 * which * VP
                    share = div_f32(1.0, sum_)
                    if SINKS:
                        sink = load_constant(sinks + 4 * which)
                        highest = maximum(best[m, r], sink)
                        share = exp2(best[m, r] - highest)
                        share = div_f32(share, sum_ * share + exp2(sink - highest))
                elif warp == 0 and (lane & 3) == 0:
                    store_float(to + 4 * VP, best[m, r])
                    store_float(to + 4 * VP + 4, sum_)
                for u in static(UW):
                    if warp * UW + u < UNITS:
                        for n in static(2):
                            for i in static(2):
                                dim = 16 * unit[u] + 8 * n + 2 * (lane & 3) + i
                                store_float(to + 4 * dim, acc[m, 2 * u + n, 2 * r + i] * share)


def merge_spans(partials, positions, window, sinks, out, out_stride, heads, spans):
    """What the spans of a row's context have become, into `out`. Grid: (heads, rows), of THREADS threads.

    THREADS is a multiple of 32, VP / 4 at least. `spans` are those of the launch of `attend_latent`, 64 at
    most.
    """
    begin()
    lane = thread() & 31
    row = block_y()
    head = block_x()
    position = load_int(positions + 4 * row)
    low = seen_from(position, window)
    count = div_u32(position, T) + 1 - div_u32(low, T)
    span = div_u32(count + spans - 1, spans)
    live = div_u32(count + span - 1, span)
    part = partials + 4 * (row * heads + head) * spans * (VP + 4)
    if thread() < 32:  # each span's share of the result
        top = registers(2, NOTHING)
        sums = registers(2, 0.0)
        for j in static(2):
            if 32 * j + lane < live:
                at = part + 4 * ((32 * j + lane) * (VP + 4) + VP)
                top[j] = load_float(at)
                sums[j] = load_float(at + 4)
        highest = warp_maximum(maximum(top[0], top[1]))
        sum_ = 0.0
        if SINKS:
            sink = load_constant(sinks + 4 * head)
            highest = maximum(highest, sink)
            if lane == 0:
                sum_ = exp2(sink - highest)
        for j in static(2):
            top[j] = exp2(top[j] - highest)
            sum_ = sum_ + top[j] * sums[j]
        sum_ = warp_sum(sum_)
        for j in static(2):
            store_shared(shared() + 4 * (32 * j + lane), div_f32(top[j], sum_))
    barrier()
    # Threads have four dimensions each, of every so many spans.
    results = shared() + 256
    which = div_u32(thread(), VP // 4)
    dim = 4 * (thread() - which * (VP // 4))
    if which < THREADS // (VP // 4):
        value = registers(4, 0.0)
        for start in range(which, live, 8 * (THREADS // (VP // 4))):
            x = registers((8, 4))
            for u in static(8):
                m = start + u * (THREADS // (VP // 4))
                if m >= live:
                    m = start
                x[u, 0], x[u, 1], x[u, 2], x[u, 3] = load_float4(part + 4 * (m * (VP + 4) + dim))
            for u in static(8):
                share = 0.0
                if start + u * (THREADS // (VP // 4)) < live:
                    share = load_shared(shared() + 4 * (start + u * (THREADS // (VP // 4))))
                for j in static(4):
                    value[j] = value[j] + share * x[u, j]
        for j in static(4):
            store_shared(results + 4 * (which * VP + dim + j), value[j])
    barrier()
    for i in range(thread(), VP, THREADS):
        value = 0.0
        for m in static(THREADS // (VP // 4)):
            value = value + load_shared(results + 4 * (m * VP + i))
        store_float(out + row * out_stride + 4 * (head * VP + i), value)
