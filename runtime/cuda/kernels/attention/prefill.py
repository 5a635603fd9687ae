"""Attention of a prompt's rows over the paged cache, on tensor cores.

A block takes 64 rows, consecutive positions of one sequence, of one head; a warp takes 16 of them. Keys and
values come into shared memory a page of 64 tokens at a time, the next one while the present one is used.
Scores, their softmax of powers of two, and the result never leave the registers; nor do queries, if heads
are not too large. Rows of shared memory have their 16-byte pieces exchanged by the row's number, as in
`tiled.py`.

Dao et al. 2022, "FlashAttention".
"""

from __future__ import annotations

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
    shuffle_xor,
    store_float,
    store_shared_int4,
    thread,
    wait_copies,
)
from ..common.common import begin, tanh
from .cache import eight_floats, load_eight, piece_of

# Constants of the launch. HD: dimensions of a head, a multiple of 16. GROUP: heads that share a key-value
# head. TURN: how many pieces of a row are exchanged, less 1. HELD: queries stay in registers.
HD = GROUP = KV = TURN = HELD = WINDOW = SOFTCAP = SINKS = 0
HIDDEN = -1e30


@device
def place(row, piece):
    """Where a 16-byte piece of a row of 64 lies."""
    return 2 * HD * row + 16 * (piece ^ (row & TURN))


