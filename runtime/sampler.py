"""From logits to the next token.

The chain, in this order: repeat penalty → top-k → top-p → min-p → temperature → draw. That is the
order of llama.cpp's default chain: the truncating steps look at the model's own distribution, and
the temperature only reshapes what they leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

LEAST_PENALTY, MOST_PENALTY = 1e-30, 1e30
GROUPS = 1024  # groups whose maxima bound the k-th largest logit from below


class BadLogits(ArithmeticError):
    """The logits hold NaN or +inf, or nothing above -inf: there is no distribution to draw from."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when generation ends. Values out of range raise ValueError.

    The steps apply in the order in which they stand here, from the repeat penalty to the temperature:

    - `repeat_penalty`: logits of ids among the last `repeat_last_n` of prompt and answer are divided
      by this if positive and multiplied if negative; 1 is off (Keskar et al. 2019, CTRL).
      `repeat_last_n` 0 is off too, -1 means everything so far.
    - `top_k`: keep the k most likely tokens; 0, or more than the vocabulary, keeps all.
    - `top_p`: keep the most likely tokens until their probabilities reach p (Holtzman et al. 2019);
      1 is off, 0 keeps one token.
    - `min_p`: keep tokens at least min_p times as likely as the best (Nguyen et al. 2024); 0 is off.
    - `temperature`: divides the logits that are left; 0 takes the best token, the lowest id of equals.

    `seed` makes a generation reproducible on the same machine; None draws a fresh one. Generation ends
    after `max_tokens` tokens (None: when the context is full), at an end token unless `ignore_eos`, or,
    where text is produced, before the first of the strings in `stop`.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, "0 or more", 0.0 <= self.temperature < math.inf)
        _check_number("top_p", self.top_p, "between 0 and 1", 0.0 <= self.top_p <= 1.0)
        _check_number("min_p", self.min_p, "between 0 and 1", 0.0 <= self.min_p <= 1.0)
        least, most = LEAST_PENALTY, MOST_PENALTY
        fits = least <= self.repeat_penalty <= most
        _check_number("repeat_penalty", self.repeat_penalty, f"between {least:g} and {most:g}", fits)
        _check_count("top_k", self.top_k, 0)
        _check_count("repeat_last_n", self.repeat_last_n, -1)
        if self.seed is not None:
            _check_count("seed", self.seed, 0)
        if self.max_tokens is not None:
            _check_count("max_tokens", self.max_tokens, 0)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError("stop must hold strings that are not empty")
        object.__setattr__(self, "stop", stop)


def _check_number(name: str, value: float, range_: str, inside: bool) -> None:
    if not inside:  # also NaN, which is inside no range
        raise ValueError(f"{name} must be {range_}, not {value}")


def _check_count(name: str, value: int, least: int) -> None:
    try:
        fits = index(value) >= least
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must be a whole number, {least} or more, not {value}")


class Sampler:
    """Draws one token after another with one set of parameters and one random stream."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random = np.random.Generator(np.random.PCG64(params.seed))
        self._penalised = np.empty(0, np.float32)

    def sample(self, logits: np.ndarray, history: Sequence[int] = ()) -> int:
        """The next token id for `logits` (float32 [vocab], left unchanged).

        `history` is the ids of prompt and answer so far, for the repeat penalty; only its last
        `repeat_last_n` entries are looked at. Raises BadLogits. -inf marks a token that may not be drawn.
        """
        params = self.params
        if params.repeat_penalty != 1.0 and params.repeat_last_n != 0 and len(history):
            logits = self._penalise(logits, history)
        best = int(logits.argmax())  # the first NaN if there is one
        peak = float(logits[best])
        if not math.isfinite(peak):
            raise BadLogits(_describe(peak))
        if params.temperature == 0.0 or params.top_k == 1:
            return best
        with np.errstate(over="ignore"):  # a tiny temperature: -inf, so never drawn, is the right quotient
            ids, gaps = _truncate(logits, peak, params)
            weights = np.exp(gaps / max(params.temperature, 1e-20))
        sums = weights.cumsum(dtype=np.float64)
        drawn = int(sums.searchsorted(self._random.random() * sums[-1], side="right"))
        return int(ids[min(drawn, len(ids) - 1)])

    def _penalise(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        last = self.params.repeat_last_n
        recent = history[-last:] if last > 0 else history
        ids = np.fromiter(set(recent), np.intp)
        ids = ids[ids < len(logits)]  # a prompt may have ids that are never generated
        if self._penalised.shape != logits.shape:
            self._penalised = np.empty_like(logits)
        np.copyto(self._penalised, logits)
        values = logits[ids]
        penalty = np.float32(self.params.repeat_penalty)
        self._penalised[ids] = np.where(values > 0, values / penalty, values * penalty)
        return self._penalised


def _describe(peak: float) -> str:
    if math.isnan(peak):
        return "the logits contain NaN"
    return "the logits contain +inf" if peak > 0 else "all logits are -inf"


def _truncate(logits: np.ndarray, peak: float, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """The ids that top-k, top-p and min-p leave, and their logits minus `peak`.

    Each of the three keeps a prefix of the tokens in order of likelihood, so only as many tokens as
    could be left are ever put in order.
    """
    floor = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    limit = params.top_k if 0 < params.top_k < len(logits) else len(logits)
    if limit == len(logits) and params.top_p == 1.0:  # nothing here depends on the order
        below = logits - np.float32(peak)
        if floor == -math.inf:
            return np.arange(len(logits)), below
        ids = np.flatnonzero(below >= floor)
        return ids, below[ids]
    if limit < len(logits):
        ids = largest(logits, limit)
        gaps = logits[ids].astype(np.float64) - peak
        weights = np.exp(gaps)
        mass = weights.sum()
    else:
        mass = np.exp(logits - np.float32(peak)).sum(dtype=np.float64)
        count = 64
        while True:
            count = min(4 * count, limit)
            ids = largest(logits, count)
            gaps = logits[ids].astype(np.float64) - peak
            weights = np.exp(gaps)
            if count == limit or gaps[-1] < floor or weights.sum() >= params.top_p * mass:
                break
    kept = int((gaps >= floor).sum())
    if params.top_p < 1.0:
        kept = min(kept, int(weights.cumsum().searchsorted(params.top_p * mass)) + 1)
    return ids[:kept], gaps[:kept]


def largest(logits: np.ndarray, k: int) -> np.ndarray:
    """Ids of the `k` largest finite logits, best first, the lowest id first among equals.

    The vocabulary is never sorted. It is cut into groups; the k-th largest of their maxima is a value
    that at least k logits reach and few others do, and only these are ordered.
    """
    n = len(logits)
    if k >= n:
        ids = np.arange(n)
    else:
        bound = logits
        if n >= 8 * GROUPS and 4 * k <= GROUPS:
            depth = n // GROUPS
            bound = logits[: depth * GROUPS].reshape(depth, GROUPS).max(axis=0)
        ids = np.flatnonzero(logits >= np.partition(bound, len(bound) - k)[len(bound) - k])
    values = logits[ids]
    order = np.argsort(-values, kind="stable")[:k]
    return ids[order[values[order] > -np.inf]]
