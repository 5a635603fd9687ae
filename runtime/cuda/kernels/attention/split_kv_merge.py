"""How the spans of a context become one result: of the warps of a block, then of the blocks.

Blocks are merged by the one that is done last, in an order that does not depend on which that is.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
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
    maximum,
    shared,
    shift_right,
    store_float,
    store_int,
    store_shared,
    store_shared_int,
    thread,
)
from ..common.common import store_quantized, warp_maximum, warp_sum

# Constants of the launch: see attention.py.
G = VD = VP = WARPS = SINKS = EMIT = 0
NOTHING = -1e30  # a maximum of no scores


@device
def combine(row, head, heads, live, sinks, partials, counters, out, out_stride, codes):
    """Merge what the warps of this block have left in shared memory.

    That is, of warp w and head g, from 4 · (w · G + g) · (VP + 2) on, VP values that are still to be divided
    by their sum, the maximum, and the sum. `live` blocks of the grid's y have a part of the same context.
    """
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    barrier()
    flag = shared() + 4 * WARPS * G * (VP + 2)
    part = partials + 4 * ((row * heads + head) * blocks_y() + block_y()) * (VP + 4)
    for i in range(thread(), G * VP, 32 * WARPS):
        g = div_u32(i, VP)
        dim = i - g * VP
        highest = NOTHING
        for m in static(WARPS):
            highest = maximum(highest, load_shared(shared() + 4 * ((m * G + g) * (VP + 2) + VP)))
        sum_ = 0.0
        value = 0.0
        for m in static(WARPS):
            at = shared() + 4 * (m * G + g) * (VP + 2)
            share = exp2(load_shared(at + 4 * VP) - highest)
            sum_ = sum_ + share * load_shared(at + 4 * VP + 4)
            value = value + share * load_shared(at + 4 * dim)
        if live == 1:
            if SINKS:
                sink = load_constant(sinks + 4 * (head + g))
                above = maximum(highest, sink)
                value = value * exp2(highest - above)
                sum_ = sum_ * exp2(highest - above) + exp2(sink - above)
            finish(
                out + row * out_stride,
                codes,
                row,
                heads,
                head + g,
                dim,
                div_f32(value, sum_),
            )
        else:
            to = part + 4 * g * blocks_y() * (VP + 4)
            store_float(to + 4 * dim, value)
            if dim == 0:
                store_float(to + 4 * VP, highest)
                store_float(to + 4 * VP + 4, sum_)
    if live == 1:
        return
    fence()
    barrier()
    counter = counters + 4 * (row * blocks_x() + block_x())
    if thread() == 0:
        store_shared_int(flag, atomic_add(counter, 1))
    barrier()
    if load_shared_int(flag) != live - 1:
        return
    fence()
    if thread() == 0:
        store_int(counter, 0)
    part = partials + 4 * (row * heads + head) * blocks_y() * (VP + 4)
    for i in range(thread(), G * live, 32 * WARPS):
        g = div_u32(i, live)
        at = part + 4 * (g * blocks_y() + i - g * live) * (VP + 4) + 4 * VP
        store_shared(shared() + 8 * i, load_float(at))
        store_shared(shared() + 8 * i + 4, load_float(at + 4))
    barrier()
    for g in range(warp, G, WARPS):  # each span's share of the result, divided by the sum
        held = shared() + 8 * g * live
        highest = NOTHING
        for m in range(lane, live, 32):
            highest = maximum(highest, load_shared(held + 8 * m))
        highest = warp_maximum(highest)
        sum_ = 0.0
        if SINKS:
            sink = load_constant(sinks + 4 * (head + g))
            highest = maximum(highest, sink)
            if lane == 0:
                sum_ = exp2(sink - highest)
        for m in range(lane, live, 32):
            sum_ = sum_ + exp2(load_shared(held + 8 * m) - highest) * load_shared(held + 8 * m + 4)
        sum_ = warp_sum(sum_)
        for m in range(lane, live, 32):
            store_shared(held + 8 * m, div_f32(exp2(load_shared(held + 8 * m) - highest), sum_))
    barrier()
    results = shared() + 8 * G * blocks_y()
    for i in range(4 * thread(), G * VP, 128 * WARPS):
        g = div_u32(i, VP)
        source = part + 4 * (g * blocks_y() * (VP + 4) + i - g * VP)
        value = registers(4, 0.0)
        for start in range(0, live, 8):
            x = registers((8, 4))
            for u in static(8):
                m = start + u
                if m >= live:
                    m = live - 1
                x[u, 0], x[u, 1], x[u, 2], x[u, 3] = load_float4(source + 4 * m * (VP + 4))
            for u in static(8):
                share = 0.0
                if start + u < live:
                    share = load_shared(shared() + 8 * (g * live + start + u))
                for j in static(4):
                    value[j] = value[j] + share * x[u, j]
        for j in static(4):
            store_shared(results + 4 * (i + j), value[j])
    barrier()
    for i in range(thread(), G * VP, 32 * WARPS):
        g = div_u32(i, VP)
        to = out + row * out_stride
        finish(to, codes, row, heads, head + g, i - g * VP, load_shared(results + 4 * i))


@device
def finish(out, codes, row, heads, head, dim, value):
    """A result into its row, and a warp's 32 of them in 8 bits."""
    i = head * VD + dim
    if dim < VD:
        store_float(out + 4 * i, value)
    if EMIT:
        store_quantized(codes, heads * VD // 32, row, i, value)
