"""Mixtures of experts: choosing them, and dealing rows out to those chosen.

A step of one row has its experts' matrices read where they lie (`matvec`). In a step of many rows each expert
gets copies of the rows that chose it, side by side in whole tiles, so that products go through an expert's
weights once (Gale et al. 2022, "MegaBlocks").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.jit import jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import (
    fma,
    load_f32,
    load_i32,
    loadv_f32,
    splat_f32,
    store_f32,
    store_i32,
    storev_f32,
)
from ...abi.records import DEAL, ROUTE
from ...simd.tile_sizes import TOKENS
from ..common.access import my_rows, reader, share_rows, step_at
from ..common.vector_math import constant, exp, sigmoid

LOWEST = np.float32(-np.inf)
LEAST = np.float32(1e-20)  # that routing_weights are divided by

route_at = reader(ROUTE)
deal_at = reader(DEAL)


@jit
def _probabilities(a: Any, scores: int, out: int) -> None:
    """Softmax or sigmoids of float32 [n], to memory with room for whole vectors."""
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
def _best(values: int, n: int) -> int:
    """The number of the largest of float32 [n], the first of equals; one of them even if all are NaN."""
    best = 0
    for i in range(1, n):
        if load_f32(values + 4 * i) > load_f32(values + 4 * best):
            best = i
    return best


@jit
def _keep_best_groups(a: Any, merits: int, room: int) -> None:
    """Rule out the members of all but the `top_groups` groups whose `group_best` best add up to most.

    `room` is float32 [groups + n / groups].
    """
    size = a.n // a.groups
    for g in range(a.groups):
        at = merits + 4 * g * size
        members = room + 4 * a.groups
        for i in range(0, 4 * size, 4):
            store_f32(members + i, load_f32(at + i))
        merit = np.float32(0.0)
        for _ in range(min(a.group_best, size)):
            best = members + 4 * _best(members, size)
            merit += load_f32(best)
            store_f32(best, LOWEST)
        store_f32(room + 4 * g, merit)
    for _ in range(a.top_groups):
        store_f32(room + 4 * _best(room, a.groups), LOWEST)
    for g in range(a.groups):
        if load_f32(room + 4 * g) != LOWEST:
            for i in range(g * size, g * size + size):
                store_f32(merits + 4 * i, LOWEST)


@kernel
def route(arguments: int, step: int, thread: int) -> None:
    """The experts of each row, and their routing_weights; as `ops.Route` says."""
    a, s = route_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    padded = 4 * ((a.n + LANES - 1) // LANES * LANES)
    probabilities = a.scratch + thread * a.scratch_stride
    merits, room = probabilities + padded, probabilities + 2 * padded
    for t in range(first, last):
        experts = a.experts + thread * a.private + t * a.experts_stride
        routing_weights = a.routing_weights + thread * a.private + t * a.routing_weights_stride
        _probabilities(a, a.scores + thread * a.scores_private + t * a.scores_stride, probabilities)
        for i in range(0, 4 * a.n, 4):
            bias = load_f32(a.bias + i) if a.bias != 0 else np.float32(0.0)
            store_f32(merits + i, load_f32(probabilities + i) + bias)
        if a.groups > 1:
            _keep_best_groups(a, merits, room)
        total = np.float32(0.0)
        for j in range(0, 4 * a.top, 4):
            best = _best(merits, a.n)
            store_f32(merits + 4 * best, LOWEST)
            store_f32(experts + j, np.float32(best))
            store_f32(routing_weights + j, load_f32(probabilities + 4 * best))
            total += load_f32(probabilities + 4 * best)
        factor = np.float32(a.scale)
        if a.normalised:
            factor = factor / max(total, LEAST) if total == total else total
        for j in range(0, 4 * a.top, 4):
            share = load_f32(routing_weights + j) * factor
            if a.expert_scales != 0:
                share *= load_f32(a.expert_scales + 4 * np.int64(load_f32(experts + j)))
            store_f32(routing_weights + j, share)


@kernel
def deal(arguments: int, step: int, thread: int) -> None:
    """Give every choice a place among the dealt rows. One thread does it: a few thousand numbers."""
    a, s = deal_at(arguments), step_at(step)
    if thread > 0:
        return
    n = s.n_logits if a.on_logits_rows else s.n_rows
    for e in range(a.n_experts + 1):
        store_i32(a.tiles + 4 * e, 0)
    for t in range(n):
        for j in range(0, 4 * a.top, 4):
            count = a.tiles + 4 + 4 * np.int64(load_f32(a.experts + t * a.experts_stride + j))
            store_i32(count, load_i32(count) + 1)
    tiles, free = 0, a.tiles + 4 * (a.n_experts + 1)  # each expert's next place
    for e in range(a.n_experts):
        rows = load_i32(a.tiles + 4 * e + 4)
        store_i32(free + 4 * e, tiles * TOKENS)
        tiles += (rows + TOKENS - 1) // TOKENS
        store_i32(a.tiles + 4 * e + 4, tiles)
    for i in range(tiles * TOKENS):
        store_i32(a.sources + 4 * i, -1)
    for t in range(n):
        for j in range(a.top):
            free_at = free + 4 * np.int64(load_f32(a.experts + t * a.experts_stride + 4 * j))
            at = load_i32(free_at)
            store_i32(free_at, at + 1)
            store_i32(a.sources + 4 * at, t)
            store_i32(a.places + 4 * (t * a.top + j), at)
    store_i32(a.rows_at, tiles * TOKENS)


@kernel
def copy_dealt(arguments: int, step: int, thread: int) -> None:
    """out[i] = x[sources[i]], zeros where there is none."""
    a, s = deal_at(arguments), step_at(step)
    first, last = share_rows(load_i32(a.rows_at), thread, s.n_threads)
    for t in range(first, last):
        source, out = load_i32(a.sources + 4 * t), a.out + t * a.out_stride
        row = a.x + source * a.x_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(out + i, loadv_f32(row + i) if source >= 0 else constant(0.0))


@kernel
def gather_dealt(arguments: int, step: int, thread: int) -> None:
    """out[t] = Σ routing_weights[t, j] · x[places[t, j]]."""
    a, s = deal_at(arguments), step_at(step)
    first, last = share_rows(s.n_logits if a.on_logits_rows else s.n_rows, thread, s.n_threads)
    for t in range(first, last):
        out, routing_weights = a.out + t * a.out_stride, a.routing_weights + t * a.routing_weights_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            total = constant(0.0)
            for j in range(a.top):
                place = load_i32(a.places + 4 * (t * a.top + j))
                total = fma(
                    loadv_f32(a.x + place * a.x_stride + i),
                    splat_f32(load_f32(routing_weights + 4 * j)),
                    total,
                )
            storev_f32(out + i, total)
