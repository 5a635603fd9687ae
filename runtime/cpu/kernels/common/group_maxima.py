"""The largest logit of each group of consecutive ones, from which the largest of a row are soon found."""

from __future__ import annotations

import numpy as np

from .....quant.jit.decorators import kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, lane_max, lane_sum, maximum, splat_f32
from .....quant.jit.simd.memory import loadv_f32, store_f32
from ...abi.records import GROUP_MAXIMA
from ...abi.sizes import LOGITS_GROUP
from .access import record_reader, step_at
from .partition import partition

arguments_at = record_reader(GROUP_MAXIMA)


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
