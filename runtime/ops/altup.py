"""The ops of models with several residual streams and sparse FFNs.

`reference_streams.py` is the specification.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class Sparsify:
    """x = max(x - (mean + deviations · std), 0), in place, with the mean and standard deviation of a row."""

    x: Buffer
    deviations: float


@dataclass(frozen=True, eq=False)
class MatchMagnitude:
    """x = x · rms(like) / max(rms(x), floor), in place; rms is the root of a row's mean square."""

    x: Buffer
    like: Buffer
    floor: float


@dataclass(frozen=True, eq=False)
class AltUpPredict:
    """streams_j += Σ_i coefficients[j · n + i] · streams_i for all n streams at once; out = streams_active.

    Baykal et al. 2023, "Alternating Updates for Efficient Transformers". `coefficients` is [rows, n · n].
    """

    streams: tuple[Buffer, ...]
    coefficients: Buffer
    active: int
    out: Buffer


@dataclass(frozen=True, eq=False)
class AltUpCorrect:
    """streams_j += (1 + coefficients[j]) · (x - streams_active) for all n streams, by what streams_active was
    before; then x = streams_active · weight.

    `x` is what a layer made of the active stream, `coefficients` [rows, n], `weight` float32 [width].
    """

    streams: tuple[Buffer, ...]
    coefficients: Buffer
    active: int
    x: Buffer
    weight: np.ndarray
