"""Products of a few rows of activations in 8 bits with block-quantised weights, on tensor cores.

A warp takes `M` tiles of 16 rows of weights (half of them of gate and half of up if `GATED`) and up to
`TOKENS` rows of activations, so that weights are read once for all of them; `KS` warps share the columns,
four blocks of 32 at a time. Lanes load and unpack a block each, lay the signed bytes down in shared memory of
the warp's own, as rows of 128 bytes whose 16-byte pieces are exchanged by the row's number, and fetch them
again as fragments; codes of 4 bits are packed on this way, and unpacked behind it. Both digits of the
activations are multiplied by themselves, in whole numbers; then a block's scales are applied.
"""

from __future__ import annotations

from ..ptx import (
    barrier,
    bits_and,
    bits_or,
    bits_xor,
    block_x,
    divide,
    let_next_start,
    load_float4,
    load_int4,
    load_matrices,
    mma_bytes,
    mma_bytes_16,
    shared,
    shift_right,
    shuffle,
    store_shared,
    store_shared_int4,
    thread,
    wait_for_grid,
    warp_barrier,
)
from ..stage import registers, static
from .common import codes_plane, scales_plane, two_digits
from .results import finish

# Constants of the launch. WARPS: of a block. EXACT: blocks fill the steps of all parts.
LOAD = UNPACK = FRAGMENT = finish
RAW = HALVES = MINIMUM = PACKED = M = KS = WARPS = GATED = TOKENS = EXACT = PDL = 0
TILE = 2048  # bytes of 16 rows of 128 weights


