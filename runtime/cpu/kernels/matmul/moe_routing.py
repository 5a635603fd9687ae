"""Mixtures of experts: top-k routing, and rows permuted by expert.

In a decode step the gemv reads the matrices of the chosen experts in place. In a step of more rows they are
permuted by expert: each expert gets copies of the rows that chose it, contiguous and padded to whole tiles of
`expert_tile` rows, so that a gemm reads the weights of each expert once (Gale et al. 2022, "MegaBlocks").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, splat_f32
from .....quant.jit.simd.memory import load_f32, load_i32, loadv_f32, store_f32, store_i32, storev_f32
from ...abi.records import CHOICES, PERMUTE, ROUTE
from ..common.access import record_reader, step_at
from ..common.partition import partition, partition_rows, thread_rows
from ..common.vector_math import constant, exp, sigmoid

LOWEST = np.float32(-np.inf)
LEAST_SUM = np.float32(1e-20)  # lower bound of the divisor when routing weights are normalised

route_at = record_reader(ROUTE)
permute_at = record_reader(PERMUTE)
choices_at = record_reader(CHOICES)


@jit
def _probabilities(a: Any, scores: int, out: int) -> None:
    """Softmax or sigmoid of the float32 [n] at `scores`, to `out`, which is padded to whole vectors."""
    if a.sigmoid:
        for i in range(0, 4 * a.n, 4 * LANES):
            storev_f32(out + i, sigmoid(loadv_f32(scores + i)))
        return
    peak = load_f32(scores)
    for i in range(4, 4 * a.n, 4):
        peak = max(peak, load_f32(scores + i))
    for i in range(0, 4 * a.n, 4 * LANES):
        storev_f32(out + i, exp(loadv_f32(scores + i) - splat_f32(peak)))
    total = np.float32(0.0)
    for i in range(0, 4 * a.n, 4):
        total += load_f32(out + i)
    for i in range(0, 4 * a.n, 4):
        store_f32(out + i, load_f32(out + i) / total)


@jit
def _argmax(values: int, n: int) -> int:
    """Index of the largest of float32 [n], the first of equals; a valid index even if all are NaN."""
    best = 0
    for i in range(1, n):
        if load_f32(values + 4 * i) > load_f32(values + 4 * best):
            best = i
    return best


@jit
def _mask_groups(a: Any, selection: int, room: int) -> None:
    """Set the selection scores of experts outside the `top_groups` best groups to -inf.

    The score of a group is the sum of its `group_best` largest members. `room` is scratch, float32
    [groups + n / groups].
    """
    size = a.n // a.groups
    for g in range(a.groups):
        at = selection + 4 * g * size
        members = room + 4 * a.groups
        for i in range(0, 4 * size, 4):
            store_f32(members + i, load_f32(at + i))
        group_score = np.float32(0.0)
        for _ in range(min(a.group_best, size)):
            best = members + 4 * _argmax(members, size)
            group_score += load_f32(best)
            store_f32(best, LOWEST)
        store_f32(room + 4 * g, group_score)
    for _ in range(a.top_groups):
        store_f32(room + 4 * _argmax(room, a.groups), LOWEST)
    for g in range(a.groups):
        if load_f32(room + 4 * g) != LOWEST:
            for i in range(g * size, g * size + size):
                store_f32(selection + 4 * i, LOWEST)


@kernel
def route(arguments: int, step: int, thread: int) -> None:
    """Choose the top-k experts of each row: `experts` and `routing_weights`, float32 [rows, top].

    `runtime.ops.Route` has the definition. Threads partition the rows, or replicate the only one.
    """
    a, s = route_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    padded = 4 * ((a.n + LANES - 1) // LANES * LANES)
    probabilities = a.scratch + thread * a.scratch_stride
    selection, room = probabilities + padded, probabilities + 2 * padded
    for t in range(first, last):
        experts = a.experts + thread * a.experts_thread_stride + t * a.experts_stride
        routing_weights = a.routing_weights + thread * a.experts_thread_stride + t * a.routing_weights_stride
        _probabilities(a, a.scores + thread * a.scores_thread_stride + t * a.scores_stride, probabilities)
        for i in range(0, 4 * a.n, 4):
            bias = load_f32(a.bias + i) if a.bias != 0 else np.float32(0.0)
            store_f32(selection + i, load_f32(probabilities + i) + bias)
        if a.groups > 1:
            _mask_groups(a, selection, room)
        total = np.float32(0.0)
        for j in range(0, 4 * a.top, 4):
            best = _argmax(selection, a.n)
            store_f32(selection + 4 * best, LOWEST)
            store_f32(experts + j, np.float32(best))
            store_f32(routing_weights + j, load_f32(probabilities + 4 * best))
            total += load_f32(probabilities + 4 * best)
        factor = np.float32(a.scale)
        if a.normalised:
            factor = factor / max(total, LEAST_SUM) if total == total else total
        for j in range(0, 4 * a.top, 4):
            weight = load_f32(routing_weights + j) * factor
            if a.expert_scales != 0:
                weight *= load_f32(a.expert_scales + 4 * np.int64(load_f32(experts + j)))
            store_f32(routing_weights + j, weight)


@kernel
def sort_by_expert(arguments: int, step: int, thread: int) -> None:
    """Compute the permutation: counting sort of the (row, expert) pairs by expert.

    Writes `expert_tiles`, `source_rows`, `permuted_rows` and the number of permuted rows. Thread 0 does all
    of it, since there are only a few thousand pairs.
    """
    a, s = permute_at(arguments), step_at(step)
    if thread > 0:
        return
    n, tile = s.n_logits if a.on_logits_rows else s.n_rows, s.expert_tile
    for e in range(a.n_experts + 1):
        store_i32(a.expert_tiles + 4 * e, 0)
    for t in range(n):
        for j in range(0, 4 * a.top, 4):
            count = a.expert_tiles + 4 + 4 * np.int64(load_f32(a.experts + t * a.experts_stride + j))
            store_i32(count, load_i32(count) + 1)
    tiles, free = 0, a.expert_tiles + 4 * (a.n_experts + 1)  # next free permuted row of each expert
    for e in range(a.n_experts):
        rows = load_i32(a.expert_tiles + 4 * e + 4)
        store_i32(free + 4 * e, tiles * tile)
        tiles += (rows + tile - 1) // tile
        store_i32(a.expert_tiles + 4 * e + 4, tiles)
    for i in range(tiles * tile):
        store_i32(a.source_rows + 4 * i, -1)
    for t in range(n):
        for j in range(a.top):
            free_at = free + 4 * np.int64(load_f32(a.experts + t * a.experts_stride + 4 * j))
            at = load_i32(free_at)
            store_i32(free_at, at + 1)
            store_i32(a.source_rows + 4 * at, t)
            store_i32(a.permuted_rows + 4 * (t * a.top + j), at)
    store_i32(a.n_rows_address, tiles * tile)


@kernel
def permute_rows(arguments: int, step: int, thread: int) -> None:
    """out[i] = x[source_rows[i]], float32 rows; zeros for padding. Threads partition the permuted rows."""
    a, s = permute_at(arguments), step_at(step)
    first, last = partition_rows(load_i32(a.n_rows_address), thread, s)
    for t in range(first, last):
        source, out = load_i32(a.source_rows + 4 * t), a.out + t * a.out_stride
        row = a.x + source * a.x_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(out + i, loadv_f32(row + i) if source >= 0 else constant(0.0))


@kernel
def unpermute_rows(arguments: int, step: int, thread: int) -> None:
    """out[t] = Σ_j routing_weights[t, j] · x[permuted_rows[t, j]], float32. Threads partition the rows."""
    a, s = permute_at(arguments), step_at(step)
    first, last = partition_rows(s.n_logits if a.on_logits_rows else s.n_rows, thread, s)
    for t in range(first, last):
        out, routing_weights = a.out + t * a.out_stride, a.routing_weights + t * a.routing_weights_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            total = constant(0.0)
            for j in range(a.top):
                place = load_i32(a.permuted_rows + 4 * (t * a.top + j))
                total = fma(
                    loadv_f32(a.x + place * a.x_stride + i),
                    splat_f32(load_f32(routing_weights + 4 * j)),
                    total,
                )
            storev_f32(out + i, total)


@kernel
def add_choices(arguments: int, step: int, thread: int) -> None:
    """out = Σ x[j] over the choices of the only row, in their order. Threads partition the columns."""
    a, s = choices_at(arguments), step_at(step)
    first, last = partition(a.width // LANES, thread, s.n_threads)
    if a.on_logits_rows and s.n_logits == 0:
        last = first
    for column in range(4 * LANES * first, 4 * LANES * last, 4 * LANES):
        total = loadv_f32(a.x + column)
        for j in range(1, a.n):
            total = total + loadv_f32(a.x + j * a.x_stride + column)
        storev_f32(a.out + column, total)