@device
def fetch(stage, keys, values, page, kv_head, kv_heads):
    """Begin to bring a page's keys and values; codes come as halves."""
    keys = piece_of(keys, page, kv_head, kv_heads)
    values = piece_of(values, page, kv_head, kv_heads)
    for i in range(thread(), 8 * HD, 128):
        row = div_u32(i, HD // 8)
        piece = i - row * (HD // 8)
        to = stage + place(row, piece)
        if KV == 16:
            copy_async(to, keys + 16 * i, 16)
            copy_async(to + 128 * HD, values + 16 * i, 16)
        else:
            store_halves(to, *load_eight(keys, row, 8 * piece))
            store_halves(to + 128 * HD, *load_eight(values, row, 8 * piece))
    commit_copies()


@device
def store_halves(to, a, b, c, d, e, f, g, h):
    """What `load_eight` gave, into shared memory."""
    x = registers(8)
    x[()] = eight_floats(a, b, c, d, e, f, g, h)
    store_shared_int4(
        to,
        pack_f16(x[0], x[1]),
        pack_f16(x[2], x[3]),
        pack_f16(x[4], x[5]),
        pack_f16(x[6], x[7]),
    )


def attend_prompt(
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
    out,
    out_stride,
    rows,
    kv_heads,
):
    """out = softmax(scale · q·k) v. Grid: (rows / 64, heads), of 128 threads.

    `scale`, `softcap` and `sinks` as for `attention.attend`. Pages have 64 tokens.
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    head = block_y()
    kv_head = div_u32(head, GROUP)
    first_row = block_x() * 64
    first = load_int(positions + 4 * first_row)
    pages = table + load_int(sequences) * table_stride
    last = first + 63
    if last > load_int(positions + 4 * (rows - 1)):
        last = load_int(positions + 4 * (rows - 1))
    at = 0
    if WINDOW:
        at = first - window + 1
        if at < 0:
            at = 0
        at = at >> 6
    end = (last >> 6) + 1
    fetch(shared() + (at & 1) * (256 * HD), keys, values, load_int(pages + 4 * at), kv_head, kv_heads)

    # Queries go into fragments, through the other stage's memory; or they stay in memory of their own.
    if HELD:
        staged = shared() + (1 - (at & 1)) * (256 * HD)
    else:
        staged = shared() + 512 * HD
    for i in range(thread(), 8 * HD, 128):
        row = div_u32(i, HD // 8)
        piece = i - row * (HD // 8)
        line = first_row + row
        if line >= rows:
            line = rows - 1
        source = q + line * q_stride + 4 * (head * HD + 8 * piece)
        a, b, c, d = load_float4(source)
        e, f, g, h = load_float4(source + 16)
        store_shared_int4(
            staged + place(row, piece),
            pack_f16(a * scale, b * scale),
            pack_f16(c * scale, d * scale),
            pack_f16(e * scale, f * scale),
            pack_f16(g * scale, h * scale),
        )
    barrier()
    query = registers((HD // 16, 4))
    own = 16 * warp + (lane & 7) + ((lane >> 3) & 1) * 8
    if HELD:
        for k in static(HD // 16):
            query[k] = ldmatrix(staged + place(own, 2 * k + (lane >> 4)))
        barrier()

    best = registers(2, HIDDEN)
    total = registers(2, 0.0)
    acc = registers((HD // 8, 4), 0.0)
    lowest = first + 16 * warp
    for page in range(at, end):
        stage = shared() + (page & 1) * (256 * HD)
        wait_copies()
        barrier()
        if page + 1 < end:
            following = load_int(pages + 4 * (page + 1))
            fetch(shared() + ((page + 1) & 1) * (256 * HD), keys, values, following, kv_head, kv_heads)
        score = registers((8, 4), 0.0)
        for k in static(HD // 16):
            b = registers((8, 2))
            for n in static(4):
                row = 16 * n + (lane & 7) + (lane >> 4) * 8
                b[2 * n, 0], b[2 * n, 1], b[2 * n + 1, 0], b[2 * n + 1, 1] = ldmatrix(
                    stage + place(row, 2 * k + ((lane >> 3) & 1))
                )
            if not HELD:
                query[k] = ldmatrix(staged + place(own, 2 * k + (lane >> 4)))
            for n in static(8):
                score[n] = mma_f16(*query[k], *b[n], *score[n])
        if SOFTCAP:
            for n in static(8):
                for i in static(4):
                    score[n, i] = softcap * tanh(score[n, i])
        if 64 * page + 63 > lowest or WINDOW:
            for n in static(8):
                for i in static(4):
                    token = 64 * page + 8 * n + 2 * (lane & 3) + i % 2
                    position = lowest + (lane >> 2) + 8 * (i // 2)
                    if token > position:
                        score[n, i] = HIDDEN * 2.0
                    if WINDOW:
                        if token <= position - window:
                            score[n, i] = HIDDEN * 2.0
        shrink = registers(2)
        for r in static(2):
            highest = best[r]
            for n in static(8):
                highest = maximum(highest, maximum(score[n, 2 * r], score[n, 2 * r + 1]))
            highest = maximum(highest, shuffle_xor(highest, 1))
            highest = maximum(highest, shuffle_xor(highest, 2))
            shrink[r] = exp2(best[r] - highest)
            best[r] = highest
            total[r] = total[r] * shrink[r]
            for n in static(8):
                for i in static(2):
                    score[n, 2 * r + i] = exp2(score[n, 2 * r + i] - highest)
                    total[r] = total[r] + score[n, 2 * r + i]
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
                    stage + 128 * HD + place(row, 2 * n + (lane >> 4))
                )
                for m in static(2):
                    acc[2 * n + m] = mma_f16(*p[()], *b[m], *acc[2 * n + m])
    for r in static(2):
        total[r] = total[r] + shuffle_xor(total[r], 1)
        total[r] = total[r] + shuffle_xor(total[r], 2)
        row = first_row + 16 * warp + (lane >> 2) + 8 * r
        if row < rows:
            if SINKS:
                sink = load_constant(sinks + 4 * head)
                highest = maximum(best[r], sink)
                shrunk = exp2(best[r] - highest)
                inverse = div_f32(shrunk, total[r] * shrunk + exp2(sink - highest))
            else:
                inverse = div_f32(1.0, total[r])
            to = out + row * out_stride + 4 * (head * HD + 2 * (lane & 3))
            for n in static(HD // 8):
                for i in static(2):
                    store_float(to + 32 * n + 4 * i, acc[n, 2 * r + i] * inverse)
