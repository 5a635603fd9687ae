"""The product of one row of activations in 8 bits with block-quantised weights, at the speed of memory.

A warp takes `R` rows of weights (of gate and of up if `GATED`), its lanes neighbouring blocks of 32 of each;
the loads of `U` blocks a lane and row are in flight before the first is used. `KS` warps share the columns
of a row. What follows the product is in `results.py`; activations are as `common.emit_codes` writes them.
"""

from __future__ import annotations

from ..ptx import (
    barrier,
    block_x,
    dot_signed,
    let_next_start,
    load_float,
    load_int4,
    shared,
    shift_right,
    store_shared,
    thread,
    wait_for_grid,
    warp_barrier,
)
from ..stage import registers, static
from .common import codes_plane, scales_plane, two_digits, warp_sum
from .results import finish

# Constants of the launch. WARPS: of a block. EXACT: blocks fill the lanes of all parts.
LOAD = UNPACK = finish
RAW = HALVES = MINIMUM = R = U = KS = WARPS = GATED = EXACT = PDL = 0


def matvec(
    weights,
    other,
    row_bytes,
    blocks,
    n_out,
    x,
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
    """out = x @ weightsᵀ, or f(x @ weightsᵀ) · (x @ otherᵀ). Grid: (outputs / (WARPS / KS · R),)."""
    if PDL:
        let_next_start()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    part = warp & (KS - 1)
    team = shift_right(warp, KS // 2)  # KS is 1, 2 or 4
    first = (block_x() * (WARPS // KS) + team) * R
    row = registers((R, 1 + GATED))
    acc = registers((R, 1 + GATED), 0.0)
    for r in static(R):
        at = first + r
        if at >= n_out:
            at = n_out - 1
        row[r, 0] = weights + at * row_bytes
        if GATED:
            row[r, 1] = other + at * row_bytes
    scales = x + 4 * codes_plane(blocks)
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
            xw = registers((4, 4))
            s = registers(2)
            for t in static(4):
                xw[t] = load_int4(x + t * codes_plane(blocks) + 16 * block)
            d = load_float(scales + 4 * block) * inside
            if MINIMUM and HALVES:
                s[0] = load_float(scales + 2 * scales_plane(blocks) + 4 * block) * inside
                s[1] = load_float(scales + 3 * scales_plane(blocks) + 4 * block) * inside
            elif MINIMUM:
                s[0] = load_float(scales + scales_plane(blocks) + 4 * block) * inside
            for r in static(R):
                for m in static(1 + GATED):
                    w = registers(8)
                    w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], a, b, a2, b2 = UNPACK(
                        *raw[r, m, u], block
                    )
                    sums = registers((2, 2), 0)  # [half of the block, digit]
                    for t in static(4):
                        for digit in static(2):
                            sums[0, digit] = dot_signed(w[t], xw[t, 2 * digit], sums[0, digit])
                            sums[1, digit] = dot_signed(w[4 + t], xw[t, 2 * digit + 1], sums[1, digit])
                    if HALVES:
                        total = a * two_digits(*sums[0]) + a2 * two_digits(*sums[1])
                        acc[r, m] = acc[r, m] + d * total
                        if MINIMUM:
                            acc[r, m] = acc[r, m] + b * s[0] + b2 * s[1]
                    else:
                        total = two_digits(sums[0, 0] + sums[1, 0], sums[0, 1] + sums[1, 1])
                        acc[r, m] = acc[r, m] + (a * d) * total
                        if MINIMUM:
                            acc[r, m] = acc[r, m] + b * s[0]
    if PDL:
        wait_for_grid()  # for warps that had no blocks
    outputs = (WARPS // KS) * R
    for r in static(R):
        for m in static(1 + GATED):
            total = warp_sum(acc[r, m])
            if lane == 0:
                at = (part * (1 + GATED) + m) * outputs + team * R + r
                store_shared(shared() + 4 * at, total)
    barrier()
    finish(
        1,
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
