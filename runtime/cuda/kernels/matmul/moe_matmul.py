"""Mixtures of experts: which a row goes to, and products of rows with matrices of which each takes its own.

Products here are of pairs (row, choice), number row · top + choice. Activations for block-quantised matrices
are in 8 bits, a pair after the other, each as `common.emit_codes` writes a step of one row.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    atomic_add,
    barrier,
    block_x,
    block_y,
    div_u32,
    load_constant,
    load_float,
    load_float4,
    load_int,
    load_shared,
    load_shared_int,
    shared,
    shift_right,
    shuffle_xor,
    store_float,
    store_int,
    store_shared,
    store_shared_int,
    thread,
    to_int,
)
from ..common.common import activate, begin, gated, store_quantized, warp_sum
from .decode_mma import decode_mma_4, load_first_chunk
from .floats import four_weights

# Constants of the launch. CHOSEN: a pair's matrix is the one that its row has chosen, else number `choice`.
# M, KS and WARPS as in few.py. EMIT: the result in 8 bits, STORE: as it is.
CODE_WORDS = SCALE_WORDS = CHOSEN = M = KS = WARPS = GATED = BIAS = EMIT = STORE = 0
UNIT = 1


@device
def expert_of(choices, choices_stride, row, choice):
    """The number of a pair's matrix."""
    if CHOSEN:
        expert = to_int(load_float(choices + row * choices_stride + 4 * choice))
    else:
        expert = choice
    return expert


def quantize_pairs(x, x_stride, x_step, top, blocks, out, out_stride):
    """Pairs' rows, `x_step` bytes from choice to choice, in 8 bits. Grid: (blocks / 4, pairs), of 128
    threads.
    """
    begin()
    block = 4 * block_x() + shift_right(thread(), 5)
    pair = block_y()
    row = div_u32(pair, top)
    if block < blocks:
        i = 32 * block + (thread() & 31)
        value = load_float(x + row * x_stride + (pair - row * top) * x_step + 4 * i)
        store_quantized(out + pair * out_stride, blocks, 0, i, value)


def moe_decode_matmul(
    weights,
    other,
    expert_bytes,
    tile_bytes,
    blocks,
    n_out,
    choices,
    choices_stride,
    top,
    x,
    x_stride,
    x_step,
    bias,
    other_bias,
    out,
    out_stride,
    out_step,
    codes,
    codes_stride,
):
    """out = f(x @ weightsᵀ + bias), or act(x @ weightsᵀ + bias, x @ otherᵀ + other_bias) if GATED, of pairs.

    Grid: (outputs / (WARPS / KS · 16 · M / (1 + GATED)), pairs).
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    team = div_u32(warp, KS)
    part = warp - team * KS
    pair = block_y()
    line = div_u32(pair, top)
    choice = pair - line * top
    expert = expert_of(choices, choices_stride, line, choice)
    each = M // (1 + GATED)
    outputs = (WARPS // KS) * (16 * M // (1 + GATED))
    tile = registers(M)
    acc = registers((M, 2))
    for m in static(M):
        at = (block_x() * (WARPS // KS) + team) * each + m % (M // (1 + GATED))
        if 16 * at >= n_out:
            at = shift_right(n_out - 1, 4)
        at = expert * expert_bytes + at * tile_bytes
        if m < M // (1 + GATED):
            tile[m] = weights + at
        else:
            tile[m] = other + at
    loaded = registers(M * 2 * (CODE_WORDS + SCALE_WORDS))
    loaded[()] = load_first_chunk(*tile[()], blocks, part)
    acc[()] = decode_mma_4(*tile[()], *loaded[()], x + line * x_stride + choice * x_step, blocks, part)
    for m in static(M):
        for i in static(2):
            total = acc[m, i] + shuffle_xor(acc[m, i], 1)
            total = total + shuffle_xor(total, 2)
            if (lane & 3) == 0:
                at = (part * (1 + GATED) + m // (M // (1 + GATED))) * outputs + team * 16 * each
                at = at + shift_right(lane, 2) + (16 * (m % (M // (1 + GATED))) + 8 * i)
                store_shared(shared() + 4 * at, total)
    barrier()
    for i in range(thread(), (outputs + 31) // 32 * 32, 32 * WARPS):
        at = block_x() * outputs + i
        value = 0.0
        if i < outputs and at < n_out:
            for k in static(KS):
                value = value + load_shared(shared() + 4 * (k * (1 + GATED) * outputs + i))
            value = value * (1.0 / UNIT)
            if BIAS:
                value = value + load_constant(bias + 4 * (expert * n_out + at))
            if GATED:
                up = 0.0
                for k in static(KS):
                    up = up + load_shared(shared() + 4 * ((2 * k + 1) * outputs + i))
                up = up * (1.0 / UNIT)
                if BIAS:
                    up = up + load_constant(other_bias + 4 * (expert * n_out + at))
                value = gated(value, up)
            else:
                value = activate(value)
            if STORE:
                store_float(out + line * out_stride + choice * out_step + 4 * at, value)
        if EMIT and at < n_out:  # the same for a whole warp
            store_quantized(codes + pair * codes_stride, shift_right(n_out, 5), 0, at, value)


def moe_float_matmul(
    weights,
    expert_bytes,
    row_bytes,
    width,
    n_out,
    choices,
    choices_stride,
    top,
    x,
    x_stride,
    x_step,
    bias,
    out,
    out_stride,
    out_step,
):
    """out = x @ weightsᵀ + bias of pairs, with float weights of a width that is a multiple of 4.

    Grid: (outputs / 8, pairs), of 256 threads: a warp takes an output.
    """
    begin()
    at = block_x() * 8 + shift_right(thread(), 5)
    pair = block_y()
    line = div_u32(pair, top)
    choice = pair - line * top
    if at < n_out:
        expert = expert_of(choices, choices_stride, line, choice)
        row = weights + expert * expert_bytes + at * row_bytes
        source = x + line * x_stride + choice * x_step
        total = 0.0
        for i in range(4 * (thread() & 31), width, 128):
            w = registers(4)
            w[()] = four_weights(row, i)
            a, b, c, d = load_float4(source + 4 * i)
            total = total + a * w[0] + b * w[1] + c * w[2] + d * w[3]
        total = warp_sum(total)
        if (thread() & 31) == 0:
            if BIAS:
                total = total + load_constant(bias + 4 * (expert * n_out + at))
            store_float(out + line * out_stride + choice * out_step + 4 * at, total)


def combine_experts(
    routing_weights, routing_weights_stride, places, top, x, x_stride, out, out_stride, width
):
    """out[row] = Σ share[row, j] · x[pair], or x[places[pair]] if DEALT. Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    row = block_y()
    if i < width:
        total = 0.0
        for j in range(top):
            at = row * top + j
            if PERMUTED:
                at = load_int(places + 4 * at)
            share = load_float(routing_weights + row * routing_weights_stride + 4 * j)
            total = total + share * load_float(x + at * x_stride + 4 * i)
        store_float(out + row * out_stride + 4 * i, total)


