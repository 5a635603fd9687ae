"""Decode products: up to 16 rows of quantised activations with a block-quantised matrix.

These products are limited by the memory bandwidth. Weights go from global memory through registers into
`mma.sync` (see decode_mma.py) and meet all rows of activations at once.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments
from ...compile.stage import device, registers, second, static
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
from ..common.sums import begin_sum
from .decode_epilogue import EpilogueArguments, decode_epilogue, load_epilogue
from .decode_mma import decode_mma_4, decode_mma_8, load_first_chunk

# Constants of the launch. M: tiles of a warp; KS: warps that share the columns; WARPS: warps of a block;
# TOKENS: rows of activations, rounded up to a power of two; GATED: two matrices, gate and up;
# CARDS: as in decode_epilogue.py.
CODE_WORDS = BLOCK_SCALE_WORDS = M = KS = WARPS = GATED = TOKENS = CARDS = PDL = 0


class DecodeMatmulArguments(KernelArguments):
    """Arguments of `decode_matmul`.

    `weights`, and `other` for the up matrix of a gated product, are packed matrices [n_out, 32 · blocks] with
    `tile_bytes` bytes for 16 rows (see weights/packing.py). `x` are `rows` quantised rows in the layout of
    `store_quantized`.
    """

    weights: int
    other: int = 0
    tile_bytes: int
    blocks: int
    n_out: int
    x: int
    rows: int
    epilogue: EpilogueArguments


@device
def multiply(args: DecodeMatmulArguments, block):
    """Compute the outputs of block number `block` of a product."""
    lane = thread() & 31
    sub = lane & 3
    warp = shift_right(thread(), 5)
    group = div_u32(warp, KS)
    part = warp - group * KS
    tile = registers(M)
    for m in static(M):
        at = (block * (WARPS // KS) + group) * (M // (1 + GATED)) + m % (M // (1 + GATED))
        if 16 * at >= args.n_out:
            at = shift_right(args.n_out - 1, 4)
        if m < M // (1 + GATED):
            tile[m] = args.weights + at * args.tile_bytes
        else:
            tile[m] = args.other + at * args.tile_bytes
    loaded = registers(M * 2 * (CODE_WORDS + BLOCK_SCALE_WORDS))
    loaded[()] = load_first_chunk(*tile[()], args.blocks, part)
    outputs = (WARPS // KS) * (16 * M // (1 + GATED))
    first = group * (16 * M // (1 + GATED)) + shift_right(lane, 2)
    sent = registers(1 + CARDS, 0)
    if CARDS:
        sent[()] = begin_sum(args.epilogue.sums)
    if PDL:
        wait_for_grid()
    else:
        warp_barrier()
    before = registers(7)
    before[()] = load_epilogue(block, args.rows, outputs, args.n_out, args.epilogue)
    if TOKENS <= 4:
        acc = registers((M, 2))
        acc[()] = decode_mma_4(*tile[()], *loaded[()], args.x, args.blocks, part)
        for m in static(M):
            for i in static(2):
                total = acc[m, i]
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
        acc[()] = decode_mma_8(*tile[()], *loaded[()], args.x, args.blocks, part)
        for m in static(M):
            for n in static(TOKENS // 8):
                for i in static(4):
                    token = 8 * n + 2 * sub + i % 2
                    at = (token * KS + part) * (1 + GATED) + m // (M // (1 + GATED))
                    at = at * outputs + first + (16 * (m % (M // (1 + GATED))) + 8 * (i // 2))
                    store_shared(shared() + 4 * at, acc[m, n, i])
    barrier()
    decode_epilogue(*before[()], *sent[()], block, args.rows, outputs, args.n_out, args.epilogue)


multiply_second = second(multiply)


def decode_matmul(args: DecodeMatmulArguments):
    """out = x @ weightsᵀ, or with GATED f(x @ weightsᵀ) · (x @ otherᵀ), and what the epilogue adds.

    Grid: (⌈n_out / outputs⌉,), blocks of 32 · WARPS threads, where outputs = WARPS / KS · 16 · M / (1 +
    GATED). Groups of KS warps take M tiles of 16 matrix rows, with GATED M / 2 tiles of each matrix, and each
    warp of a group takes every KS-th chunk of columns. The partial sums go to shared memory, float32 [TOKENS,
    KS, 1 + GATED, outputs], where the epilogue adds them.
    """
    if PDL:
        launch_dependents()
    multiply(args, block_x())


class TwoMatmulArguments(KernelArguments):
    """Arguments of `two_matmuls`: those of both products, and the number of blocks of the first."""

    first: DecodeMatmulArguments
    second: DecodeMatmulArguments
    n_blocks: int


def two_matmuls(args: TwoMatmulArguments):
    """Two products as `decode_matmul` computes them, of the same rows with matrices of different formats:
    the constants of the second format have names that end in _SECOND.

    Grid: (blocks of the first product + blocks of the second,).
    """
    if PDL:
        launch_dependents()
    if block_x() < args.n_blocks:
        multiply(args.first, block_x())
    else:
        multiply_second(args.second, block_x() - args.n_blocks)
