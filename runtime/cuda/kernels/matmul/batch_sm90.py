"""Products of 16 … 128 rows with block-quantised weights for compute capability 9.0, with `wgmma` (sm_90a).

So few rows leave the tensor cores idle while weights come from memory: what counts is that every
multiprocessor always waits for enough of them. `cp.async` therefore copies weights, packed as they are,
STAGES - 1 steps of 128 columns ahead to shared memory, together with the activations, and the columns of a
tile are divided among the blocks of a cluster, so that matrices with few rows occupy all
multiprocessors too. In the end each block of the cluster adds up its share of the sums, from the shared
memory of all of them, always in the same order.

As in prefill_sm90.py a lane dequantises exactly the weights that it multiplies, while the tensor cores
multiply the 64 columns before, and the activations are float16 in the order of `convert_to_f16` with
WARPGROUPS.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    add_words,
    barrier,
    block_x,
    block_y,
    block_z,
    blocks_x,
    cluster_barrier,
    commit_copies,
    copy_async,
    div_u32,
    fence_async_proxy,
    launch_dependents,
    load_cluster4,
    load_constant,
    load_float,
    load_float4,
    shared,
    shared_of_block,
    shift_right,
    store_float,
    store_float4,
    store_shared,
    thread,
    wait_copies,
    wait_copies_all_but_1,
    wait_copies_all_but_2,
    wait_copies_all_but_3,
    wait_copies_all_but_4,
    wait_for_grid,
    warp_barrier,
    wgmma_16,
    wgmma_32,
    wgmma_64,
    wgmma_128,
    wgmma_result_16,
    wgmma_result_32,
    wgmma_result_64,
    wgmma_result_128,
    wgmma_wait_all_but_1,
)
from ..common.common import activate, gated
from .prefill_mma import dequantize_back, dequantize_front, interleave_rows, pack_scales

LOAD_CODES = LOAD_SCALES = activate
# Constants of the launch: of the format, see unpack.py, and of the product.
CODE_WORDS = SCALE_WORDS = TWO_SCALES = MINIMUM = PLANE_0 = PLANE_1 = PLANE_2 = SUPER_PLANE = 1
UNIT = BIAS = ACCUMULATE = GATED = VECTORS = PDL = 0
ROWS = GROUPS = STAGES = 1
MAX_SPLIT = 8  # blocks of a cluster that every card has


class BatchMatmulArguments(KernelArguments):
    """Arguments of `batch_matmul_sm90`.

    `weights`, and `other` for the up matrix of a gated product, are packed matrices [n_out, 32 · blocks] with
    `tile_bytes` bytes for 16 rows (see weights/packing.py). `x` is float16 [rows, columns padded with zeros
    to a multiple of 128] in the order of `convert_to_f16`, in memory that has a multiple of ROWS rows: those
    behind the last may be anything, since they only make sums of their own, which are not stored. `scales`
    float32 [rows] are what its rows are to be multiplied by. `bias` is float32 [n_out], `out` float32
    [rows, n_out].
    """

    weights: int
    other: int = 0
    tile_bytes: int
    blocks: int
    n_out: int
    x: Region
    scales: int
    rows: int
    bias: int = 0
    out: Region


@device
def planes_of(tile, pieces, step):
    """The addresses that a lane copies from at a step: of each plane of a tile, and of its super-blocks."""
    lane = thread() & 31
    return (
        tile + (64 * PLANE_0 * step + 16 * lane),
        tile + (PLANE_0 * pieces + 64 * PLANE_1 * step + 16 * lane),
        tile + ((PLANE_0 + PLANE_1) * pieces + 64 * PLANE_2 * step + 16 * lane),
        tile + ((PLANE_0 + PLANE_1 + PLANE_2) * pieces + 16 * lane),
    )


@device
def copy_plane_part(to, source, inside):
    """Copy 16 bytes if they are inside the plane."""
    if inside:
        copy_async(to, source, 16)


@device
def copy_weights(plane: registers(4), to, step):
    """Start to copy a warp's tile of 16 matrix rows, 128 columns of it: the planes of unpack.py, one behind
    the other. `plane` are the lane's addresses at this step, but for the super-blocks; `to` is its first 16
    bytes.
    """
    lane = thread() & 31
    for i in static((4 * PLANE_0 + 31) // 32):
        if 32 * i + 32 <= 4 * PLANE_0:
            copy_async(to + 512 * i, plane[0] + 512 * i, 16)
        else:
            copy_plane_part(to + 512 * i, plane[0] + 512 * i, lane < 4 * PLANE_0 - 32 * i)
    if PLANE_1 == 8:
        copy_async(to + 64 * PLANE_0, plane[1], 16)
    elif PLANE_1:
        copy_plane_part(to + 64 * PLANE_0, plane[1], lane < 4 * PLANE_1)
    if PLANE_2:
        copy_plane_part(to + 64 * (PLANE_0 + PLANE_1), plane[2], lane < 4 * PLANE_2)
    if SUPER_PLANE:
        source = plane[3] + 16 * SUPER_PLANE * (step >> 1)
        copy_plane_part(to + 64 * (PLANE_0 + PLANE_1 + PLANE_2), source, lane < SUPER_PLANE)


@device
def copy_rows(source, line_stride, to):
    """Start to copy a thread's part of 128 columns of x, and close the group of copies of this step.

    A row's 64 columns are a line of eight pieces; the lines of the first 64 columns of all rows come before
    those of the others. `source` and `to` are the thread's first piece, `line_stride` is the way to the next
    row that it copies.
    """
    if 16 * GROUPS > 2 * ROWS:
        if thread() < 16 * ROWS:
            copy_async(to, source, 16)
    elif 16 * GROUPS > ROWS:
        copy_async(to, source, 16)
    else:
        for i in static(ROWS // (16 * GROUPS)):
            copy_async(to + 2048 * GROUPS * i, source, 16)
            copy_async(to + (128 * ROWS + 2048 * GROUPS * i), source + 128, 16)
            source = source + line_stride
    commit_copies()


@device
def multiply(acc: registers(ROWS // 2), f: registers((2, 8)), b):
    """Start acc + f · b for 64 columns."""
    if ROWS == 16:
        acc[()] = wgmma_16(*acc[()], *interleave_rows(*f[()]), b)
    elif ROWS == 32:
        acc[()] = wgmma_32(*acc[()], *interleave_rows(*f[()]), b)
    elif ROWS == 64:
        acc[()] = wgmma_64(*acc[()], *interleave_rows(*f[()]), b)
    else:
        acc[()] = wgmma_128(*acc[()], *interleave_rows(*f[()]), b)
    return acc[()]


@device
def load_row(address, left):
    """Four float32 of a row, of which only the first `left` are in the matrix; the others are 0."""
    value = registers(4, 0.0)
    if VECTORS:
        if left > 0:
            value[()] = load_float4(address)
    else:
        for j in static(4):
            if left > j:
                value[j] = load_float(address + 4 * j)
    return value[()]


@device
def store_row(address, left, value: registers(4)):
    """Store four float32 of a row, of which only the first `left` are in the matrix."""
    if VECTORS:
        if left > 0:
            store_float4(address, *value[()])
    else:
        for j in static(4):
            if left > j:
                store_float(address + 4 * j, value[j])


def batch_matmul_sm90(args: BatchMatmulArguments):
    """out = (x @ weightsᵀ) · scales + bias, plus the previous `out` with ACCUMULATE; with GATED
    f((x @ weightsᵀ) · scales) · ((x @ otherᵀ) · scales).

    Grid: (splits, ⌈n_out / outputs⌉, ⌈rows / ROWS⌉) in clusters of `splits` blocks, MAX_SPLIT at most and no
    more than there are steps of 128 columns, of 128 · GROUPS threads, where outputs = 64 · GROUPS / (1 +
    GATED). Each of the GROUPS warpgroups of a block computes 64 outputs of ROWS rows; with GATED the first
    half of them has the gate's. Shared memory: 1024 bytes for the alignment and the larger of STAGES · (256 ·
    ROWS + 4 · GROUPS · bytes of a warp's weights) and the sums, float32 [ROWS, 64 · GROUPS + 4]. VECTORS:
    rows of `out` begin at multiples of 16 bytes, and n_out is a multiple of 4.
    """
    t = thread()
    lane = t & 31
    warp = shift_right(t, 5)
    steps = (args.blocks + 3) // 4
    pieces = 64 * steps
    begin = div_u32(block_x() * steps, blocks_x())
    end = div_u32((block_x() + 1) * steps, blocks_x())
    base = block_z() * ROWS
    of_matrix = warp & (4 * GROUPS // (1 + GATED) - 1)
    at = block_y() * (4 * GROUPS // (1 + GATED)) + of_matrix
    if at > shift_right(args.n_out - 1, 4):
        at = shift_right(args.n_out - 1, 4)
    tile = args.weights + at * args.tile_bytes
    if GATED:
        if warp >= 2 * GROUPS:
            tile = args.other + at * args.tile_bytes
    x_tiles = (shared() + 1023) & -1024
    w_stage = 4 * GROUPS * (64 * (PLANE_0 + PLANE_1 + PLANE_2) + 16 * SUPER_PLANE)
    w_tiles = x_tiles + STAGES * (256 * ROWS) + warp * (64 * (PLANE_0 + PLANE_1 + PLANE_2) + 16 * SUPER_PLANE)
    plane = registers(4)
    plane[()] = planes_of(tile, pieces, begin)
    for s in static(STAGES - 1):
        if begin + s < end:
            copy_weights(*plane[()], w_tiles + (s * w_stage + 16 * lane), begin + s)
        plane[0] = plane[0] + 64 * PLANE_0
        plane[1] = plane[1] + 64 * PLANE_1
        plane[2] = plane[2] + 64 * PLANE_2
    if PDL:
        launch_dependents()
        wait_for_grid()
    line = shift_right(t, 3)
    to = x_tiles + 128 * line + 16 * ((t & 7) ^ (line & 7))
    source = args.x.address + 16 * (t & 7)
    if 16 * GROUPS > ROWS:  # a thread's only line: of the second 64 columns, if it is behind all rows
        if line >= ROWS:
            source = source + 128
        line = line & (ROWS - 1)
    line_stride = 16 * GROUPS * args.x.stride
    source = source + (base + line) * args.x.stride + 256 * begin
    for s in static(STAGES - 1):
        if begin + s < end:
            copy_rows(source, line_stride, to + s * (256 * ROWS))
        else:
            commit_copies()
        source = source + 256
    acc = registers(ROWS // 2, 0.0)
    f = registers((2, 2, 8))  # [half of the step, row g or g + 8, words]
    codes = registers((2, CODE_WORDS))
    scale = registers((2, SCALE_WORDS))
    own = registers((2, 2))
    quad = lane & 28  # the first of the four lanes that share a row
    if STAGES == 3:
        wait_copies_all_but_1()
    elif STAGES == 4:
        wait_copies_all_but_2()
    elif STAGES == 5:
        wait_copies_all_but_3()
    else:
        wait_copies_all_but_4()
    fence_async_proxy()
    barrier()
    for i in static(2):
        codes[i] = LOAD_CODES(w_tiles, 64, lane + 32 * i)
        scale[i] = LOAD_SCALES(w_tiles, 64, lane + 32 * i)
    for i in static(2):
        own[i] = pack_scales(*scale[i], 64 * begin + lane + 32 * i)
        f[0, i] = dequantize_front(*codes[i], *own[i], quad)
    stage = add_words(0, 0)  # in 32 bits
    free = add_words(STAGES - 1, 0)
    for step in range(begin, end):
        b = x_tiles + stage * (256 * ROWS)
        acc[()] = multiply(*acc[()], *f[0], b)
        wgmma_wait_all_but_1()
        for i in static(2):
            f[1, i] = dequantize_back(*codes[i], *own[i], quad)
        acc[()] = multiply(*acc[()], *f[1], b + 128 * ROWS)
        wgmma_wait_all_but_1()
        if STAGES == 3:  # for the next step
            wait_copies()
        elif STAGES == 4:
            wait_copies_all_but_1()
        elif STAGES == 5:
            wait_copies_all_but_2()
        else:
            wait_copies_all_but_3()
        before = stage
        stage = add_words(stage, 1)
        if stage == STAGES:
            stage = add_words(0, 0)
        warp_barrier()  # a warp's weights are its own
        for i in static(2):
            codes[i] = LOAD_CODES(w_tiles + stage * w_stage, 64, lane + 32 * i)
            scale[i] = LOAD_SCALES(w_tiles + stage * w_stage, 64, lane + 32 * i)
        fence_async_proxy()
        barrier()  # after this, no warpgroup multiplies the columns of the previous step any more
        later = add_words(step, STAGES - 1)
        if later < end:
            copy_weights(*plane[()], w_tiles + (free * w_stage + 16 * lane), later)
            copy_rows(source, line_stride, to + free * (256 * ROWS))
        else:
            commit_copies()
        plane[0] = plane[0] + 64 * PLANE_0
        plane[1] = plane[1] + 64 * PLANE_1
        plane[2] = plane[2] + 64 * PLANE_2
        source = source + 256
        free = before
        for i in static(2):
            own[i] = pack_scales(*scale[i], 64 * step + 64 + lane + 32 * i)
            f[0, i] = dequantize_front(*codes[i], *own[i], quad)
    if ROWS == 16:
        acc[()] = wgmma_result_16(*acc[()])
    elif ROWS == 32:
        acc[()] = wgmma_result_32(*acc[()])
    elif ROWS == 64:
        acc[()] = wgmma_result_64(*acc[()])
    else:
        acc[()] = wgmma_result_128(*acc[()])
    barrier()  # all have multiplied: the sums take the place of x
    sums = x_tiles + 4 * (2 * (lane & 3) * (64 * GROUPS + 4) + 16 * warp + shift_right(lane, 2))
    for n in static(ROWS // 8):
        for j in static(4):
            store_shared(sums + 4 * ((8 * n + j % 2) * (64 * GROUPS + 4) + 8 * (j // 2)), acc[4 * n + j])
    cluster_barrier()
    n = args.rows - base
    if n > ROWS:
        n = ROWS
    # A `range` would divide by its step with a call: see `div_near`.
    item = add_words(block_x() * (128 * GROUPS), t)
    while item < n * (16 * GROUPS // (1 + GATED)):
        row = div_u32(item, 16 * GROUPS // (1 + GATED))
        column = 4 * (item & (16 * GROUPS // (1 + GATED) - 1))
        output = block_y() * (64 * GROUPS // (1 + GATED)) + column
        inside = args.n_out - output
        target = args.out.address + (base + row) * args.out.stride + 4 * output
        before = registers(4, 0.0)
        if ACCUMULATE:
            before[()] = load_row(target, inside)
        factor = load_float(args.scales + 4 * (base + row)) * (1.0 / UNIT)
        value = registers((2, 4), 0.0)  # [gate or up, element]
        for k in static(1 + GATED):
            local = x_tiles + 4 * (row * (64 * GROUPS + 4) + k * (32 * GROUPS) + column)
            part = registers((MAX_SPLIT, 4), 0.0)
            for s in static(MAX_SPLIT):  # all loads are issued before the first use
                if s < blocks_x():
                    part[s] = load_cluster4(shared_of_block(local, s))
            for s in static(MAX_SPLIT):
                for j in static(4):
                    value[k, j] = value[k, j] + part[s, j]
            for j in static(4):
                value[k, j] = value[k, j] * factor
        if BIAS:
            for j in static(4):
                if inside > j:
                    value[0, j] = value[0, j] + load_constant(args.bias + 4 * (output + j))
        result = registers(4)
        for j in static(4):
            result[j] = value[0, j]
            if GATED:
                result[j] = gated(value[0, j], value[1, j])
            result[j] = result[j] + before[j]
        store_row(target, inside, *result[()])
        item = add_words(item, blocks_x() * (128 * GROUPS))
    cluster_barrier()  # until all have read this block's sums
