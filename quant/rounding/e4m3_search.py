"""The search for NVFP4's scales: of the 8-bit floats (E4M3) near each sub-block's peak, the best one.

The largest of a sub-block's 16 weights becomes 6 or 4, the two largest magnitudes of E2M1, or something
between; a scale below that clips it. So there are few scales that can be the best, and all are tried.
"""

from __future__ import annotations

import numpy as np

from ..formats.nvfp4 import E4M3, LARGEST_SCALE, SUB_BLOCK
from .scale_search import LARGEST

BELOW, ABOVE = 2, 6  # codes that are tried below and above that of peak / 6; eight codes double a scale
_CHUNK = 1 << 11  # sub-blocks at once, whose temporaries stay in the cache


def best_scales(weights: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """The codes of the scales s with the least Σ importance · (w - s · E2M1(w / s))², uint8 `[n, 4]`.

    `weights` is finite float32 `[n, 64]`, `importance` float32 `[k, 64]`: block i has row i modulo k.
    Of scales that are equally good it is the smallest.
    """
    groups = weights.reshape(-1, SUB_BLOCK)
    each = importance.reshape(-1, SUB_BLOCK)
    out = np.empty(len(groups), np.uint8)
    for first in range(0, len(groups), _CHUNK):
        x = np.minimum(np.abs(groups[first : first + _CHUNK]), LARGEST)
        w = each[np.arange(first, first + len(x)) % len(each)]
        out[first : first + len(x)] = _best(x, w)
    return out.reshape(-1, 4)


def _best(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The same for magnitudes and importance `[n, 16]`, `[n]`."""
    middle = np.searchsorted(E4M3[: LARGEST_SCALE + 1], x.max(axis=1) / np.float32(6)).astype(np.int64)
    least = np.full(len(x), np.inf, np.float32)
    best = np.zeros(len(x), np.uint8)
    for step in range(-BELOW, ABOVE + 1):
        code = (middle + step).clip(1, LARGEST_SCALE)
        s = E4M3[code][:, None]
        difference = nearest_e2m1(x / s) * s - x
        error = np.einsum("ij,ij,ij->i", difference, difference, w)
        better = error < least
        least[better], best[better] = error[better], code[better]
    best[middle == 0] = 0  # all weights are 0
    return best


def nearest_e2m1(magnitudes: np.ndarray) -> np.ndarray:
    """Magnitudes rounded to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""
    y = np.minimum(magnitudes, np.float32(6))
    return np.where(
        y < 2, np.rint(y * 2) * np.float32(0.5), np.where(y < 4, np.rint(y), np.rint(y * np.float32(0.5)) * 2)
    ).astype(np.float32)
