"""Which experts a row goes to."""

from __future__ import annotations

from ...compile.stage import device, static
from ...ptx import (
    block_x,
    div_f32,
    exp2,
    load_constant,
    load_float,
    load_shared,
    maximum,
    shared,
    shuffle_xor,
    store_float,
    store_shared,
    thread,
    to_float,
    to_int,
    warp_barrier,
)
from ..common.common import begin, sigmoid, warp_maximum, warp_sum

# Constants of the launch; the last three as `ops.Route` has them.
SIGMOID = BIAS = SCALES = NORMALISED = GROUPS = TOP_GROUPS = GROUP_BEST = 0
TAKEN = -3e38  # what is not to be chosen any more


@device
def leave_best_groups(choice, merits, n):
    """Only the groups whose best add up to most may be chosen from."""
    size = n // GROUPS
    for g in range(thread(), GROUPS, 32):
        last = 3e38
        last_at = -1
        merit = 0.0
        for _ in range(GROUP_BEST):
            best = TAKEN
            best_at = g * size
            for i in range(g * size, g * size + size):
                value = load_shared(choice + 4 * i)
                behind = value < last
                if value == last:
                    behind = i > last_at
                if behind:
                    if value > best:
                        best = value
                        best_at = i
            merit = merit + best
            last = best
            last_at = best_at
        store_shared(merits + 4 * g, merit)
    warp_barrier()
    for g in range(thread(), GROUPS, 32):
        merit = load_shared(merits + 4 * g)
        better = 0
        for i in range(GROUPS):
            value = load_shared(merits + 4 * i)
            if value > merit:
                better = better + 1
            if value == merit:
                if i < g:
                    better = better + 1
        if better >= TOP_GROUPS:
            for i in range(g * size, g * size + size):
                store_shared(choice + 4 * i, TAKEN)
    warp_barrier()


def route(
    scores,
    scores_stride,
    n,
    bias,
    expert_scales,
    scale: float,
    experts,
    experts_stride,
    routing_weights,
    routing_weights_stride,
    top,
):
    """Numbers and routing weights of the top of n experts; see `ops.Route`. Grid: (rows,), of 32 threads.

    A row of scores that are no numbers chooses expert 0, with routing weights that are none either.
    """
    begin()
    lane = thread()
    row = scores + block_x() * scores_stride
    held = shared()
    choice = held + 4 * n
    chosen = choice + 4 * n
    chosen_shares = chosen + 4 * top
    total = 1.0
    peak = TAKEN
    if not SIGMOID:
        for i in range(lane, n, 32):
            peak = maximum(peak, load_float(row + 4 * i))
        peak = warp_maximum(peak)
        total = 0.0
        for i in range(lane, n, 32):
            total = total + exp2((load_float(row + 4 * i) - peak) * 1.4426950408889634)
        total = warp_sum(total)
    for i in range(lane, n, 32):
        if SIGMOID:
            p = sigmoid(load_float(row + 4 * i))
        else:
            p = div_f32(exp2((load_float(row + 4 * i) - peak) * 1.4426950408889634), total)
        store_shared(held + 4 * i, p)
        if BIAS:
            p = p + load_constant(bias + 4 * i)
        store_shared(choice + 4 * i, p)
    warp_barrier()
    if GROUPS > 1:
        leave_best_groups(choice, chosen_shares + 4 * top, n)
    total = 0.0
    for j in range(top):
        best = TAKEN
        at = 0
        for i in range(lane, n, 32):
            value = load_shared(choice + 4 * i)
            if value > best:
                best = value
                at = i
        for b in static(5):
            other = shuffle_xor(best, 1 << b)
            other_at = to_int(shuffle_xor(to_float(at), 1 << b))
            if other == best:
                if other_at < at:
                    at = other_at
            if other > best:
                best = other
                at = other_at
        share = load_shared(held + 4 * at)
        total = total + share
        if lane == (at & 31):
            store_shared(choice + 4 * at, TAKEN)
            store_shared(chosen + 4 * j, to_float(at))
            store_shared(chosen_shares + 4 * j, share)
        warp_barrier()
    for j in range(lane, top, 32):
        number = load_shared(chosen + 4 * j)
        share = load_shared(chosen_shares + 4 * j)
        if NORMALISED:
            share = div_f32(share, maximum(total, 1e-20))
        if SCALES:
            share = share * load_constant(expert_scales + 4 * to_int(number))
        store_float(experts + block_x() * experts_stride + 4 * j, number)
        store_float(routing_weights + block_x() * routing_weights_stride + 4 * j, share * scale)
