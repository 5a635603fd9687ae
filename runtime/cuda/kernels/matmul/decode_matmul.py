"""Products of up to 16 rows of activations in 8 bits with block-quantised weights, at the speed of memory.

A warp takes `M` tiles of 16 rows of weights, half of them of gate and half of up if `GATED`, and all rows of
activations; `KS` warps share the columns. How is said in fragments.py, what follows in results.py.
"""

from __future__ import annotations

from ...compile.stage import registers, static
from ...ptx import (
    barrier,
    block_x,
    div_u32,
    launch_dependents,
    shared,
    shift_right,
    shuffle_xor,
    store_shared,
    thread,
    wait_for_grid,
    warp_barrier,
)
from .decode_epilogue import ask, finish
from .decode_mma import decode_mma_4, decode_mma_8, load_first_chunk

CODE_WORDS = SCALE_WORDS = M = KS = WARPS = GATED = TOKENS = PDL = (
    0  # constants of the launch. WARPS: of a block
)


def decode_matmul(
    weights,
    other,
    tile_bytes,
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
        launch_dependents()
    lane = thread() & 31
    sub = lane & 3
    warp = shift_right(thread(), 5)
    team = div_u32(warp, KS)
    part = warp - team * KS
    tile = registers(M)
    for m in static(M):
        at = (block_x() * (WARPS // KS) + team) * (M // (1 + GATED)) + m % (M // (1 + GATED))
        if 16 * at >= n_out:
            at = shift_right(n_out - 1, 4)
        if m < M // (1 + GATED):
            tile[m] = weights + at * tile_bytes
        else:
            tile[m] = other + at * tile_bytes
    loaded = registers(M * 2 * (CODE_WORDS + SCALE_WORDS))
    loaded[()] = load_first_chunk(*tile[()], blocks, part)
    outputs = (WARPS // KS) * (16 * M // (1 + GATED))
    first = team * (16 * M // (1 + GATED)) + shift_right(lane, 2)
    if PDL:
        wait_for_grid()
    else:
        warp_barrier()
    before = registers(7)
    before[()] = ask(rows, outputs, n_out, partials, n_partials, bias, out, out_stride, norm_weight)
    if TOKENS <= 4:
        few = registers((M, 2))
        few[()] = decode_mma_4(*tile[()], *loaded[()], x, blocks, part)
        for m in static(M):
            for i in static(2):
                total = few[m, i]
                if TOKENS == 1:
                    total = total + shuffle_xor(total, 1)
                if TOKENS <= 2:
                    total = total + shuffle_xor(total, 2)
                if sub < TOKENS:
                    at = (sub * KS + part) * (1 + GATED) + m // (M // (1 + GATED))
                    at = at * outputs + first + (16 * (m % (M // (1 + GATED))) + 8 * i)
                    store_shared(shared() + 4 * at, total)
    else:
        acc = registers((M, TOKENS // 8, 4))
        acc[()] = decode_mma_8(*tile[()], *loaded[()], x, blocks, part)
        for m in static(M):
            for n in static(TOKENS // 8):
                for i in static(4):
                    token = 8 * n + 2 * sub + i % 2
                    at = (token * KS + part) * (1 + GATED) + m // (M // (1 + GATED))
                    at = at * outputs + first + (16 * (m % (M // (1 + GATED))) + 8 * (i // 2))
                    store_shared(shared() + 4 * at, acc[m, n, i])
    barrier()
    finish(
        *before[()],
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
