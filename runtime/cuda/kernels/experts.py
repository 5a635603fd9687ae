"""Mixtures of experts: which a row goes to, and products of rows with matrices of which each takes its own.

Products here are of pairs (row, choice), number row · top + choice. Activations for block-quantised matrices
are in two digits of 8 bits, a row after the other: for each 32 values the first digits, then the second ones,
and behind all blocks, for each, four float32: the scale d of 256 · first + second, d · (sum of codes), and
the same of the first half and of the second.
"""

from __future__ import annotations

from ..ptx import (
    absolute,
    atomic_add,
    barrier,
    block_x,
    block_y,
    divide,
    dot_signed,
    load_float,
    load_float4,
    load_int,
    load_int4,
    load_shared,
    load_shared_int,
    load_weight,
    quotient,
    shared,
    shift_right,
    shuffle_xor,
    store_byte,
    store_float,
    store_float4,
    store_int,
    store_shared,
    store_shared_int,
    thread,
    to_float,
    to_int,
)
from ..stage import device, registers, static
from .common import activate, begin, gated, warp_maximum, warp_sum
from .floats import four_weights

# Constants of the launch. CHOSEN: a pair's matrix is the one that its row has chosen, else number `choice`.
# R: outputs of a warp, U blocks in flight, WARPS of a block. EMIT: the result in digits, STORE: as it is.
LOAD = UNPACK = activate
RAW = HALVES = MINIMUM = CHOSEN = R = U = WARPS = GATED = BIAS = EMIT = STORE = 0
UNIT = 1


@device
def expert_of(choices, choices_stride, row, choice):
    """The number of a pair's matrix."""
    if CHOSEN:
        expert = to_int(load_float(choices + row * choices_stride + 4 * choice))
    else:
        expert = choice
    return expert


@device
def emit_digits(row, blocks, i, value):
    """A warp's 32 values, from a multiple of 32 on, number i of each lane, into a row of `blocks`."""
    peak = warp_maximum(absolute(value))
    inverse = 0.0
    if peak > 0.0:
        inverse = quotient(32512.0, peak)
    code = to_int(value * inverse)
    block = shift_right(i, 5)
    to = row + 64 * block + (thread() & 31)
    store_byte(to, (code + 128) >> 8)
    store_byte(to + 32, code)
    half = to_float(code)
    half = half + shuffle_xor(half, 1)
    half = half + shuffle_xor(half, 2)
    half = half + shuffle_xor(half, 4)
    half = half + shuffle_xor(half, 8)
    other = shuffle_xor(half, 16)
    d = peak * 3.0757874015748033e-05  # 1 / 32512
    d = d + warp_sum(value * 0.0)  # what is not finite stays so
    if (thread() & 31) == 0:
        store_float4(row + 64 * blocks + 16 * block, d, d * (half + other), d * half, d * other)


def digits(x, x_stride, x_step, top, blocks, out, out_stride):
    """Pairs' rows, `x_step` bytes from choice to choice, in two digits. Grid: (blocks / 4, pairs), of 128
    threads.
    """
    begin()
    block = 4 * block_x() + shift_right(thread(), 5)
    pair = block_y()
    row = divide(pair, top)
    if block < blocks:
        i = 32 * block + (thread() & 31)
        value = load_float(x + row * x_stride + (pair - row * top) * x_step + 4 * i)
        emit_digits(out + pair * out_stride, blocks, i, value)


