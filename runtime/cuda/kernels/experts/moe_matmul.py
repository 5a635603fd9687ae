"""Products in which each row has a matrix of its own: decode with mixtures of experts, and products of heads.

A product is computed for each pair (row, choice), which has the number row · top + choice. Its matrix is one
of several that lie one after the other, `expert_bytes` apart. Activations for block-quantised matrices are
quantised, each pair in the layout that `store_quantized` has for a single row.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    div_u32,
    load_constant,
    load_float,
    load_float4,
    load_shared,
    shared,
    shift_right,
    shuffle_xor,
    store_float,
    store_shared,
    thread,
    to_int,
)
from ..common.common import activate, begin, gated, store_quantized, warp_sum
from ..matmul.decode_mma import decode_mma_4, load_first_chunk
from ..matmul.floats import load_four_weights

# Constants of the launch. CHOSEN: a pair takes the matrix that its row has chosen, else matrix number
# `choice`.
# M, KS and WARPS as in decode_matmul.py. EMIT: the result is stored quantised; STORE: in float32.
CODE_WORDS = BLOCK_SCALE_WORDS = CHOSEN = M = KS = WARPS = GATED = BIAS = EMIT = STORE = 0
UNIT = 1


class PairRows(KernelArguments):
    """A row of each pair: that of choice j begins `step` bytes · j behind the beginning of the row's matrix
    row.

    With a step of 0 all choices of a row share one.
    """

    rows: Region
    step: int = 0


class ExpertArguments(KernelArguments):
    """The matrices of a product, and which of them each pair takes.

    `weights` are matrices of `n_out` rows each, `expert_bytes` apart, whose tiles (or rows, if they are
    floats) take `tile_bytes`. `width` counts blocks of 32 columns, for float matrices columns. `choices`,
    float32 [rows, top], are the experts that each row has chosen, if CHOSEN.
    """

    expert_bytes: int
    tile_bytes: int
    width: int
    n_out: int
    choices: Region
    top: int


@device
def expert_of(choices, choices_stride, row, choice):
    """The number of the matrix of a pair."""
    if CHOSEN:
        expert = to_int(load_float(choices + row * choices_stride + 4 * choice))
    else:
        expert = choice
    return expert


class QuantizePairsArguments(KernelArguments):
    """Arguments of `quantize_pairs`: float32 rows of `blocks` · 32 columns, and the quantised rows of
    pairs.
    """

    x: PairRows
    top: int
    blocks: int
    out: Region


def quantize_pairs(args: QuantizePairsArguments):
    """Quantise a row for each pair. Grid: (⌈blocks / 4⌉, pairs), blocks of 128 threads: a warp takes
    a block.
    """
    begin()
    block = 4 * block_x() + shift_right(thread(), 5)
    pair = block_y()
    row = div_u32(pair, args.top)
    if block < args.blocks:
        i = 32 * block + (thread() & 31)
        value = load_float(
            args.x.rows.address + row * args.x.rows.stride + (pair - row * args.top) * args.x.step + 4 * i
        )
        store_quantized(args.out.address + pair * args.out.stride, args.blocks, 0, i, value)


class MoeDecodeArguments(KernelArguments):
    """Arguments of `moe_decode_matmul`. `other` are the up matrices of a gated product; biases are float32
    [experts, n_out]; `out` is float32 [pairs, n_out], and `codes` the quantised rows of pairs.
    """

    weights: int
    other: int = 0
    experts: ExpertArguments
    x: PairRows
    bias: int = 0
    other_bias: int = 0
    out: PairRows
    codes: Region


def moe_decode_matmul(args: MoeDecodeArguments):
    """out = f(x @ weightsᵀ + bias), or with GATED act(x @ weightsᵀ + bias, x @ otherᵀ + other_bias), of
    pairs.

    Grid: (⌈n_out / outputs⌉, pairs), blocks of 32 · WARPS threads, where outputs = WARPS / KS · 16 · M / (1 +
    GATED); warps share the work as in `decode_matmul`. Shared memory: float32 [KS, 1 + GATED, outputs].
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    group = div_u32(warp, KS)
    part = warp - group * KS
    pair = block_y()
    row = div_u32(pair, args.experts.top)
    choice = pair - row * args.experts.top
    expert = expert_of(args.experts.choices.address, args.experts.choices.stride, row, choice)
    tiles = M // (1 + GATED)  # of each matrix
    outputs = (WARPS // KS) * (16 * M // (1 + GATED))
    tile = registers(M)
    acc = registers((M, 2))
    for m in static(M):
        at = (block_x() * (WARPS // KS) + group) * tiles + m % (M // (1 + GATED))
        if 16 * at >= args.experts.n_out:
            at = shift_right(args.experts.n_out - 1, 4)
        at = expert * args.experts.expert_bytes + at * args.experts.tile_bytes
        if m < M // (1 + GATED):
            tile[m] = args.weights + at
        else:
            tile[m] = args.other + at
    loaded = registers(M * 2 * (CODE_WORDS + BLOCK_SCALE_WORDS))
    loaded[()] = load_first_chunk(*tile[()], args.experts.width, part)
    acc[()] = decode_mma_4(
        *tile[()],
        *loaded[()],
        args.x.rows.address + row * args.x.rows.stride + choice * args.x.step,
        args.experts.width,
        part,
    )
    for m in static(M):
        for i in static(2):
            total = acc[m, i] + shuffle_xor(acc[m, i], 1)
            total = total + shuffle_xor(total, 2)
            if (lane & 3) == 0:
                at = (part * (1 + GATED) + m // (M // (1 + GATED))) * outputs + group * 16 * tiles
                at = at + shift_right(lane, 2) + (16 * (m % (M // (1 + GATED))) + 8 * i)
                store_shared(shared() + 4 * at, total)
    barrier()
    for i in range(thread(), (outputs + 31) // 32 * 32, 32 * WARPS):
        at = block_x() * outputs + i
        value = 0.0
        if i < outputs and at < args.experts.n_out:
            for k in static(KS):
                value = value + load_shared(shared() + 4 * (k * (1 + GATED) * outputs + i))
            value = value * (1.0 / UNIT)
            if BIAS:
                value = value + load_constant(args.bias + 4 * (expert * args.experts.n_out + at))
            if GATED:
                up = 0.0
                for k in static(KS):
                    up = up + load_shared(shared() + 4 * ((2 * k + 1) * outputs + i))
                up = up * (1.0 / UNIT)
                if BIAS:
                    up = up + load_constant(args.other_bias + 4 * (expert * args.experts.n_out + at))
                value = gated(value, up)
            else:
                value = activate(value)
            if STORE:
                store_float(
                    args.out.rows.address + row * args.out.rows.stride + choice * args.out.step + 4 * at,
                    value,
                )
        if EMIT and at < args.experts.n_out:  # uniform in a warp, since n_out is a multiple of 32
            store_quantized(
                args.codes.address + pair * args.codes.stride,
                shift_right(args.experts.n_out, 5),
                0,
                at,
                value,
            )


class MoeFloatArguments(KernelArguments):
    """Arguments of `moe_float_matmul`: `x` and `out` are float32, `bias` float32 [experts, n_out]."""

    weights: int
    experts: ExpertArguments
    x: PairRows
    bias: int = 0
    out: PairRows


def moe_float_matmul(args: MoeFloatArguments):
    """out = x @ weightsᵀ + bias of pairs, with float matrices whose width is a multiple of 4.

    Grid: (⌈n_out / 8⌉, pairs), blocks of 256 threads: a warp takes an output.
    """
    begin()
    at = block_x() * 8 + shift_right(thread(), 5)
    pair = block_y()
    row = div_u32(pair, args.experts.top)
    choice = pair - row * args.experts.top
    if at < args.experts.n_out:
        expert = expert_of(args.experts.choices.address, args.experts.choices.stride, row, choice)
        weights = args.weights + expert * args.experts.expert_bytes + at * args.experts.tile_bytes
        source = args.x.rows.address + row * args.x.rows.stride + choice * args.x.step
        total = 0.0
        for i in range(4 * (thread() & 31), args.experts.width, 128):
            w = registers(4)
            w[()] = load_four_weights(weights, i)
            a, b, c, d = load_float4(source + 4 * i)
            total = total + a * w[0] + b * w[1] + c * w[2] + d * w[3]
        total = warp_sum(total)
        if (thread() & 31) == 0:
            if BIAS:
                total = total + load_constant(args.bias + 4 * (expert * args.experts.n_out + at))
            store_float(
                args.out.rows.address + row * args.out.rows.stride + choice * args.out.step + 4 * at, total
            )
