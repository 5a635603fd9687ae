"""Attention over the paged cache for single rows, as in `attention.py`, on tensor cores.

The up to 16 query heads of a block are the rows of a product with 16 tokens at a time, a warp's tile.
A warp brings keys and values of its tiles into shared memory by itself, `STAGES` - 1 tiles ahead; the warps
of a block take tiles in turn and meet at the end. Rows of shared memory as in `prompt_attention.py`.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    block_z,
    blocks_y,
    commit_copies,
    copy_async,
    div_u32,
    exp2,
    launch_dependents,
    ldmatrix,
    ldmatrix_transposed,
    load_float2,
    load_int,
    load_shared,
    maximum,
    mma_f16,
    pack_f16,
    shared,
    shift_right,
    shuffle_xor,
    store_shared,
    store_shared_int4,
    thread,
    wait_copies,
    wait_copies_all_but_1,
    wait_for_grid,
    warp_barrier,
)
from ..common.common import tanh
from .cache import load_eight, page_of, piece_of, store_cached
from .prefill import place, store_halves
from .prepare_qk import bring_head, prepared
from .split_kv_merge import combine

# Constants of the launch, as in attention.py and prompt_attention.py. G: heads of a block, 16 at most.
# STAGES: 2 or 3 tiles that a warp has room for. ALONE: the step has a single row, so that what the cache has
# of tokens before it was there before the step; it is asked for before the launches in front are done.
# PREPARE: then this kernel also does what `rotate.prepare` does: each block for its queries, and the one
# whose part of the context ends with this row for its key and value.
G = HD = KV = CHUNKS = STAGES = WARPS = SOFTCAP = WINDOW = ALONE = PREPARE = Q_NORM = K_NORM = PAGE = PDL = 0
NOTHING = -1e30
HIDDEN = -2e30


@device
def fetch_tile(stage, keys, values, pages, tile, end, position, kv_head, kv_heads):
    """Begin to bring the keys and values of a tile, if it is in front of `end`; zeros behind `position`."""
    if tile < end:
        page = load_int(pages + 4 * (tile >> 2))
        keys = piece_of(keys, page, kv_head, kv_heads)
        values = piece_of(values, page, kv_head, kv_heads)
        for i in range(thread() & 31, 2 * HD, 32):
            row = div_u32(i, HD // 8)
            piece = i - row * (HD // 8)
            slot = 16 * (tile & 3) + row
            to = stage + place(row, piece)
            inside = 16
            if 16 * tile + row > position:
                inside = 0
            if KV == 16:
                copy_async(to, keys + 2 * (slot * HD + 8 * piece), inside)
                copy_async(to + 32 * HD, values + 2 * (slot * HD + 8 * piece), inside)
            elif inside > 0:
                store_halves(to, *load_eight(keys, slot, 8 * piece))
                store_halves(to + 32 * HD, *load_eight(values, slot, 8 * piece))
            else:
                store_shared_int4(to, 0, 0, 0, 0)
                store_shared_int4(to + 32 * HD, 0, 0, 0, 0)
    commit_copies()


def attend_group(
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
    k,
    v,
    q_norm,
    k_norm,
    eps: float,
    pairs,
    angles,
):
    """out = softmax(scale · q·k) v; grid and arguments as for `attention.attend`. Pages have 64 tokens.

    With PREPARE q, k and v are as the products in front have left them.
    """
    if PDL:
        launch_dependents()
    if PDL and not ALONE:
        wait_for_grid()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    row = block_z()
    position = load_int(positions + 4 * row)
    pages = table + load_int(sequences + 4 * row) * table_stride
    low = 0
    if WINDOW:
        low = position - window + 1
        if low < 0:
            low = 0
    first = low >> 4
    count = (position >> 4) + 1 - first
    span = div_u32(count + blocks_y() - 1, blocks_y())
    span = (span + WARPS - 1) // WARPS * WARPS
    live = div_u32(count + span - 1, span)
    if block_y() >= live:
        return
    first = first + block_y() * span
    end = first + span
    if end > (position >> 4) + 1:
        end = (position >> 4) + 1
    head = block_x() * G
    kv_head = div_u32(block_x(), CHUNKS)
    mine = shared() + warp * (STAGES * 64 * HD)
    first = first + warp
    older = position >> 4 if ALONE else 0  # tiles in front of this have only tokens from before the step
    if ALONE:
        for s in static(STAGES - 1):
            tile = first + s * WARPS
            if tile < older:
                fetch_tile(mine + s * 64 * HD, keys, values, pages, tile, end, position, kv_head, kv_heads)
        if PDL:
            wait_for_grid()
    fresh = shared() + WARPS * STAGES * 64 * HD
    if PREPARE:
        items = G
        if end > position >> 4:
            items = G + 2
        for item in range(warp, items, WARPS):
            kind = 0
            source = q + 4 * (head + item) * HD
            if item >= G:
                kind = item - G + 1
                source = k + 4 * kv_head * HD
                if kind == 2:
                    source = v + 4 * kv_head * HD
            held = fresh + 4 * item * HD
            weights = q_norm + 4 * HD * (head + item) * (Q_NORM - 1)
            bring_head(source, held, kind, weights, k_norm + 4 * HD * kv_head * (K_NORM - 1), eps)
            if kind == 0:
                value = registers((HD + 31) // 32, 0.0)
                for j in static((HD + 31) // 32):
                    if 32 * j + lane < HD:
                        value[j] = prepared(held, 32 * j + lane, 0, pairs, angles)
                warp_barrier()
                for j in static((HD + 31) // 32):
                    if 32 * j + lane < HD:
                        store_shared(held + 4 * (32 * j + lane), value[j])
            else:
                page = page_of(pages, position)
                piece = piece_of(keys if kind == 1 else values, page, kv_head, kv_heads)
                for dim in range(lane, HD, 32):
                    entry = prepared(held, dim, kind, pairs, angles)
                    store_cached(piece, position & ((1 << PAGE) - 1), dim, entry)
        barrier()
    for s in static(STAGES - 1):
        tile = first + s * WARPS
        if tile >= older:
            fetch_tile(mine + s * 64 * HD, keys, values, pages, tile, end, position, kv_head, kv_heads)
    query = registers((HD // 16, 4))
    for k in static(HD // 16):
        for i in static(4):
            query[k, i] = 0
            if i % 2 == 0 or G > 8:
                of_head = (lane >> 2) + 8 * (i % 2)
                if of_head < G:
                    dim = 16 * k + 2 * (lane & 3) + 8 * (i // 2)
                    if PREPARE:
                        at = fresh + 4 * (of_head * HD + dim)
                        a, b = load_shared(at), load_shared(at + 4)
                    else:
                        a, b = load_float2(q + row * q_stride + 4 * ((head + of_head) * HD + dim))
                    query[k, i] = pack_f16(a * scale, b * scale)
    best = registers(2, NOTHING)
    total = registers(2, 0.0)
    acc = registers((HD // 8, 4), 0.0)
    stage = 0
    for tile in range(first, end, WARPS):
        if STAGES == 3:
            wait_copies_all_but_1()
        else:
            wait_copies()
        warp_barrier()
        held = mine + stage * (64 * HD)
        stage = stage + 1
        if stage == STAGES:
            stage = 0
        following = stage + STAGES - 2
        if following >= STAGES:
            following = following - STAGES
        fetch_tile(
            mine + following * (64 * HD),
            keys,
            values,
            pages,
            tile + (STAGES - 1) * WARPS,
            end,
            position,
            kv_head,
            kv_heads,
        )
        score = registers((2, 4), 0.0)
        for k in static(HD // 16):
            b = registers((2, 2))
            b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix(
                held + place((lane & 7) + (lane >> 4) * 8, 2 * k + ((lane >> 3) & 1))
            )
            for n in static(2):
                score[n] = mma_f16(*query[k], *b[n], *score[n])
        for n in static(2):
            for i in static(4):
                if SOFTCAP:
                    score[n, i] = softcap * tanh(score[n, i])
                token = 16 * tile + 8 * n + 2 * (lane & 3) + i % 2
                if token > position:
                    score[n, i] = HIDDEN
                if WINDOW:
                    if token < low:
                        score[n, i] = HIDDEN
        shrink = registers(2)
        for r in static(2):
            highest = best[r]
            for n in static(2):
                highest = maximum(highest, maximum(score[n, 2 * r], score[n, 2 * r + 1]))
            highest = maximum(highest, shuffle_xor(highest, 1))
            highest = maximum(highest, shuffle_xor(highest, 2))
            shrink[r] = exp2(best[r] - highest)
            best[r] = highest
            total[r] = total[r] * shrink[r]
            for n in static(2):
                for i in static(2):
                    score[n, 2 * r + i] = exp2(score[n, 2 * r + i] - highest)
                    total[r] = total[r] + score[n, 2 * r + i]
        p = registers(4)
        p[0] = pack_f16(score[0, 0], score[0, 1])
        p[1] = pack_f16(score[0, 2], score[0, 3])
        p[2] = pack_f16(score[1, 0], score[1, 1])
        p[3] = pack_f16(score[1, 2], score[1, 3])
        for n in static(HD // 8):
            for i in static(4):
                acc[n, i] = acc[n, i] * shrink[i // 2]
        for n in static(HD // 16):
            b = registers((2, 2))
            b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix_transposed(
                held + 32 * HD + place((lane & 7) + ((lane >> 3) & 1) * 8, 2 * n + (lane >> 4))
            )
            for m in static(2):
                acc[2 * n + m] = mma_f16(*p[()], *b[m], *acc[2 * n + m])
    wait_copies()
    barrier()
    for r in static(2):
        total[r] = total[r] + shuffle_xor(total[r], 1)
        total[r] = total[r] + shuffle_xor(total[r], 2)
        of_head = (lane >> 2) + 8 * r
        if of_head < G:
            to = shared() + 4 * (warp * G + of_head) * (HD + 2)
            if (lane & 3) == 0:
                store_shared(to + 4 * HD, best[r])
                store_shared(to + 4 * HD + 4, total[r])
            for n in static(HD // 8):
                for i in static(2):
                    store_shared(to + 4 * (8 * n + 2 * (lane & 3) + i), acc[n, 2 * r + i])
    combine(row, head, heads, live, sinks, partials, counters, out, out_stride, codes)
