"""Products of many rows with block-quantised weights, on the tensor cores of sm_90a, a warpgroup at once.

Each of two warpgroups makes 64 · M outputs of ROWS rows. Their instructions take weights from registers and
activations from shared memory, so that a lane unpacks weights just where they are wanted: pieces (see
packing.py) are what lanes multiply, if of 16 columns of x the order is that of `quantize.to_halves` with
WARPGROUPS. Nothing of the weights is written to shared memory, and none is unpacked twice for the same rows
of x. While the tensor cores multiply one part, 64 outputs and columns, the lanes unpack the next one.

Activations, halves already, come to shared memory by themselves, two steps of 128 columns ahead. They lie in
rows of 128 bytes whose 16-byte pieces are exchanged by the row's number.
"""

from __future__ import annotations

from ..ptx import (
    add_halves,
    add_words,
    as_float,
    as_int,
    barrier,
    bits_xor,
    block_x,
    block_y,
    commit_copies,
    copy_async,
    finished_products_64,
    finished_products_128,
    finished_products_256,
    fma_halves,
    group_products_64,
    group_products_128,
    group_products_256,
    let_next_start,
    load_float,
    load_int,
    load_weight,
    pack_halves,
    permute,
    shared,
    shift_right,
    show_products,
    shuffle,
    store_float,
    thread,
    wait_copies,
    wait_copies_but_1,
    wait_for_grid,
    wait_products_but_1,
)
from ..stage import device, registers, static
from .common import activate, gated

CODES_OF = WORDS_OF = SCALES_OF = FACTORS_OF = activate
CODES = SCALES = HALVES = MINIMUM = 1  # constants of the launch
UNIT = BIAS = ACCUMULATE = EXPERTS = GATED = PDL = 0  # also
M = ROWS = 1  # also
STAGES = 3
SIGNS = 0x80808080
MAGIC = 0x64646464  # the upper bytes of halves from 1024 on
LESS = 0xE480E480  # -1152, twice: what such a half is too much for a signed byte whose sign was turned


@device
def two_weights(turned, selector, a, b):
    """a · code + b of two of four signed bytes whose signs were turned, as halves."""
    return fma_halves(add_halves(permute(turned, MAGIC, selector), LESS), a, b)


@device
def four_weights(codes, a, b):
    """The same of all four bytes."""
    turned = bits_xor(codes, SIGNS)
    return two_weights(turned, 0x4140, a, b), two_weights(turned, 0x4342, a, b)


@device
def to_hand_on(scale: registers(SCALES), piece):
    """The factors a, b, a', b' of one's own block as pairs of halves: those that the format has, in one word
    or two.
    """
    a, b, a2, b2 = FACTORS_OF(*scale[()], piece)
    if HALVES and MINIMUM:
        words = pack_halves(a, b), pack_halves(a2, b2)
    elif HALVES:
        words = pack_halves(a, a2), 0
    elif MINIMUM:
        words = pack_halves(a, b), 0
    else:
        words = pack_halves(a, a), 0
    return words


@device
def word_of(word, lane):
    """The word of another lane."""
    return as_int(shuffle(as_float(word), lane))


@device
def of_block(front, back, words: registers(2), lane):
    """Eight weights of a block whose factors `lane` has."""
    first = word_of(words[0], lane)
    a = first
    b = 0
    if HALVES or MINIMUM:
        a = permute(first, first, 0x1010)
        b = permute(first, first, 0x3232)
    a2 = a
    b2 = b
    if HALVES and MINIMUM:
        second = word_of(words[1], lane)
        a2 = permute(second, second, 0x1010)
        b2 = permute(second, second, 0x3232)
    elif HALVES:
        a2 = b
        b = 0
        b2 = 0
    return four_weights(front, a, b) + four_weights(back, a2, b2)


@device
def in_turn(f: registers((2, 8))):
    """Words of two rows as the tensor cores take them: of each 16 columns both rows' first halves, then the
    second ones."""
    out = registers(16)
    for i in static(2):
        for j in static(8):
            out[2 * j + i] = f[i, j]
    return out[()]


@device
def source_of(sources, place):
    """The row of x that comes to a place; `sources` where rows are dealt out to experts."""
    if EXPERTS == 2:
        line = load_int(sources + 4 * place)
    else:
        line = place
    return line


