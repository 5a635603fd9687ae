"""The ops of AltUp, a model with several residual streams. `reference/altup.py` is the specification.

Baykal et al. 2023, "Alternating Updates for Efficient Transformers".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class MatchMagnitude:
    """x = x · rms(like) / max(rms(x), floor), in place; rms is the root of a row's mean square."""

    x: Buffer
    like: Buffer
    floor: float


@dataclass(frozen=True, eq=False)
class AltUpPredict:
    """streams_j += Σ_i coefficients[j · n + i] · streams_i for all n streams at once; out = streams_active.

    `coefficients` is [rows, n · n].
    """

    streams: tuple[Buffer, ...]
    coefficients: Buffer
    active: int
    out: Buffer


@dataclass(frozen=True, eq=False)
class AltUpCorrect:
    """streams_j += (1 + coefficients[j]) · (x - streams_active) for all n streams, all with the old
    streams_active; then x = streams_active · weight.

    `x` is the output of the layer for the active stream, `coefficients` [rows, n], `weight` float32 [width].
    """

    streams: tuple[Buffer, ...]
    coefficients: Buffer
    active: int
    x: Buffer
    weight: np.ndarray
