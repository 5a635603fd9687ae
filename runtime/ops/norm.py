"""RMS norm and LayerNorm. `reference/norm.py` is the specification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """out = x / sqrt(mean(x²) + eps) * weight, over each of `groups` equal parts of a row.

    `weight` is float32 [width / groups], shared by all groups (the per-head q/k norm), or float32 [width].
    `out` may be `x`. In that case the groups, each as long as the shared weight, may end before the end of
    the row: the columns behind the last group stay as they are.
    """

    x: Buffer
    out: Buffer
    weight: np.ndarray
    eps: float
    groups: int = 1


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """out = (x - mean) / sqrt(mean((x - mean)²) + eps) * weight + bias, over each of `groups` parts of a row.

    `weight` and `bias` (or None) are float32 [width]: groups do not share them. `out` may be `x`.
    """

    x: Buffer
    out: Buffer
    weight: np.ndarray
    bias: np.ndarray | None
    eps: float
    groups: int = 1