def expert_matvec(
    weights,
    other,
    expert_bytes,
    row_bytes,
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

    Grid: (outputs / (WARPS · R), pairs). A warp's lanes take neighbouring blocks of 32 of each of its rows.
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    pair = block_y()
    line = divide(pair, top)
    choice = pair - line * top
    expert = expert_of(choices, choices_stride, line, choice)
    source = x + line * x_stride + choice * x_step
    row = registers((R, 1 + GATED))
    acc = registers((R, 1 + GATED), 0.0)
    for r in static(R):
        at = block_x() * (WARPS * R) + warp * R + r
        if at >= n_out:
            at = n_out - 1
        row[r, 0] = weights + expert * expert_bytes + at * row_bytes
        if GATED:
            row[r, 1] = other + expert * expert_bytes + at * row_bytes
    for start in range(lane, blocks, 32 * U):
        raw = registers((R, 1 + GATED, U, RAW))
        for u in static(U):
            block = start + 32 * u
            if block >= blocks:
                block = blocks - 1
            for r in static(R):
                for m in static(1 + GATED):
                    raw[r, m, u] = LOAD(row[r, m], blocks, block)
        for u in static(U):
            block = start + 32 * u
            inside = 1.0
            if block >= blocks:
                block = blocks - 1
                inside = 0.0
            first = registers(8)
            second = registers(8)
            s = registers(4)
            at = source + 64 * block
            first[0], first[1], first[2], first[3] = load_int4(at)
            first[4], first[5], first[6], first[7] = load_int4(at + 16)
            second[0], second[1], second[2], second[3] = load_int4(at + 32)
            second[4], second[5], second[6], second[7] = load_int4(at + 48)
            s[0], s[1], s[2], s[3] = load_float4(source + 64 * blocks + 16 * block)
            for i in static(4):
                s[i] = s[i] * inside
            for r in static(R):
                for m in static(1 + GATED):
                    w = registers(12)
                    w[()] = UNPACK(*raw[r, m, u], block)
                    front = 0
                    back = 0
                    for i in static(4):
                        front = dot_signed(w[i], first[i], front)
                        back = dot_signed(w[4 + i], first[4 + i], back)
                    front = front << 8
                    back = back << 8
                    for i in static(4):
                        front = dot_signed(w[i], second[i], front)
                        back = dot_signed(w[4 + i], second[4 + i], back)
                    if HALVES:
                        total = w[8] * to_float(front) + w[10] * to_float(back)
                        acc[r, m] = acc[r, m] + s[0] * total
                        if MINIMUM:
                            acc[r, m] = acc[r, m] + w[9] * s[2] + w[11] * s[3]
                    else:
                        acc[r, m] = acc[r, m] + w[8] * s[0] * to_float(front + back)
                        if MINIMUM:
                            acc[r, m] = acc[r, m] + w[9] * s[1]
    for r in static(R):
        for m in static(1 + GATED):
            total = warp_sum(acc[r, m])
            if lane == 0:
                store_shared(shared() + 4 * (m * (WARPS * R) + warp * R + r), total)
    barrier()
    if thread() < (WARPS * R + 31) // 32 * 32:
        i = thread()
        at = block_x() * (WARPS * R) + i
        value = 0.0
        if i < WARPS * R and at < n_out:
            value = load_shared(shared() + 4 * i) * (1.0 / UNIT)
            if BIAS:
                value = value + load_weight(bias + 4 * (expert * n_out + at))
            if GATED:
                up = load_shared(shared() + 4 * (WARPS * R + i)) * (1.0 / UNIT)
                if BIAS:
                    up = up + load_weight(other_bias + 4 * (expert * n_out + at))
                value = gated(value, up)
            else:
                value = activate(value)
            if STORE:
                store_float(out + line * out_stride + choice * out_step + 4 * at, value)
        if EMIT:
            emit_digits(codes + pair * codes_stride, shift_right(n_out, 5), at, value)


def expert_floats(
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
    line = divide(pair, top)
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
                total = total + load_weight(bias + 4 * (expert * n_out + at))
            store_float(out + line * out_stride + choice * out_step + 4 * at, total)


def mix(shares, shares_stride, places, top, x, x_stride, out, out_stride, width):
    """out[row] = Σ share[row, j] · x[pair], or x[places[pair]] if DEALT. Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    row = block_y()
    if i < width:
        total = 0.0
        for j in range(top):
            at = row * top + j
            if DEALT:
                at = load_int(places + 4 * at)
            share = load_float(shares + row * shares_stride + 4 * j)
            total = total + share * load_float(x + at * x_stride + 4 * i)
        store_float(out + row * out_stride + 4 * i, total)


def deal(experts, experts_stride, rows, top, n_experts, counts, tiles, sources, places):
    """Sort pairs by expert: `places`, int32 [pairs], is where each comes, `sources` the row of each place.

    `tiles` is how many tiles of up to 128 places of one expert there are, and from 16 bytes on, of each: the
    expert, the first place, and how many. `counts` has room for the experts. Grid: (1,), of 256 threads. In
    which order pairs of one expert come is left to chance: it makes no difference to a product's rows.
    """
    begin()
    for e in range(thread(), n_experts, 256):
        store_int(counts + 4 * e, 0)
    barrier()
    for pair in range(thread(), rows * top, 256):
        row = divide(pair, top)
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
            tile = tile + ((count + 127) >> 7)
        count = load_shared_int(shared() + 4 * e)
        store_shared_int(firsts + 4 * e, first)
        for start in range(0, count, 128):
            here = count - start
            if here > 128:
                here = 128
            to = tiles + 16 * (1 + tile)
            store_int(to, e)
            store_int(to + 4, first + start)
            store_int(to + 8, here)
            tile = tile + 1
        if e == n_experts - 1:
            store_int(tiles, tile)
    barrier()
    for pair in range(thread(), rows * top, 256):
        row = divide(pair, top)
        e = to_int(load_float(experts + row * experts_stride + 4 * (pair - row * top)))
        place = load_shared_int(firsts + 4 * e) + load_int(places + 4 * pair)
        store_int(places + 4 * pair, place)
        store_int(sources + 4 * place, row)


DEALT = 0  # another constant
