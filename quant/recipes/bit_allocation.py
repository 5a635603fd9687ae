"""Formats for all matrices of a model under a budget of bytes: `int4`.

Each matrix starts at the narrowest format; then the step that takes away most expected divergence for each
byte is taken, one after the other, until none fits. What is expected is the format's mean squared error
times the matrix's sensitivity by weight, if that has been measured (`runtime/calibration/sensitivity.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ..block import BlockFormat
from ..formats import FORMATS
from .recipes import PlannedTensor

# Mean squared error of weights, rounded by importance, in units of Q4_0's, of the formats on the lower
# hull of error over bits
_WIDE = {
    "Q3_K": 3.9,
    "IQ4_XS": 0.76,
    "Q4_K": 0.66,
    "Q5_K": 0.165,
    "Q6_K": 0.042,
    "Q8_0": 0.0033,
}  # blocks of 256
_NARROW = {"IQ4_NL": 0.72, "Q5_0": 0.25, "Q5_1": 0.16, "Q8_0": 0.0033}


def allocate_bits(
    plan: Sequence[PlannedTensor], n_bytes: int, sensitivity: Mapping[str, float] | None = None
) -> list[PlannedTensor]:
    """The plan, its quantised matrices in formats that give all tensors together at most `n_bytes`.

    `sensitivity` of matrices by their names, a weight; those that are not in it have the mean of the others.
    Of equal steps the earlier tensor's comes first. Raises ValueError if even the narrowest formats
    are too many bytes.
    """
    chosen = list(plan)
    known = sensitivity or {}
    usual = sum(known.values()) / len(known) if known else 1.0
    steps: list[tuple[float, int, int]] = []
    ladders: dict[int, list[BlockFormat]] = {}
    for i, planned in enumerate(plan):
        if planned.format.is_float:
            continue
        ladder = _ladder(planned.tensor.width)
        if not ladder:
            continue
        ladders[i] = [form for form, _ in ladder]
        chosen[i] = replace(planned, format=ladder[0][0], note="")
        for rung, ((low, error), (high, less)) in enumerate(pairwise(ladder)):
            gain = (
                known.get(planned.name, usual) * (error - less) / (high.bits_per_weight - low.bits_per_weight)
            )
            heapq.heappush(steps, (-gain, i, rung + 1))
    left = n_bytes - sum(planned.record.n_bytes for planned in chosen)
    if left < 0:
        raise ValueError(f"the narrowest formats take {n_bytes - left} bytes, the budget is {n_bytes}")
    stopped = set[int]()
    while steps:
        _, i, rung = heapq.heappop(steps)
        wider = replace(chosen[i], format=ladders[i][rung])
        cost = wider.record.n_bytes - chosen[i].record.n_bytes
        if i in stopped or cost > left:
            stopped.add(i)
            continue
        chosen[i], left = wider, left - cost
    return chosen


def _ladder(width: int) -> list[tuple[BlockFormat, float]]:
    """The formats that rows of `width` can have, from narrow to wide, with their errors."""
    found = [(FORMATS[name], error) for name, error in (_NARROW if width % 256 else _WIDE).items()]
    return [(form, error) for form, error in found if width % form.block_size == 0]
