"""The router of a mixture of experts: selects the experts of each row and their routing weights."""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
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

# Constants of the launch, with the meaning of the fields of `ops.Route`. SIGMOID: else softmax. BIAS: scores
# are
# selected with a bias. SCALES: experts have scales of their own.
SIGMOID = BIAS = SCALES = NORMALISED = GROUPS = TOP_GROUPS = GROUP_BEST = 0
TAKEN = -3e38  # the selection score of an expert that cannot be selected any more


@device
def mask_groups(selection, group_scores, n):
    """Leave only the experts of the TOP_GROUPS groups with the largest sums of their GROUP_BEST scores.

    `selection`, float32 [n], and `group_scores`, scratch of float32 [GROUPS], are in shared memory.
    """
    size = n // GROUPS
    for g in range(thread(), GROUPS, 32):
        last = 3e38
        last_at = -1
        group_score = 0.0
        for _ in range(GROUP_BEST):
            best = TAKEN
            best_at = g * size
            for i in range(g * size, g * size + size):
                value = load_shared(selection + 4 * i)
                behind = value < last
                if value == last:
                    behind = i > last_at
                if behind:
                    if value > best:
                        best = value
                        best_at = i
            group_score = group_score + best
            last = best
            last_at = best_at
        store_shared(group_scores + 4 * g, group_score)
    warp_barrier()
    for g in range(thread(), GROUPS, 32):
        group_score = load_shared(group_scores + 4 * g)
        rank = 0
        for i in range(GROUPS):
            value = load_shared(group_scores + 4 * i)
            if value > group_score:
                rank = rank + 1
            if value == group_score:
                if i < g:
                    rank = rank + 1
        if rank >= TOP_GROUPS:
            for i in range(g * size, g * size + size):
                store_shared(selection + 4 * i, TAKEN)
    warp_barrier()


class RouteArguments(KernelArguments):
    """Arguments of `route`: scores float32 [rows, n_experts], bias and expert_scales float32 [n_experts],
    experts (numbers as float32) and routing_weights float32 [rows, top]. `scale` multiplies all weights.
    """

    scores: Region
    n_experts: int
    bias: int = 0
    expert_scales: int = 0
    scale: float
    experts: Region
    routing_weights: Region
    top: int


def route(args: RouteArguments):
    """Select the `top` experts of each row and compute their routing weights: see `ops.Route`.

    Grid: (rows,), blocks of one warp. Shared memory: float32 [2 · n_experts + 2 · top + GROUPS]. A row of NaN
    scores selects expert 0 with NaN weights.
    """
    begin()
    lane = thread()
    row = args.scores.address + block_x() * args.scores.stride
    probabilities = shared()
    selection = probabilities + 4 * args.n_experts
    selected = selection + 4 * args.n_experts
    selected_weights = selected + 4 * args.top
    total = 1.0
    peak = TAKEN
    if not SIGMOID:
        for i in range(lane, args.n_experts, 32):
            peak = maximum(peak, load_float(row + 4 * i))
        peak = warp_maximum(peak)
        total = 0.0
        for i in range(lane, args.n_experts, 32):
            total = total + exp2((load_float(row + 4 * i) - peak) * 1.4426950408889634)
        total = warp_sum(total)
    for i in range(lane, args.n_experts, 32):
        if SIGMOID:
            p = sigmoid(load_float(row + 4 * i))
        else:
            p = div_f32(exp2((load_float(row + 4 * i) - peak) * 1.4426950408889634), total)
        store_shared(probabilities + 4 * i, p)
        if BIAS:
            p = p + load_constant(args.bias + 4 * i)
        store_shared(selection + 4 * i, p)
    warp_barrier()
    if GROUPS > 1:
        mask_groups(selection, selected_weights + 4 * args.top, args.n_experts)
    total = 0.0
    for j in range(args.top):
        best = TAKEN
        at = 0
        for i in range(lane, args.n_experts, 32):
            value = load_shared(selection + 4 * i)
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
        weight = load_shared(probabilities + 4 * at)
        total = total + weight
        if lane == (at & 31):
            store_shared(selection + 4 * at, TAKEN)
            store_shared(selected + 4 * j, to_float(at))
            store_shared(selected_weights + 4 * j, weight)
        warp_barrier()
    for j in range(lane, args.top, 32):
        number = load_shared(selected + 4 * j)
        weight = load_shared(selected_weights + 4 * j)
        if NORMALISED:
            weight = div_f32(weight, maximum(total, 1e-20))
        if SCALES:
            weight = weight * load_constant(args.expert_scales + 4 * to_int(number))
        store_float(args.experts.address + block_x() * args.experts.stride + 4 * j, number)
        store_float(
            args.routing_weights.address + block_x() * args.routing_weights.stride + 4 * j,
            weight * args.scale,
        )
