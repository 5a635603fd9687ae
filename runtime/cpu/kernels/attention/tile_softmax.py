"""Online softmax of a tile of 16 queries: scores with a block of keys become softmax numerators in bfloat16.

As in `softmax`, scores are in units of ln 2 and numerators relative to the running maximum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import lane_max, maximum, splat_f32
from .....quant.jit.simd.memory import load_f32, loadv_f32, store_f32, storev_f32
from ...abi.tile_scratch import RUN, RUNS, TileScratch
from ...simd.amx_operands import row_maxima, store_split
from ...simd.amx_sizes import ROWS, TILE
from ...simd.dot16 import keep_lanes, load_i64
from ...simd.exp2 import bfloat_exp2, exp2, flushed_exp2
from ...simd.tile_sizes import GROUP
from ..common.vector_math import constant
from .softmax import LOWEST, capped

PAIR = 4 * TILE  # bytes of scores of two tiles of queries and two of keys


@jit
def _peak(a: Any, scores: int, low: int, high: int, runs: int) -> Any:
    """The largest scores of a query, F32, the largest of whose lanes is the largest of all.

    Where there is a soft cap it is applied, and scores outside low … high - 1 become -inf.
    """
    peak = splat_f32(LOWEST)
    if low > 0 or high < runs * RUN or a.softcap > 0:
        for j in range(0, runs * RUN, LANES):
            at = scores + j // RUN * PAIR + j % RUN // LANES * TILE
            x = loadv_f32(at)
            if a.softcap > 0:
                x = capped(a, x)
            x = keep_lanes(x, low - j, high - j, np.float32(-np.inf))
            storev_f32(at, x)
            peak = maximum(x, peak)
    else:
        for at in range(scores, scores + runs * PAIR, PAIR):
            peak = maximum(loadv_f32(at + TILE), maximum(loadv_f32(at), peak))
    return peak


@jit
def _rescale(a: Any, m: TileScratch, tile: int, factors: Any) -> None:
    """Multiply the sums and denominators of the queries of a tile by `factors`, a lane a query."""
    groups = (a.value_dim + GROUP - 1) // GROUP
    sums = m.sums + (tile // 2 * groups * 2 + tile % 2) * 2 * TILE
    storev_f32(m.rescale, factors)
    for row in range(ROWS):
        factor, at = splat_f32(load_f32(m.rescale + 4 * row)), m.denominators + (tile * ROWS + row) * 64
        storev_f32(at, loadv_f32(at) * factor)
        for at in range(sums + 64 * row, sums + 64 * row + groups * PAIR, PAIR):
            storev_f32(at, loadv_f32(at) * factor)
            storev_f32(at + TILE, loadv_f32(at + TILE) * factor)


@jit
def update_tile(a: Any, m: TileScratch, tile: int, first: int, runs: int, parts: int) -> None:
    """One step of the online softmax: the scores of `runs` runs of keys become `m.weights`.

    `tile` is the number of the tile of queries, `first` the position of the first key. Numerators are split
    into `parts`.
    """
    scores, rest = m.scores + tile % 2 * 2 * TILE, RUNS * TILE if parts == 2 else 0
    maxima, visible = m.maxima + 64 * tile, m.visible + tile * ROWS * 16
    for row in range(ROWS):
        low = max(load_i64(visible + 16 * row) - first, 0)
        high = min(load_i64(visible + 16 * row + 8) - first, runs * RUN)
        storev_f32(m.peaks + 64 * row, _peak(a, scores + 64 * row, low, high, runs))
    earlier = loadv_f32(maxima)
    top = maximum(row_maxima(m.peaks), earlier)
    if lane_max(top - earlier) > 0:
        storev_f32(maxima, top)
        _rescale(a, m, tile, exp2(earlier - top))
    for row in range(ROWS):
        origin, at = splat_f32(load_f32(maxima + 4 * row)), m.denominators + (tile * ROWS + row) * 64
        total, to = loadv_f32(at), m.weights + tile % 2 * parts * RUNS * TILE + 64 * row
        for j in range(scores + 64 * row, scores + 64 * row + runs * PAIR, PAIR):
            if parts == 2:
                p, other = flushed_exp2(loadv_f32(j) - origin), flushed_exp2(loadv_f32(j + TILE) - origin)
            else:
                p = bfloat_exp2(loadv_f32(j) - origin)
                other = bfloat_exp2(loadv_f32(j + TILE) - origin)
            total = total + (p + other)
            store_split(to, rest, p, other)
            to += TILE
        storev_f32(at, total)


@jit
def reset_query(a: Any, m: TileScratch, i: int, maximum_score: float, denominator: float) -> None:
    """Set the running maximum and the denominator of query number i, and its sums to 0."""
    groups = (a.value_dim + GROUP - 1) // GROUP
    tile, row = i // ROWS, i % ROWS
    store_f32(m.maxima + 4 * i, maximum_score)
    storev_f32(m.denominators + 64 * i, splat_f32(np.float32(denominator / np.float32(LANES))))
    sums = m.sums + (tile // 2 * groups * 2 + tile % 2) * 2 * TILE + 64 * row
    for at in range(sums, sums + groups * PAIR, PAIR):
        storev_f32(at, constant(0.0))
        storev_f32(at + TILE, constant(0.0))
