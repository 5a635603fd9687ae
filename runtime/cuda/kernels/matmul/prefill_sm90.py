"""Prefill products with block-quantised weights for compute capability 9.0, with `wgmma` (sm_90a).

Each of the two warpgroups of a block computes 64 · M outputs of ROWS rows. `wgmma` takes its A operand, the
weights, from registers and its B operand, the activations, from shared memory. A lane therefore dequantises
exactly the weights that it multiplies: its pieces (see weights/packing.py) are A fragments, if every 16
columns of x are in the order of `convert_to_f16` with WARPGROUPS. Weights are never written to shared memory,
and no weight is dequantised twice for the same rows of x. While the tensor cores multiply one part (64
outputs by 64 columns), the lanes dequantise the next one.

`cp.async` copies the activations, float16, two steps of 128 columns ahead to shared memory, in rows of 128
bytes whose 16-byte parts are permuted by an exclusive or with the row's number, the 128-byte swizzle of
`wgmma`.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments
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
from .prefill_epilogue import PrefillArguments, bias_of, load_four, scale_of, store_four
from .prefill_mma import dequantize_back, dequantize_front, interleave_rows, pack_scales

LOAD_CODES = LOAD_SCALES = activate
# Constants of the launch: of the format, see unpack.py, and of the product, see prefill_epilogue.py.
CODE_WORDS = SCALE_WORDS = TWO_SCALES = MINIMUM = 1
UNIT = BIAS = ACCUMULATE = EXPERTS = GATED = PDL = 0
M = ROWS = 1
STAGES = 3  # buffers of 128 columns of x


@device
def copy_step(source: registers(ROWS // 32 if EXPERTS == 2 else 1), x_stride, to, step, left):
    """Start to copy a thread's part of 128 columns of x: 16 bytes of both 64-column halves of every 32nd row.

    Only the first `left` rows are copied, the others are zeros. `source` are the addresses of these rows, or
    that of the first one if they are equally far apart.
    """
    for i in static(ROWS // 32):
        copied = 16 if left > 32 * i else 0
        at = source[i if EXPERTS == 2 else 0] + 256 * step
        if EXPERTS != 2:
            at = at + i * 32 * x_stride
        copy_async(to + 4096 * i, at, copied)
        copy_async(to + (128 * ROWS + 4096 * i), at + 128, copied)
    commit_copies()


class GatedPrefillArguments(KernelArguments):
    """Arguments of `prefill_matmul_sm90`: those of the product with the (gate) matrix, and the up matrix of a
    gated product with its bias.
    """

    product: PrefillArguments
    other: int = 0
    other_bias: int = 0


def prefill_matmul_sm90(args: GatedPrefillArguments):
    """out = (x @ weightsᵀ) · scales + bias, plus the previous `out` with ACCUMULATE; with GATED
    f((x @ weightsᵀ) · scales + bias) · ((x @ otherᵀ) · scales + other_bias).

    Grid: (⌈rows / ROWS⌉, ⌈n_out / (128 · M / (1 + GATED))⌉), blocks of 256 threads; shared memory: STAGES ·
    256 · ROWS + 1024 bytes. With EXPERTS, block x takes tile x of `tiles`, if there are so many, and its
    expert's matrices.
    """
    weights = args.product.weights
    bias = args.product.bias
    other = args.other
    other_bias = args.other_bias
    t = thread()
    lane = t & 31
    sub = t & 3
    steps = (args.product.blocks + 3) // 4
    pieces = 64 * steps
    base = block_x() * ROWS
    end = args.product.rows
    if EXPERTS:
        if PDL:
            launch_dependents()
            wait_for_grid()
        if block_x() >= load_int(args.product.tiles):
            return
        expert_tile = args.product.tiles + 16 + 16 * block_x()
        expert = load_int(expert_tile)
        base = load_int(expert_tile + 4)
        end = base + load_int(expert_tile + 8)
        weights = weights + expert * args.product.expert_bytes
        other = other + expert * args.product.expert_bytes
        bias = bias + 4 * expert * args.product.n_out
        other_bias = other_bias + 4 * expert * args.product.n_out
    # The first output of this lane; its other outputs are 8, 64, 72 … further.
    first = (2 * block_y() + shift_right(t, 7)) * (64 * M // (1 + GATED)) + (
        (shift_right(t, 5) & 3) * 16 + (lane >> 2)
    )
    tile = registers(M)
    codes = registers((M, 2, CODE_WORDS))
    scale = registers((M, 2, SCALE_WORDS))
    for m in static(M):
        at = shift_right(first, 4) + 4 * (m % (M // (1 + GATED)))
        if at > shift_right(args.product.n_out - 1, 4):
            at = shift_right(args.product.n_out - 1, 4)
        if m < M // (1 + GATED):
            tile[m] = weights + at * args.product.tile_bytes
        else:
            tile[m] = other + at * args.product.tile_bytes
        for i in static(2):
            codes[m, i] = LOAD_CODES(tile[m], pieces, lane + 32 * i)
            scale[m, i] = LOAD_SCALES(tile[m], pieces, lane + 32 * i)
    if PDL and not EXPERTS:
        launch_dependents()
        wait_for_grid()
    x_tiles = (shared() + 1023) & -1024
    line = shift_right(t, 3)
    to = x_tiles + 128 * line + 16 * ((t & 7) ^ (line & 7))
    line = base + line
    left = add_words(end - line, 0)  # in 32 bits
    source = registers(ROWS // 32 if EXPERTS == 2 else 1)
    if EXPERTS == 2:
        for i in static(ROWS // 32):
            source[i] = args.product.x.address + 16 * (t & 7)
            if line + 32 * i < end:
                source[i] = (
                    source[i] + load_int(args.product.sources + 4 * (line + 32 * i)) * args.product.x.stride
                )
    else:
        source[0] = args.product.x.address + line * args.product.x.stride + 16 * (t & 7)
    for step in static(STAGES - 1):
        copy_step(
            *source[()], args.product.x.stride, to + step * (256 * ROWS), step, left if step < steps else 0
        )
    acc = registers((M, ROWS // 2), 0.0)
    f = registers((2, 2, 8))  # [part % 2, row g or g + 8, words]: weights of this part and the next
    own = registers((M, 2, 2))
    quad = lane & 28  # the first of the four lanes that share a row
    for i in static(2):
        own[0, i] = pack_scales(*scale[0, i], lane + 32 * i)
        f[0, i] = dequantize_front(*codes[0, i], *own[0, i], quad)
    stage = 0
    wait_copies_all_but_1()
    fence_async_proxy()
    barrier()
    for step in range(steps):
        piece = 64 * step + lane
        following = piece
        if step + 1 < steps:
            following = piece + 64
        b = x_tiles + stage * (ROWS * 256)
        for part in static(2 * M):
            half = b + (part % 2) * (ROWS * 128)
            if ROWS == 256:
                acc[part // 2] = wgmma_256(*acc[part // 2], *interleave_rows(*f[part % 2]), half)
            elif ROWS == 128:
                acc[part // 2] = wgmma_128(*acc[part // 2], *interleave_rows(*f[part % 2]), half)
            else:
                acc[part // 2] = wgmma_64(*acc[part // 2], *interleave_rows(*f[part % 2]), half)
            wgmma_wait_all_but_1()
            if part == 1:
                wait_copies()  # for the columns of the next step
                fence_async_proxy()
                barrier()  # after this, no warpgroup multiplies the columns of the previous step any more
                stage = stage + 1
                ahead = stage + 1
                if ahead >= STAGES:
                    ahead = ahead - STAGES
                if stage == STAGES:
                    stage = 0
                later = step + (STAGES - 1)
                copy_step(
                    *source[()],
                    args.product.x.stride,
                    to + ahead * (ROWS * 256),
                    later,
                    left if later < steps else 0,
                )
            for i in static(2):
                if part % 2 == 0:  # the other two blocks of these rows; then load the next 128 columns
                    f[1, i] = dequantize_back(*codes[part // 2, i], *own[part // 2, i], quad)
                    codes[part // 2, i] = LOAD_CODES(tile[part // 2], pieces, following + 32 * i)
                    scale[part // 2, i] = LOAD_SCALES(tile[part // 2], pieces, following + 32 * i)
                else:
                    at = (piece if part + 1 < 2 * M else following) + 32 * i
                    own[(part // 2 + 1) % M, i] = pack_scales(*scale[(part // 2 + 1) % M, i], at)
                    f[0, i] = dequantize_front(
                        *codes[(part // 2 + 1) % M, i], *own[(part // 2 + 1) % M, i], quad
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
                b[m, i] = bias_of(bias if m < M // (1 + GATED) else other_bias, at, args.product.n_out)
    base = base + 2 * sub
    target = args.product.out.address + base * args.product.out.stride + 4 * first
    for group in static(ROWS // 64):  # all loads are issued before the first use
        line = base + 64 * group
        d = registers((8, 2))
        for n in static(8):
            for j in static(2):
                d[n, j] = scale_of(args.product.scales, args.product.sources, line + (8 * n + j), end)
        for m in static(M // (1 + GATED)):
            at = target + 64 * group * args.product.out.stride + 256 * m
            output = first + 64 * m
            before = registers((8, 4), 0.0)
            if ACCUMULATE:
                for n in static(8):
                    before[n] = load_four(
                        at + 8 * n * args.product.out.stride,
                        args.product.out.stride,
                        line + 8 * n,
                        end,
                        output,
                        args.product.n_out,
                    )
            for n in static(8):
                value = registers((2, 4), 0.0)  # [gate or up, element]
                for k in static(1 + GATED):
                    for i in static(4):
                        value[k, i] = acc[m + k * (M // 2), 32 * group + 4 * n + i] * d[n, i % 2]
                        value[k, i] = value[k, i] + b[m + k * (M // 2), i // 2]
                store_four(
                    at + 8 * n * args.product.out.stride,
                    args.product.out.stride,
                    line + 8 * n,
                    end,
                    output,
                    args.product.n_out,
                    *value[0],
                    *value[1],
                    *before[n],
                )