ROWS = 128  # of a tile, another constant


def permute_by_expert(experts, experts_stride, rows, top, n_experts, counts, tiles, sources, places):
    """Sort pairs by expert: `places`, int32 [pairs], is where each comes, `sources` the row of each place.

    `tiles` is how many tiles of up to ROWS places of one expert there are, and from 16 bytes on, of each: the
    expert, the first place, and how many. `counts` has room for the experts. Grid: (1,), of 256 threads. In
    which order pairs of one expert come is left to chance: it makes no difference to a product's rows.
    """
    begin()
    for e in range(thread(), n_experts, 256):
        store_int(counts + 4 * e, 0)
    barrier()
    for pair in range(thread(), rows * top, 256):
        row = div_u32(pair, top)
        e = to_int(load_float(experts + row * experts_stride + 4 * (pair - row * top)))
        store_int(places + 4 * pair, atomic_add(counts + 4 * e, 1))
    barrier()
    for e in range(thread(), n_experts, 256):
        store_shared_int(shared() + 4 * e, load_int(counts + 4 * e))
    barrier()
    firsts = shared() + 4 * n_experts
    for e in range(thread(), n_experts, 256):
        first = 0
        tile = 0
        for i in range(e):
            count = load_shared_int(shared() + 4 * i)
            first = first + count
            tile = tile + div_u32(count + (ROWS - 1), ROWS)
        count = load_shared_int(shared() + 4 * e)
        store_shared_int(firsts + 4 * e, first)
        for start in range(0, count, ROWS):
            here = count - start
            if here > ROWS:
                here = ROWS
            to = tiles + 16 * (1 + tile)
            store_int(to, e)
            store_int(to + 4, first + start)
            store_int(to + 8, here)
            tile = tile + 1
        if e == n_experts - 1:
            store_int(tiles, tile)
    barrier()
    for pair in range(thread(), rows * top, 256):
        row = div_u32(pair, top)
        e = to_int(load_float(experts + row * experts_stride + 4 * (pair - row * top)))
        place = load_shared_int(firsts + 4 * e) + load_int(places + 4 * pair)
        store_int(places + 4 * pair, place)
        store_int(sources + 4 * place, row)


PERMUTED = 0  # another constant
