"""Log-sum-exp and Kullback-Leibler divergence of rows of logits, for `runtime.cpu.row_scores`.

Sums are taken in float32 within blocks of BLOCK bytes of a row, and in float64 over the blocks. Each thread
is called with a ROW_SCORES record of its own rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from .....quant.jit.decorators import jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import lane_max, lane_sum, maximum, splat_f32
from .....quant.jit.simd.memory import as_pointer, load_f32, loadv_f32
from ...abi.records import ROW_SCORES
from .access import record_reader
from .vector_math import constant, exp

VECTOR = 4 * LANES  # bytes
BLOCK = 4 * 1024  # bytes
LOWEST = -1e4  # lower bound of a logit relative to the largest of its row; -inf counts as this

arguments_at = record_reader(ROW_SCORES)


@jit
def _sums_at(address: int, row: int) -> Any:
    """float64 [3] of a row: largest logit, log of the sum of exponentials, column of the largest."""
    return carray(as_pointer(address + 24 * row), 3, np.float64)


@jit
def _largest(start: int, end: int, best: Any) -> Any:
    """The largest of `best` and the float32 from address `start` to address `end`."""
    whole = start + (end - start) // VECTOR * VECTOR
    highest = splat_f32(best)
    for at in range(start, whole, VECTOR):
        highest = maximum(highest, loadv_f32(at))
    best = lane_max(highest)
    for at in range(whole, end, 4):
        best = max(best, load_f32(at))
    return best


@jit
def _column(start: int, end: int, value: Any) -> int:
    """The first column that holds `value` in the float32 from address `start` to address `end`."""
    at = start
    while at < end and load_f32(at) != value:
        at += 4
    return (at - start) // 4


@jit
def _exponentials(start: int, end: int, highest: Any) -> float:
    """Σ e^(x - highest) over the float32 x from address `start` to address `end`, in float64."""
    whole = start + (end - start) // VECTOR * VECTOR
    total, top = constant(0.0), splat_f32(highest)
    for at in range(start, whole, VECTOR):
        total = total + exp(loadv_f32(at) - top)
    rest = constant(0.0)
    for at in range(whole, end, 4):
        rest = rest + exp(splat_f32(load_f32(at)) - top)
    return np.float64(lane_sum(total)) + np.float64(lane_sum(rest)) / LANES


@kernel
def log_sums(arguments: int, step: int, thread: int) -> None:
    """sums[row] = (largest logit, log Σ e^logit, first column of the largest), float64 [n_rows, 3]."""
    a = arguments_at(arguments)
    for row in range(a.n_rows):
        start = a.logits + row * a.stride
        end = start + 4 * a.width
        best, where = load_f32(start), start
        for block in range(start, end, BLOCK):
            highest = _largest(block, min(block + BLOCK, end), best)
            if highest > best:
                best, where = highest, block
        total = 0.0
        for block in range(start, end, BLOCK):
            total += _exponentials(block, min(block + BLOCK, end), best)
        sums = _sums_at(a.sums, row)
        sums[0] = best
        sums[1] = best + math.log(total)
        sums[2] = (where - start) // 4 + _column(where, end, best)


@jit
def _kl_terms(x: Any, y: Any, offset: Any) -> Any:
    """e^x · (x - y - offset) in each lane, x and y bounded below by LOWEST."""
    lowest = constant(LOWEST)
    x, y = maximum(x, lowest), maximum(y, lowest)
    return exp(x) * (x - y - offset)


@kernel
def divergences(arguments: int, step: int, thread: int) -> None:
    """out[row] = Σ p · (ln p - ln q), float64 [n_rows]; p = softmax of `logits`, q = softmax of `other`.

    `sums` and `other_sums` are what `log_sums` wrote for them. The largest logit of a row is subtracted from
    its logits first, which is exact where p is large.
    """
    a = arguments_at(arguments)
    for row in range(a.n_rows):
        sums, other_sums = _sums_at(a.sums, row), _sums_at(a.other_sums, row)
        top, other_top = splat_f32(np.float32(sums[0])), splat_f32(np.float32(other_sums[0]))
        offset = splat_f32(np.float32((sums[1] - sums[0]) - (other_sums[1] - other_sums[0])))
        p, q, size = a.logits + row * a.stride, a.other + row * a.other_stride, 4 * a.width
        whole = size // VECTOR * VECTOR
        total = 0.0
        for block in range(0, whole, BLOCK):
            part = constant(0.0)
            for at in range(block, min(block + BLOCK, whole), VECTOR):
                part = part + _kl_terms(loadv_f32(p + at) - top, loadv_f32(q + at) - other_top, offset)
            total += lane_sum(part)
        rest = constant(0.0)
        for at in range(whole, size, 4):
            x, y = splat_f32(load_f32(p + at)), splat_f32(load_f32(q + at))
            rest = rest + _kl_terms(x - top, y - other_top, offset)
        total += np.float64(lane_sum(rest)) / LANES
        out = carray(as_pointer(a.out + 8 * row), 1, np.float64)
        out[0] = total * math.exp(sums[0] - sums[1])