@device
def copy_step(source: registers(ROWS // 32 if EXPERTS == 2 else 1), x_stride, to, step, left):
    """Begin to copy a thread's part of 128 columns of x: 16 bytes of each half of every 32nd row, zeros
    behind the `left` rows that there are. `source` is where these rows lie, or the first of them.
    """
    for i in static(ROWS // 32):
        copied = 16 if left > 32 * i else 0
        at = source[i if EXPERTS == 2 else 0] + 256 * step
        if EXPERTS != 2:
            at = at + i * 32 * x_stride
        copy_async(to + 4096 * i, at, copied)
        copy_async(to + (128 * ROWS + 4096 * i), at + 128, copied)
    commit_copies()


@device
def scale_of(scales, sources, place, end):
    """The scale of the row of x that is at a place, over UNIT."""
    scale = 0.0
    if place < end:
        scale = load_float(scales + 4 * source_of(sources, place)) * (1.0 / UNIT)
    return scale


@device
def load_inside(address, inside):
    value = 0.0
    if inside:
        value = load_float(address)
    return value


@device
def load_four(address, stride, row, end, output, n_out):
    """What is at the outputs `output` and 8 further of this row and the next, 0 where these end."""
    here, further = row < end, row + 1 < end
    first, second = output < n_out, output + 8 < n_out
    return (
        load_inside(address, here & first),
        load_inside(address + stride, further & first),
        load_inside(address + 32, here & second),
        load_inside(address + stride + 32, further & second),
    )


@device
def store_inside(address, inside, value, up, before):
    if inside:
        if GATED:
            value = gated(value, up)
        if ACCUMULATE:
            value = value + before
        store_float(address, value)


@device
def store_four(
    address, stride, row, end, output, n_out, value: registers(4), up: registers(4), before: registers(4)
):
    """Results where `load_four` loads."""
    here, further = row < end, row + 1 < end
    first, second = output < n_out, output + 8 < n_out
    store_inside(address, here & first, value[0], up[0], before[0])
    store_inside(address + stride, further & first, value[1], up[1], before[1])
    store_inside(address + 32, here & second, value[2], up[2], before[2])
    store_inside(address + stride + 32, further & second, value[3], up[3], before[3])


@device
def bias_of(bias, output, n_out):
    value = 0.0
    if output < n_out:
        value = load_weight(bias + 4 * output)
    return value


def warpgroup_matmul(
    weights,
    tile_bytes,
    blocks,
    n_out,
    x,
    x_stride,
    scales,
    rows,
    bias,
    out,
    out_stride,
    tiles,
    sources,
    expert_bytes,
    other,
    other_bias,
):
    """out = (x @ weightsᵀ) · scales + bias, or if GATED f(that) · ((x @ otherᵀ) · scales + other_bias).

    Grid: (rows / ROWS, outputs / (128 · M / (1 + GATED))), of 256 threads.

    x is halves [rows, columns padded with zeros to a multiple of 128] in the order of `to_halves`, scales
    float32 [rows]. With EXPERTS a block takes a tile that `experts.deal` has made, if there are so many; 1: x
    is sorted by expert, 2: `sources` are its rows.
    """
    t = thread()
    lane = t & 31
    sub = t & 3
    steps = (blocks + 3) // 4
    pieces = 64 * steps
    base = block_x() * ROWS  # the first row, and the row behind the last
    end = rows
    if EXPERTS:
        if PDL:
            let_next_start()
            wait_for_grid()
        if block_x() >= load_int(tiles):
            return
        dealt = tiles + 16 + 16 * block_x()
        expert = load_int(dealt)
        base = load_int(dealt + 4)
        end = base + load_int(dealt + 8)
        weights = weights + expert * expert_bytes
        other = other + expert * expert_bytes
        bias = bias + 4 * expert * n_out
        other_bias = other_bias + 4 * expert * n_out
    # The first output of this lane; others are 8, 64, 72 … further.
    first = (2 * block_y() + shift_right(t, 7)) * (64 * M // (1 + GATED)) + (
        (shift_right(t, 5) & 3) * 16 + (lane >> 2)
    )
    tile = registers(M)
    codes = registers((M, 2, CODES))
    scale = registers((M, 2, SCALES))
    for m in static(M):
        at = shift_right(first, 4) + 4 * (m % (M // (1 + GATED)))
        if at > shift_right(n_out - 1, 4):
            at = shift_right(n_out - 1, 4)
        if m < M // (1 + GATED):
            tile[m] = weights + at * tile_bytes
        else:
            tile[m] = other + at * tile_bytes
        for i in static(2):
            codes[m, i] = CODES_OF(tile[m], pieces, lane + 32 * i)
            scale[m, i] = SCALES_OF(tile[m], pieces, lane + 32 * i)
    if PDL and not EXPERTS:
        let_next_start()
        wait_for_grid()
    held = (shared() + 1023) & -1024
    line = shift_right(t, 3)
    to = held + 128 * line + 16 * ((t & 7) ^ (line & 7))
    line = base + line
    left = add_words(end - line, 0)  # in 32 bits
    source = registers(ROWS // 32 if EXPERTS == 2 else 1)
    if EXPERTS == 2:
        for i in static(ROWS // 32):
            source[i] = x + 16 * (t & 7)
            if line + 32 * i < end:
                source[i] = source[i] + load_int(sources + 4 * (line + 32 * i)) * x_stride
    else:
        source[0] = x + line * x_stride + 16 * (t & 7)
    for step in static(STAGES - 1):
        copy_step(*source[()], x_stride, to + step * (256 * ROWS), step, left if step < steps else 0)
    acc = registers((M, ROWS // 2), 0.0)
    f = registers((2, 2, 8))  # weights of a part and of the one before: of two rows, 16 each
    own = registers((M, 2, 2))
    w = registers(8)
    quad = lane & 28  # of lanes that have a row together
    for i in static(2):
        own[0, i] = to_hand_on(*scale[0, i], lane + 32 * i)
        w[()] = WORDS_OF(*codes[0, i])
        f[0, i] = of_block(w[0], w[1], *own[0, i], quad) + of_block(w[2], w[3], *own[0, i], quad + 1)
    stage = 0
    wait_copies_but_1()
    show_products()
    barrier()
    for step in range(steps):
        piece = 64 * step + lane
        following = piece
        if step + 1 < steps:
            following = piece + 64
        b = held + stage * (ROWS * 256)
        for part in static(2 * M):
            half = b + (part % 2) * (ROWS * 128)
            if ROWS == 256:
                acc[part // 2] = group_products_256(*acc[part // 2], *in_turn(*f[part % 2]), half)
            elif ROWS == 128:
                acc[part // 2] = group_products_128(*acc[part // 2], *in_turn(*f[part % 2]), half)
            else:
                acc[part // 2] = group_products_64(*acc[part // 2], *in_turn(*f[part % 2]), half)
            wait_products_but_1()
            if part == 1:
                wait_copies()  # the next step's columns
                show_products()
                barrier()  # nor does anybody multiply those of the step before any more
                stage = stage + 1
                ahead = stage + 1
                if ahead >= STAGES:
                    ahead = ahead - STAGES
                if stage == STAGES:
                    stage = 0
                later = step + (STAGES - 1)
                copy_step(
                    *source[()], x_stride, to + ahead * (ROWS * 256), later, left if later < steps else 0
                )
            for i in static(2):
                if part % 2 == 0:  # the other two blocks of these rows; then what comes 128 columns later
                    w[()] = WORDS_OF(*codes[part // 2, i])
                    f[1, i] = of_block(w[4], w[5], *own[part // 2, i], quad + 2) + of_block(
                        w[6], w[7], *own[part // 2, i], quad + 3
                    )
                    codes[part // 2, i] = CODES_OF(tile[part // 2], pieces, following + 32 * i)
                    scale[part // 2, i] = SCALES_OF(tile[part // 2], pieces, following + 32 * i)
                else:
                    at = (piece if part + 1 < 2 * M else following) + 32 * i
                    own[(part // 2 + 1) % M, i] = to_hand_on(*scale[(part // 2 + 1) % M, i], at)
                    w[()] = WORDS_OF(*codes[(part // 2 + 1) % M, i])
                    f[0, i] = of_block(w[0], w[1], *own[(part // 2 + 1) % M, i], quad) + of_block(
                        w[2], w[3], *own[(part // 2 + 1) % M, i], quad + 1
                    )
    for m in static(M):
        if ROWS == 256:
            acc[m] = finished_products_256(*acc[m])
        elif ROWS == 128:
            acc[m] = finished_products_128(*acc[m])
        else:
            acc[m] = finished_products_64(*acc[m])
    b = registers((M, 2), 0.0)
    if BIAS:
        for m in static(M):
            for i in static(2):
                at = first + (64 * (m % (M // (1 + GATED))) + 8 * i)
                b[m, i] = bias_of(bias if m < M // (1 + GATED) else other_bias, at, n_out)
    base = base + 2 * sub
    target = out + base * out_stride + 4 * first
    for group in static(ROWS // 64):  # loads of several rows before what waits for them
        line = base + 64 * group
        d = registers((8, 2))
        for n in static(8):
            for j in static(2):
                d[n, j] = scale_of(scales, sources, line + (8 * n + j), end)
        for m in static(M // (1 + GATED)):
            at = target + 64 * group * out_stride + 256 * m
            output = first + 64 * m
            before = registers((8, 4), 0.0)
            if ACCUMULATE:
                for n in static(8):
                    before[n] = load_four(
                        at + 8 * n * out_stride, out_stride, line + 8 * n, end, output, n_out
                    )
            for n in static(8):
                value = registers((2, 4), 0.0)  # of the first matrix, and of the other
                for k in static(1 + GATED):
                    for i in static(4):
                        value[k, i] = acc[m + k * (M // 2), 32 * group + 4 * n + i] * d[n, i % 2]
                        value[k, i] = value[k, i] + b[m + k * (M // 2), i // 2]
                store_four(
                    at + 8 * n * out_stride,
                    out_stride,
                    line + 8 * n,
                    end,
                    output,
                    n_out,
                    *value[0],
                    *value[1],
                    *before[n],
                )
