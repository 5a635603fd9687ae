"""The end of split-KV attention: merges the softmaxes of a block's warps, then those of the blocks.

The last block that is done with a row merges the blocks' results, in an order that does not depend on which
block that is, so that results are repeatable.

Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    as_float,
    atomic_add,
    barrier,
    block_x,
    block_y,
    blocks_x,
    blocks_y,
    div_f32,
    div_u32,
    exp2,
    fence,
    load_constant,
    load_float,
    load_float4,
    load_shared,
    load_shared_int,
    load_shared_int2,
    maximum,
    pack_f16,
    shared,
    shift_right,
    store_float,
    store_int,
    store_shared,
    store_shared2,
    store_shared_int,
    store_short,
    thread,
    warp_barrier,
)
from ..common.common import quotient, store_quantized, warp_maximum, warp_sum
from .scores import NO_MAXIMUM

G = VD = VP = WARPS = SINKS = EMIT = 0  # constants: see `simt.simt_attention`
PLANNED = 0  # see `decode.decode_attention`


class SplitOutput(KernelArguments):
    """Where splits are merged, and where the result goes."""

    # Sums, the maximum and the total of each split: float32 [rows, heads, splits, VP + 4], with PLANNED
    # [items of the plan, heads, VP + 4].
    partials: int
    counters: int  # int32 [rows, blocks of x]: blocks that are done; zeros before and after the launch
    out: Region  # float32 [rows, heads · VD]
    codes: int  # with EMIT = 1: `out` in 8 bits, see `common.emit_codes`
    heads: int
    halves: int = 0  # with EMIT = 2: `out` as float16 in the order of `convert_to_f16` with WARPGROUPS
    half_stride: int = 0  # bytes from row to row of these


@device
def merge_splits(row, head, split, splits, sinks, output: SplitOutput, of_warp, of_head):
    """Merge the results that the warps of this block have left in shared memory, then those of all blocks.

    Shared memory holds for each warp and head VP sums of probability · value, the maximum of the scores, and
    the sum of the probabilities, in float32; a warp has `of_warp` bytes of it, and each head `of_head` of
    these. Behind them there must be room for float32 [G, VP] and a word. `head` is the first head of the
    block; `splits` is the number of blocks (grid y) that have a part of the row's context, `split` the number
    of this one.
    """
    barrier()
    results = shared() + WARPS * of_warp
    flag = results + 4 * G * VP
    if PLANNED:  # in numbers, from split to split, and from head to head
        split_stride = output.heads * (VP + 4)
        head_stride = VP + 4
        first = output.partials + 4 * ((block_y() - split) * output.heads + head) * (VP + 4)
    else:
        split_stride = VP + 4
        head_stride = blocks_y() * (VP + 4)
        first = output.partials + 4 * (row * output.heads + head) * blocks_y() * (VP + 4)
    part = first + 4 * split * split_stride
    for i in range(2 * thread(), G * VP, 64 * WARPS):  # two dimensions a thread
        g = quotient(i, VP)
        dim = i - g * VP
        highest = NO_MAXIMUM
        for m in static(WARPS):
            highest = maximum(highest, load_shared(shared() + m * of_warp + g * of_head + 4 * VP))
        sum_ = 0.0
        value = registers(2, 0.0)
        for m in static(WARPS):
            at = shared() + m * of_warp + g * of_head
            share = exp2(load_shared(at + 4 * VP) - highest)
            sum_ = sum_ + share * load_shared(at + 4 * VP + 4)
            x = registers(2)
            x[0], x[1] = load_shared_int2(at + 4 * dim)
            for j in static(2):
                value[j] = value[j] + share * as_float(x[j])
        if splits == 1:
            if SINKS:
                sink = load_constant(sinks + 4 * (head + g))
                above = maximum(highest, sink)
                for j in static(2):
                    value[j] = value[j] * exp2(highest - above)
                sum_ = sum_ * exp2(highest - above) + exp2(sink - above)
            inverse = div_f32(1.0, sum_)
            store_shared2(results + 4 * i, value[0] * inverse, value[1] * inverse)
        else:
            to = part + 4 * g * head_stride
            for j in static(2):
                store_float(to + 4 * (dim + j), value[j])
            if dim == 0:
                store_float(to + 4 * VP, highest)
                store_float(to + 4 * VP + 4, sum_)
    if splits > 1:
        if merge_blocks(row, head, splits, first, head_stride, split_stride, sinks, output, flag) == 0:
            return
        results = shared() + 8 * G * splits
    warp_barrier()
    for start in range(2 * (thread() & -32), G * VP, 64 * WARPS):
        for j in static(2):
            i = start + 32 * j + (thread() & 31)
            if i < G * VP:
                g = quotient(i, VP)
                store_result(output, row, head + g, i - g * VP, load_shared(results + 4 * i))


@device
def merge_blocks(row, head, splits, first, head_stride, split_stride, sinks, output: SplitOutput, flag):
    """Merge the results of all blocks, if this block is the last one of a row, into shared memory behind the
    first 8 · G · splits bytes; otherwise returns 0.
    """
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    counter = output.counters + 4 * (row * blocks_x() + block_x())
    barrier()
    if thread() == 0:  # a barrier and a fence of one thread order the accesses of all
        fence()
        before = atomic_add(counter, 1)
        fence()
        store_shared_int(flag, before)
    barrier()
    if load_shared_int(flag) != splits - 1:
        return 0
    if thread() == 0:
        store_int(counter, 0)
    for i in range(thread(), G * splits, 32 * WARPS):
        g = div_u32(i, splits)
        at = first + 4 * (g * head_stride + (i - g * splits) * split_stride) + 4 * VP
        store_shared(shared() + 8 * i, load_float(at))
        store_shared(shared() + 8 * i + 4, load_float(at + 4))
    barrier()
    for g in range(warp, G, WARPS):  # the weight of each split: its share of the sum of all probabilities
        sums = shared() + 8 * g * splits
        highest = NO_MAXIMUM
        for m in range(lane, splits, 32):
            highest = maximum(highest, load_shared(sums + 8 * m))
        highest = warp_maximum(highest)
        sum_ = 0.0
        if SINKS:
            sink = load_constant(sinks + 4 * (head + g))
            highest = maximum(highest, sink)
            if lane == 0:
                sum_ = exp2(sink - highest)
        for m in range(lane, splits, 32):
            sum_ = sum_ + exp2(load_shared(sums + 8 * m) - highest) * load_shared(sums + 8 * m + 4)
        inverse = div_f32(1.0, warp_sum(sum_))
        for m in range(lane, splits, 32):
            store_shared(sums + 8 * m, exp2(load_shared(sums + 8 * m) - highest) * inverse)
    barrier()
    results = shared() + 8 * G * splits
    for i in range(4 * thread(), G * VP, 128 * WARPS):
        g = quotient(i, VP)
        source = first + 4 * (g * head_stride + i - g * VP)
        value = registers(4, 0.0)
        for start in range(0, splits, 8):
            x = registers((8, 4))
            for u in static(8):
                m = start + u
                if m >= splits:
                    m = splits - 1
                x[u, 0], x[u, 1], x[u, 2], x[u, 3] = load_float4(source + 4 * m * split_stride)
            for u in static(8):
                share = 0.0
                if start + u < splits:
                    share = load_shared(shared() + 8 * (g * splits + start + u))
                for j in static(4):
                    value[j] = value[j] + share * x[u, j]
        for j in static(4):
            store_shared(results + 4 * (i + j), value[j])
    barrier()
    return 1


@device
def store_result(output: SplitOutput, row, head, dim, value):
    """Store dimension `dim` of a head, with EMIT = 2 as float16; with EMIT = 1 a warp also stores its 32
    dimensions in 8 bits.
    """
    i = head * VD + dim
    if dim < VD:
        if EMIT == 2:  # column 4s + j + 2k of 16 becomes 8j + 2s + k
            at = (i & -16) + 8 * (i & 1) + (shift_right(i, 1) & 6) + (shift_right(i, 1) & 1)
            store_short(output.halves + row * output.half_stride + 2 * at, pack_f16(value, 0.0))
        else:
            store_float(output.out.address + row * output.out.stride + 4 * i, value)
    if EMIT == 1:
        store_quantized(output.codes, output.heads * VD // 32, row, i, value)