def matmul_few(
    weights,
    other,
    row_bytes,
    blocks,
    n_out,
    x,
    rows,
    partials,
    n_partials,
    inverse_width: float,
    eps: float,
    bias,
    out,
    out_stride,
    codes,
    norm_weight,
    out_partials,
):
    """out = x @ weightsᵀ, or f(x @ weightsᵀ) · (x @ otherᵀ). Grid: (outputs / (WARPS / KS · 16 · M / (1 +
    GATED)),)."""
    if PDL:
        let_next_start()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    team = divide(warp, KS)
    part = warp - team * KS
    quad = shift_right(lane, 2)
    sub = lane & 3
    outputs = (WARPS // KS) * (16 * M // (1 + GATED))
    first = block_x() * outputs + team * (16 * M // (1 + GATED)) + quad
    row = registers((M, 2))
    raw = registers((M, 2, RAW))
    chunks = (blocks + 3) // 4
    block = 4 * part + sub
    if not EXACT and block >= blocks:
        block = blocks - 1
    for m in static(M):
        for i in static(2):
            at = first + (16 * (m % (M // (1 + GATED))) + 8 * i)
            if at >= n_out:
                at = n_out - 1
            if m < M // (1 + GATED):
                row[m, i] = weights + at * row_bytes
            else:
                row[m, i] = other + at * row_bytes
            raw[m, i] = LOAD(row[m, i], blocks, block)
    if PDL:
        wait_for_grid()
    else:
        warp_barrier()
    acc = registers((M, TOKENS // 8, 4), 0.0)
    held = shared() + warp * (M * TILE)
    # Where this lane's blocks go (rows quad and quad + 8), and where its rows for load_matrices begin.
    if PACKED:  # rows of 64 bytes, two in 128
        line = shift_right(quad, 1)
        place = held + 128 * line + 16 * bits_xor(4 * (quad & 1) + sub, line)
        line = shift_right(lane & 15, 1)
        fetched = held + 128 * line
        turn = bits_xor(4 * (lane & 1) + shift_right(lane, 4), line & 3)
    else:
        place = held + 128 * quad
        fetched = held + 128 * (lane & 15)
        turn = bits_xor(shift_right(lane, 4), lane & 7)
    scales = x + 4 * codes_plane(blocks)
    for chunk in range(part, chunks, KS):
        block = 4 * chunk + sub
        inside = 1.0
        if not EXACT and block >= blocks:
            inside = 0.0
            block = blocks - 1
        a = registers((M, 2))
        b = registers((M, 2))
        a2 = registers((M, 2))
        b2 = registers((M, 2))
        for m in static(M):
            for i in static(2):
                w = registers(8)
                w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], a[m, i], b[m, i], a2[m, i], b2[m, i] = UNPACK(
                    *raw[m, i], block
                )
                if not EXACT:
                    a[m, i] = a[m, i] * inside
                    b[m, i] = b[m, i] * inside
                    a2[m, i] = a2[m, i] * inside
                    b2[m, i] = b2[m, i] * inside
                if PACKED:
                    to = place + (m * (TILE // 2) + i * 512)
                    store_shared_int4(to, raw[m, i, 0], raw[m, i, 1], raw[m, i, 2], raw[m, i, 3])
                else:
                    to = place + (m * TILE + i * 1024)
                    store_shared_int4(to + 16 * bits_xor(2 * sub, quad), w[0], w[1], w[2], w[3])
                    store_shared_int4(to + 16 * bits_xor(2 * sub + 1, quad), w[4], w[5], w[6], w[7])
        warp_barrier()
        word = registers((TOKENS // 8, 4, 4))
        d = registers((TOKENS // 8, 2, 4))
        s = registers((TOKENS // 8, 2, 4))
        s2 = registers((TOKENS // 8, 2, 4))
        for n in static(TOKENS // 8):
            for j in static(2):
                at = scales + 16 * (chunk * TOKENS + 8 * n + 2 * sub + j)
                d[n, j] = load_float4(at)
                if MINIMUM and HALVES:
                    s[n, j] = load_float4(at + 2 * scales_plane(blocks))
                    s2[n, j] = load_float4(at + 3 * scales_plane(blocks))
                elif MINIMUM:
                    s[n, j] = load_float4(at + scales_plane(blocks))
        if chunk + KS < chunks:
            block = 4 * (chunk + KS) + sub
            if not EXACT and block >= blocks:
                block = blocks - 1
            for m in static(M):
                for i in static(2):
                    raw[m, i] = LOAD(row[m, i], blocks, block)
        packed = registers((M, 4))
        for u in static(4):
            for n in static(TOKENS // 8):
                piece = (4 * chunk + u) * TOKENS + 8 * n + quad
                word[n, u] = load_int4(x + sub * codes_plane(blocks) + 16 * piece)
            for m in static(M):
                f = registers(4)
                if PACKED:
                    if u % 2 == 0:
                        packed[m] = load_matrices(fetched + m * (TILE // 2) + 16 * bits_xor(turn, u))
                    f[0], f[2] = FRAGMENT(packed[m, 2 * (u % 2)])
                    f[1], f[3] = FRAGMENT(packed[m, 2 * (u % 2) + 1])
                else:
                    f[()] = load_matrices(fetched + m * TILE + 16 * bits_xor(turn, 2 * u))
                source = bits_or(bits_and(lane, 28), u)  # the lane that unpacked this row's block
                wa = registers(2)
                wb = registers(2)
                wa2 = registers(2)
                wb2 = registers(2)
                for i in static(2):
                    wa[i] = shuffle(a[m, i], source)
                    if MINIMUM:
                        wb[i] = shuffle(b[m, i], source)
                    if HALVES:
                        wa2[i] = shuffle(a2[m, i], source)
                        if MINIMUM:
                            wb2[i] = shuffle(b2[m, i], source)
                for n in static(TOKENS // 8):
                    first = registers(4)
                    second = registers(4)
                    if HALVES:
                        later = registers(4)
                        last = registers(4)
                        first[()] = mma_bytes_16(f[0], f[1], word[n, u, 0], 0, 0, 0, 0)
                        second[()] = mma_bytes_16(f[0], f[1], word[n, u, 2], 0, 0, 0, 0)
                        later[()] = mma_bytes_16(f[2], f[3], word[n, u, 1], 0, 0, 0, 0)
                        last[()] = mma_bytes_16(f[2], f[3], word[n, u, 3], 0, 0, 0, 0)
                        for i in static(4):
                            total = wa[i // 2] * two_digits(first[i], second[i])
                            total = total + wa2[i // 2] * two_digits(later[i], last[i])
                            acc[m, n, i] = acc[m, n, i] + d[n, i % 2, u] * total
                            if MINIMUM:
                                acc[m, n, i] = acc[m, n, i] + wb[i // 2] * s[n, i % 2, u]
                                acc[m, n, i] = acc[m, n, i] + wb2[i // 2] * s2[n, i % 2, u]
                    else:
                        first[()] = mma_bytes(*f[()], word[n, u, 0], word[n, u, 1], 0, 0, 0, 0)
                        second[()] = mma_bytes(*f[()], word[n, u, 2], word[n, u, 3], 0, 0, 0, 0)
                        for i in static(4):
                            total = two_digits(first[i], second[i])
                            acc[m, n, i] = acc[m, n, i] + (wa[i // 2] * d[n, i % 2, u]) * total
                            if MINIMUM:
                                acc[m, n, i] = acc[m, n, i] + wb[i // 2] * s[n, i % 2, u]
        warp_barrier()
    if PDL:
        wait_for_grid()  # for warps that had no blocks
    barrier()
    for m in static(M):
        for n in static(TOKENS // 8):
            for i in static(4):
                token = 8 * n + 2 * sub + i % 2
                at = (token * KS + part) * (1 + GATED) + m // (M // (1 + GATED))
                at = (
                    at * outputs
                    + (first - block_x() * outputs)
                    + (16 * (m % (M // (1 + GATED))) + 8 * (i // 2))
                )
                store_shared(shared() + 4 * at, acc[m, n, i])
    barrier()
    finish(
        rows,
        outputs,
        n_out,
        partials,
        n_partials,
        inverse_width,
        eps,
        bias,
        out,
        out_stride,
        codes,
        norm_weight,
        out_partials,
    )
