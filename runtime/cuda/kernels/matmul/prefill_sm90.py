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

from ...compile.stage import device, registers, static
from ...ptx import (
    add_words,
    barrier,
    block_x,
    block_y,
    commit_copies,
    copy_async,
    fence_async_proxy,
    launch_dependents,
    load_int,
    shared,
    shift_right,
    thread,
    wait_copies,
    wait_copies_all_but_1,
    wait_for_grid,
    wgmma_64,
    wgmma_128,
    wgmma_256,
    wgmma_result_64,
    wgmma_result_128,
    wgmma_result_256,
    wgmma_wait_all_but_1,
)
from ..common.common import activate
from .prefill_epilogue import bias_of, load_four, scale_of, store_four
from .prefill_mma import in_turn, of_block, to_hand_on

LOAD_CODES = UNPACK_CODES = LOAD_SCALES = UNPACK_SCALES = activate
CODE_WORDS = SCALE_WORDS = TWO_SCALES = MINIMUM = 1  # constants of the launch
UNIT = BIAS = ACCUMULATE = EXPERTS = GATED = PDL = 0  # also
M = ROWS = 1  # also
STAGES = 3


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


def prefill_matmul_sm90(
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

    x is halves [rows, columns padded with zeros to a multiple of 128] in the order of `convert_to_f16`,
    scales float32 [rows]. With EXPERTS a block takes a tile that `experts.deal` has made, if there are so
    many; 1: x is sorted by expert, 2: `sources` are its rows.
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
            launch_dependents()
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
    codes = registers((M, 2, CODE_WORDS))
    scale = registers((M, 2, SCALE_WORDS))
    for m in static(M):
        at = shift_right(first, 4) + 4 * (m % (M // (1 + GATED)))
        if at > shift_right(n_out - 1, 4):
            at = shift_right(n_out - 1, 4)
        if m < M // (1 + GATED):
            tile[m] = weights + at * tile_bytes
        else:
            tile[m] = other + at * tile_bytes
        for i in static(2):
            codes[m, i] = LOAD_CODES(tile[m], pieces, lane + 32 * i)
            scale[m, i] = LOAD_SCALES(tile[m], pieces, lane + 32 * i)
    if PDL and not EXPERTS:
        launch_dependents()
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
        w[()] = UNPACK_CODES(*codes[0, i])
        f[0, i] = of_block(w[0], w[1], *own[0, i], quad) + of_block(w[2], w[3], *own[0, i], quad + 1)
    stage = 0
    wait_copies_all_but_1()
    fence_async_proxy()
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
                acc[part // 2] = wgmma_256(*acc[part // 2], *in_turn(*f[part % 2]), half)
            elif ROWS == 128:
                acc[part // 2] = wgmma_128(*acc[part // 2], *in_turn(*f[part % 2]), half)
            else:
                acc[part // 2] = wgmma_64(*acc[part // 2], *in_turn(*f[part % 2]), half)
            wgmma_wait_all_but_1()
            if part == 1:
                wait_copies()  # the next step's columns
                fence_async_proxy()
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
                    w[()] = UNPACK_CODES(*codes[part // 2, i])
                    f[1, i] = of_block(w[4], w[5], *own[part // 2, i], quad + 2) + of_block(
                        w[6], w[7], *own[part // 2, i], quad + 3
                    )
                    codes[part // 2, i] = LOAD_CODES(tile[part // 2], pieces, following + 32 * i)
                    scale[part // 2, i] = LOAD_SCALES(tile[part // 2], pieces, following + 32 * i)
                else:
                    at = (piece if part + 1 < 2 * M else following) + 32 * i
                    own[(part // 2 + 1) % M, i] = to_hand_on(*scale[(part // 2 + 1) % M, i], at)
                    w[()] = UNPACK_CODES(*codes[(part // 2 + 1) % M, i])
                    f[0, i] = of_block(w[0], w[1], *own[(part // 2 + 1) % M, i], quad) + of_block(
                        w[2], w[3], *own[(part // 2 + 1) % M, i], quad + 1
                    )
    for m in static(M):
        if ROWS == 256:
            acc[m] = wgmma_result_256(*acc[m])
        elif ROWS == 128:
            acc[m] = wgmma_result_128(*acc[m])
        else:
            acc[m] = wgmma_result_64(*acc[m])
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
