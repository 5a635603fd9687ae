"""The largest logit of each group of consecutive ones, from which the largest of a row are soon found."""

from __future__ import annotations

import numpy as np

from .....quant.jit.decorators import kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, lane_max, lane_sum, maximum, splat_f32
from .....quant.jit.simd.memory import load_f32, loadv_f32, store_f32, store_i64
from ...abi.records import FIRST_LOGITS, GROUP_MAXIMA
from ...abi.sizes import LOGITS_GROUP
from .access import record_reader, step_at
from .partition import partition

arguments_at = record_reader(GROUP_MAXIMA)
first_arguments_at = record_reader(FIRST_LOGITS)


@kernel
def group_maxima(arguments: int, step: int, thread: int) -> None:
    """maxima[row, group] = the largest of LOGITS_GROUP logits, NaN if one of these is not finite.

    Threads partition the groups, about as they did the rows of the output matrix, whose results they have in
    their caches.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = partition(a.n_groups, thread, s.n_threads)
    zero = splat_f32(np.float32(0.0))
    for row in range(s.n_logits):
        logits, maxima = a.logits + row * a.logits_stride, a.maxima + row * a.maxima_stride
        for group in range(first, last):
            start = logits + 4 * LOGITS_GROUP * group
            highest, odd = loadv_f32(start), zero
            for at in range(start, start + 4 * LOGITS_GROUP, 4 * LANES):
                x = loadv_f32(at)
                highest = maximum(highest, x)
                odd = fma(x, zero, odd)  # NaN as soon as one is not finite
            store_f32(maxima + 4 * group, lane_max(highest) + lane_sum(odd))


@kernel
def first_logits(arguments: int, step: int, thread: int) -> None:
    """ids[row] = the first of the largest logits of a row by its maxima, values[row] = that logit; -1 if one
    that is looked at is not finite. Threads take rows in turn."""
    a, s = first_arguments_at(arguments), step_at(step)
    for row in range(thread, s.n_logits, s.n_threads):
        logits, maxima = a.logits + row * a.logits_stride, a.maxima + row * a.maxima_stride
        best, group = load_f32(maxima), 0
        finite = best - best == 0.0
        for i in range(1, a.n_groups):
            x = load_f32(maxima + 4 * i)
            finite = finite and x - x == 0.0
            if x > best:
                best, group = x, i
        at = LOGITS_GROUP * group
        while finite and load_f32(logits + 4 * at) != best:
            at += 1
        for i in range(LOGITS_GROUP * a.n_groups, a.n_tokens):
            x = load_f32(logits + 4 * i)
            finite = finite and x - x == 0.0
            if x > best:
                best, at = x, i
        store_i64(a.ids + 8 * row, at if finite else -1)
        store_f32(a.values + 4 * row, best)
