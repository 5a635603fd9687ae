"""Products of up to 8 rows of activations in 8 bits with block-quantised weights, at the speed of memory.

A warp takes `R` rows of weights (of gate and of up if `GATED`), its lanes neighbouring blocks of 32 of each;
the loads of `U` blocks a lane and row are in flight before the first is used. `KS` warps share the columns
of a row. What follows a product is done where it is made: bias, residual, activation, and bringing the
result into 8 bits for the next product, already times the weight of the norm in between, whose mean square
is only needed behind that product.
"""

from __future__ import annotations

from ..ptx import (
    barrier,
    block_x,
    dot_signed,
    let_next_start,
    load_float,
    load_float2,
    load_float4,
    load_int4,
    load_shared,
    load_weight,
    reciprocal_root,
    shared,
    shift_right,
    store_float,
    store_shared,
    thread,
    to_float,
    wait_for_grid,
    warp_barrier,
)
from ..stage import registers, static
from .common import activate, emit_codes, warp_sum

# Constants of the launch. N: rows of activations. WARPS: of a block. NORMED: x is to be divided by its root
# mean square. EXACT: blocks fill the lanes of all parts. EMIT: 0 no codes, 1 codes, 2 codes of a normed row.
# STORE: the result itself is wanted.
LOAD = UNPACK = activate
RAW = HALVES = MINIMUM = N = R = U = KS = WARPS = GATED = NORMED = BIAS = ACCUMULATE = EMIT = STORE = (
    EXACT
) = PDL = 0


def matvec(
    weights,
    other,
    row_bytes,
    blocks,
    n_out,
    x,
    x_stride,
    partials,
    n_partials,
    inverse_width: float,
    eps: float,
    bias,
    out,
    out_stride,
    codes,
    codes_stride,
    norm_weight,
    out_partials,
):
    """out = x @ weightsᵀ, or f(x @ weightsᵀ) · (x @ otherᵀ). Grid: (outputs / (WARPS / KS · R),)."""
    if PDL:
        let_next_start()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    part = warp & (KS - 1)
    team = shift_right(warp, KS // 2)  # KS is 1, 2 or 4
    first = (block_x() * (WARPS // KS) + team) * R
    row = registers((R, 1 + GATED))
    acc = registers((R, 1 + GATED, N), 0.0)
    for r in static(R):
        at = first + r
        if at >= n_out:
            at = n_out - 1
        row[r, 0] = weights + at * row_bytes
        if GATED:
            row[r, 1] = other + at * row_bytes
    for start in range(part * 32 * U, blocks, KS * 32 * U):
        raw = registers((R, 1 + GATED, U, RAW))
        for u in static(U):
            block = start + lane + 32 * u
            if not EXACT and block >= blocks:
                block = blocks - 1
            for r in static(R):
                for m in static(1 + GATED):
                    raw[r, m, u] = LOAD(row[r, m], blocks, block)
        if PDL:
            wait_for_grid()
        else:
            warp_barrier()
        for u in static(U):
            block = start + lane + 32 * u
            inside = 1.0
            if not EXACT and block >= blocks:
                inside = 0.0
                block = blocks - 1
            w = registers((R, 1 + GATED, 8))
            a = registers((R, 1 + GATED, 2))
            b = registers((R, 1 + GATED, 2))
            if N > 1:  # all weights first, and each row of activations past all of them
                for r in static(R):
                    for m in static(1 + GATED):
                        unpacked = registers(12)
                        unpacked[()] = UNPACK(*raw[r, m, u], block)
                        for i in static(8):
                            w[r, m, i] = unpacked[i]
                        a[r, m, 0] = unpacked[8]
                        b[r, m, 0] = unpacked[9]
                        a[r, m, 1] = unpacked[10]
                        b[r, m, 1] = unpacked[11]
            for n in static(N):
                xw = registers(8)
                s = registers(3)
                at = x + n * x_stride
                xw[0], xw[1], xw[2], xw[3] = load_int4(at + 32 * block)
                xw[4], xw[5], xw[6], xw[7] = load_int4(at + 32 * block + 16)
                if HALVES:
                    d, s[0], s[1], s[2] = load_float4(at + 32 * blocks + 16 * block)
                    s[1] = s[1] * inside
                    s[2] = s[2] * inside
                else:
                    d, s[0] = load_float2(at + 32 * blocks + 16 * block)
                    s[0] = s[0] * inside
                d = d * inside
                for r in static(R):
                    for m in static(1 + GATED):
                        if N == 1:
                            unpacked = registers(12)
                            unpacked[()] = UNPACK(*raw[r, m, u], block)
                            for i in static(8):
                                w[r, m, i] = unpacked[i]
                            a[r, m, 0] = unpacked[8]
                            b[r, m, 0] = unpacked[9]
                            a[r, m, 1] = unpacked[10]
                            b[r, m, 1] = unpacked[11]
                        first_half = 0
                        second_half = 0
                        for i in static(4):
                            first_half = dot_signed(w[r, m, i], xw[i], first_half)
                            second_half = dot_signed(w[r, m, 4 + i], xw[4 + i], second_half)
                        if HALVES:
                            total = a[r, m, 0] * to_float(first_half) + a[r, m, 1] * to_float(second_half)
                            acc[r, m, n] = acc[r, m, n] + d * total
                            if MINIMUM:
                                acc[r, m, n] = acc[r, m, n] + b[r, m, 0] * s[1] + b[r, m, 1] * s[2]
                        else:
                            total = a[r, m, 0] * d
                            acc[r, m, n] = acc[r, m, n] + total * to_float(first_half + second_half)
                            if MINIMUM:
                                acc[r, m, n] = acc[r, m, n] + b[r, m, 0] * s[0]
    if PDL:
        wait_for_grid()  # for warps that had no blocks
    rows = (WARPS // KS) * R
    for n in static(N):
        for r in static(R):
            for m in static(1 + GATED):
                total = warp_sum(acc[r, m, n])
                if lane == 0:
                    at = ((n * KS + part) * (1 + GATED) + m) * rows + team * R + r
                    store_shared(shared() + 4 * at, total)
    barrier()
    for n in range(warp, N, WARPS):
        factor = 1.0
        if NORMED:
            squares = 0.0
            for i in range(lane, n_partials, 32):
                squares = squares + load_float(partials + 4 * (n * n_partials + i))
            factor = reciprocal_root(warp_sum(squares) * inverse_width + eps)
        for i in range(lane, (rows + 31) // 32 * 32, 32):
            at = block_x() * rows + i
            value = 0.0
            if i < rows and at < n_out:
                for k in static(KS):
                    value = value + load_shared(shared() + 4 * ((n * KS + k) * (1 + GATED) * rows + i))
                value = value * factor
                if GATED:
                    up = 0.0
                    for k in static(KS):
                        up = up + load_shared(shared() + 4 * (((n * KS + k) * 2 + 1) * rows + i))
                    value = activate(value) * (up * factor)
                if BIAS:
                    value = value + load_weight(bias + 4 * at)
                if ACCUMULATE:
                    value = value + load_float(out + n * out_stride + 4 * at)
                if STORE:
                    store_float(out + n * out_stride + 4 * at, value)
            if EMIT:
                group = block_x() * (rows // 32) + shift_right(i, 5)
                if EMIT == 2:
                    squares = warp_sum(value * value)
                    if lane == 0:
                        store_float(out_partials + 4 * (n * (n_out // 32) + group), squares)
                    value = value * load_weight(norm_weight + 4 * at)
                to = codes + n * codes_stride
                emit_codes(to, at, to + n_out + 16 * group, value)
