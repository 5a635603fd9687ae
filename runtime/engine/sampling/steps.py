"""The steps that keep some of the candidates, or scale their logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from .candidates import Candidates
from .top_k import largest

Step: TypeAlias = Callable[[Candidates, Sequence[int]], Candidates]  # (candidates, history)

LEAST_TEMPERATURE = 1e-20


class Temperature:
    """Divides the logits."""

    def __init__(self, temperature: float) -> None:
        self.temperature = max(temperature, LEAST_TEMPERATURE)

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        return scaled(tokens, self.temperature)


class Truncation:
    """Top-k, then top-p, then min-p, then temperature; each may be off.

    Each of the first three keeps a prefix of the tokens in order of likelihood, so that only the tokens that
    could remain are sorted. They are one step, and so is what is usually last, because a step has its
    cost: on a GPU a call of NumPy takes a thousandth of the time of a token.
    """

    def __init__(
        self, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, temperature: float = 1.0
    ) -> None:
        self.top_k = top_k
        self.top_p = top_p
        self.min_p = min_p
        self.temperature = temperature
        self.floor = math.log(min_p) if min_p > 0.0 else -math.inf

    def then(self, other: Step) -> Truncation | None:
        """Both as one; None if they are not in the order of top-k, top-p, min-p and temperature."""
        if self.temperature != 1.0:
            return None
        if isinstance(other, Temperature):
            return Truncation(self.top_k, self.top_p, self.min_p, other.temperature)
        if not isinstance(other, Truncation) or other.top_k or self.min_p:
            return None
        if self.top_p < 1.0 and other.top_p < 1.0:
            return None
        return Truncation(self.top_k, min(self.top_p, other.top_p), other.min_p, other.temperature)

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        if tokens.ordered:
            return self._of_ordered(tokens)
        ids, values, top, offset, _ = tokens
        n = len(values)
        limit = self.top_k if 0 < self.top_k < n else n
        if limit == n and self.top_p == 1.0:  # min-p alone needs no order
            below = values - top
            if self.floor > -math.inf:
                kept = np.flatnonzero(below >= self.floor)
                ids, below = kept if ids is None else ids[kept], below[kept]
            return self._kept(ids, below, offset + top, False)
        if limit < n:
            order = largest(values, limit)
            best = order if ids is None else ids[order]
            return self._of_ordered(Candidates(best, values[order], top, offset, True))
        mass = np.exp(values - top).sum(dtype=np.float64)
        count = 64
        while True:
            count = min(4 * count, limit)
            order = largest(values, count)
            gaps = values[order].astype(np.float64) - top
            weights = np.exp(gaps)
            if count == limit or gaps[-1] < self.floor or weights.sum() >= self.top_p * mass:
                break
        n_kept = self._n_kept(gaps, weights.cumsum(), mass)
        best = order if ids is None else ids[order]
        return self._kept(best[:n_kept], gaps[:n_kept], offset + top, True)

    def _of_ordered(self, tokens: Candidates) -> Candidates:
        """Of candidates in order of likelihood."""
        assert tokens.ids is not None
        ids, scaled_gaps = self.prefix(tokens.ids, tokens.values)
        return Candidates(ids, scaled_gaps, 0.0, (tokens.offset + tokens.top) / self.temperature, True)

    def prefix(self, ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those that are kept of tokens in order of likelihood; their logits minus the largest one, by the
        temperature."""
        if self.top_k:
            values = values[: self.top_k]
        if values[-1] == -np.inf:
            values = values[values > -np.inf]
        gaps = values.astype(np.float64)
        gaps -= gaps[0]
        if self.top_p < 1.0:
            sums = np.add.accumulate(np.exp(gaps))
            kept = self._n_kept(gaps, sums, sums[-1])
        else:
            kept = len(gaps) - int(gaps[::-1].searchsorted(self.floor))
        return ids[:kept], gaps[:kept] / self.temperature

    def _kept(self, ids: np.ndarray | None, gaps: np.ndarray, peak: float, ordered: bool) -> Candidates:
        """Candidates of `gaps`, their logits minus the largest one, which is `peak`, by the temperature."""
        return Candidates(ids, gaps / self.temperature, 0.0, peak / self.temperature, ordered)

    def _n_kept(self, gaps: np.ndarray, sums: np.ndarray, mass: float) -> int:
        """The number of tokens, in order of likelihood, that remain behind top-p and min-p.

        `gaps` are their logits minus the largest; `sums` the cumulative sums of exp(gaps), of which `mass` is
        the sum over all candidates.
        """
        kept = len(gaps) - int(gaps[::-1].searchsorted(self.floor))
        if self.top_p < 1.0:
            kept = min(kept, int(sums.searchsorted(self.top_p * mass)) + 1)
        return kept


