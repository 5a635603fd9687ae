"""Mirostat 2: keeps the surprise of the tokens near a target (Basu et al. 2020, "Mirostat: A neural text
decoding algorithm that directly controls perplexity")."""

from __future__ import annotations

import math

import numpy as np

from .candidates import Candidates


class Mirostat:
    """Chooses tokens whose surprise is at most μ bits, and moves μ by what the chosen ones had.

    `target` is the surprise in bits that it aims at, `rate` the part of the error by which μ moves.
    """

    def __init__(self, target: float, rate: float, random: np.random.Generator) -> None:
        self.target = target
        self.rate = rate
        self.mu = 2.0 * target
        self._random = random

    def choose(self, tokens: Candidates) -> int:
        """The next id."""
        gaps = tokens.gaps()
        weights = np.exp(gaps)
        least = math.log(float(weights.sum(dtype=np.float64))) - self.mu * math.log(2.0)
        kept = np.flatnonzero(gaps >= least) if least <= 0.0 else np.array([gaps.argmax()])
        sums = np.add.accumulate(weights[kept], dtype=np.float64)
        drawn = min(int(sums.searchsorted(self._random.random() * sums[-1], side="right")), len(kept) - 1)
        place = int(kept[drawn])
        surprise = math.log2(sums[-1]) - float(gaps[place]) / math.log(2.0)  # among those that were kept
        self.mu -= self.rate * (surprise - self.target)
        return place if tokens.ids is None else int(tokens.ids[place])
