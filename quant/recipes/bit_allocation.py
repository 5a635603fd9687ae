"""Bit allocation: formats for the matrices of a model under a budget of bytes, for the type `int4`.

Greedy: each matrix starts with the format of fewest bits; the step to a wider format that removes the most
expected divergence per byte is taken, one after the other, until none fits the budget. The expected
divergence of a weight is the format's mean squared error times the sensitivity of its matrix
(`runtime/calibration/sensitivity.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ..block import BlockFormat
from ..formats import FORMATS
from .recipes import PlannedTensor

# Mean squared error of weights rounded with importance, relative to Q4_0's, of the formats on the lower
# convex hull of error over bits: for widths that K-quants divide, and for others
_ERRORS_256 = {
    "Q3_K": 3.9,
    "IQ4_XS": 0.76,
    "Q4_K": 0.66,
    "Q5_K": 0.165,
    "Q6_K": 0.042,
    "Q8_0": 0.0033,
}
_ERRORS_32 = {"IQ4_NL": 0.72, "Q5_0": 0.25, "Q5_1": 0.16, "Q8_0": 0.0033}


def allocate_bits(
    plan: Sequence[PlannedTensor], n_bytes: int, sensitivity: Mapping[str, float] | None = None
) -> list[PlannedTensor]:
    """The plan with formats for its quantised matrices, so that all tensors together take at most `n_bytes`.

    `sensitivity` is the divergence per weight and unit of error, by matrix name; matrices that it lacks
    have the mean of the others. Ties go to the earlier tensor. Raises ValueError if even the formats of
    fewest bits exceed the budget.
    """
    chosen = list(plan)
    measured = sensitivity or {}
    mean = sum(measured.values()) / len(measured) if measured else 1.0
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
            bits = high.bits_per_weight - low.bits_per_weight
            gain = measured.get(planned.name, mean) * (error - less) / bits
            heapq.heappush(steps, (-gain, i, rung + 1))
    left = n_bytes - sum(planned.record.n_bytes for planned in chosen)
    if left < 0:
        raise ValueError(f"the narrowest formats take {n_bytes - left} bytes, the budget is {n_bytes}")
    exhausted = set[int]()
    while steps:
        _, i, rung = heapq.heappop(steps)
        wider = replace(chosen[i], format=ladders[i][rung])
        cost = wider.record.n_bytes - chosen[i].record.n_bytes
        if i in exhausted or cost > left:
            exhausted.add(i)
            continue
        chosen[i], left = wider, left - cost
    return chosen


def _ladder(width: int) -> list[tuple[BlockFormat, float]]:
    """The formats for rows of `width` in ascending order of bits, with their errors."""
    formats = [(FORMATS[name], error) for name, error in (_ERRORS_32 if width % 256 else _ERRORS_256).items()]
    return [(form, error) for form, error in formats if width % form.block_size == 0]