class TopNSigma:
    """Keeps logits of at least the largest minus n standard deviations of all that are finite (Tang et al.
    2024, "Top-nσ: Not All Logits Are You Need")."""

    def __init__(self, n: float) -> None:
        self.n = n

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        values = tokens.possible().values
        deviation = float(values.std(dtype=np.float64))
        return tokens.at(tokens.values >= tokens.top - self.n * deviation)


class Typical:
    """Keeps the tokens whose surprise -log p is nearest to the entropy, until their probabilities exceed
    `mass`, with the one that does (Meister et al. 2022, "Locally Typical Sampling")."""

    def __init__(self, mass: float) -> None:
        self.mass = mass

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        tokens = tokens.possible()
        logs = log_probabilities(tokens)
        probabilities = np.exp(logs)
        nearness = -np.abs(logs + entropy(probabilities, logs))
        count, n = 64, len(logs)
        while True:
            count = min(4 * count, n)
            order = largest(nearness, count)
            sums = probabilities[order].cumsum()
            if count == n or sums[-1] > self.mass:
                break
        kept = order[: int(sums.searchsorted(self.mass, side="right")) + 1]
        return tokens.at(np.sort(kept))


class Xtc:
    """Removes, with a probability, all of the tokens with at least `threshold` but the least likely of them
    (p-e-w 2024, "Exclude Top Choices")."""

    def __init__(self, probability: float, threshold: float, random: np.random.Generator) -> None:
        self.probability = probability
        self.threshold = threshold
        self._random = random

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        if len(tokens.values) < 2 or self._random.random() > self.probability:
            return tokens
        weights = np.exp(tokens.gaps().astype(np.float64))
        choices = np.flatnonzero(weights >= self.threshold * weights.sum())
        if len(choices) < 2:
            return tokens
        spared = choices[len(choices) - 1 - int(weights[choices][::-1].argmin())]  # the last of equals
        kept = np.ones(len(weights), bool)
        kept[choices] = False
        kept[spared] = True
        return tokens.at(kept)


class DynamicTemperature:
    """Divides the logits by a temperature between `least` and `most`: the higher, the more evenly the
    probabilities are spread. As llama.cpp defines it: least + (most - least) · (H / log n)^exponent, with
    the entropy H of the n candidates."""

    def __init__(self, least: float, most: float, exponent: float) -> None:
        self.least = least
        self.most = most
        self.exponent = exponent

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        tokens = tokens.possible()
        n = len(tokens.values)
        if n < 2:
            return tokens
        logs = log_probabilities(tokens)
        spread = max(entropy(np.exp(logs), logs), 0.0) / math.log(n)
        temperature = self.least + (self.most - self.least) * spread**self.exponent
        return scaled(tokens, max(temperature, LEAST_TEMPERATURE))


def scaled(tokens: Candidates, temperature: float) -> Candidates:
    """Candidates with their logits divided by a temperature."""
    offset = (tokens.offset + tokens.top) / temperature
    return Candidates(tokens.ids, tokens.gaps() / temperature, 0.0, offset, tokens.ordered)


def log_probabilities(tokens: Candidates) -> np.ndarray:
    """The logarithms of the probabilities of candidates, float64 [n]."""
    logs = tokens.values.astype(np.float64)
    logs -= tokens.top
    logs -= math.log(np.exp(logs).sum())
    return logs


def entropy(probabilities: np.ndarray, logs: np.ndarray) -> float:
    """The entropy, in nats, of probabilities whose logarithms are all finite."""
    return -float(probabilities @ logs)
