"""Sampler: from logits to the next token.

The steps are repeat penalty → top-k → top-p → min-p → temperature → draw, in the order of llama.cpp's default
chain. Top-k, top-p and min-p truncate the model's own distribution; the temperature changes only the
probabilities of the tokens that remain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import BadLogits
from .params import SamplingParams
from .top_k import TopK, largest


class Sampler:
    """Draws one token after another with one set of parameters and one random stream."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random = np.random.Generator(np.random.PCG64(params.seed))
        self._penalised = np.empty(0, np.float32)

    def top_k_needed(self, n_logits: int, n_history: int) -> int:
        """The k with which `sample` draws the same from a TopK as from all logits; 0: there is none.

        `n_history` is the length of the history that `sample` will get.
        """
        params = self.params
        last = params.repeat_last_n
        penalised = 0
        if params.repeat_penalty != 1.0 and last != 0:
            if params.repeat_penalty < 1.0:  # any token may become the most likely one
                return 0
            penalised = n_history if last < 0 else min(last, n_history)
        if params.temperature == 0.0 or params.top_k == 1:
            return 1 + penalised
        return params.top_k + penalised if 0 < params.top_k < n_logits else 0

    def sample(self, logits: np.ndarray | TopK, history: Sequence[int] = ()) -> int:
        """The next token id for `logits`: float32 [vocab], or a TopK with the k of `top_k_needed`.

        `logits` are not changed; a token with -inf is never drawn. `history` are the ids of prompt and
        answer, of which the last `repeat_last_n` are penalised. Raises BadLogits.
        """
        params = self.params
        top = logits if isinstance(logits, TopK) else None
        if params.repeat_penalty != 1.0 and params.repeat_last_n != 0 and len(history):
            if isinstance(logits, TopK):
                top = self._penalise_top_k(logits, history)
            else:
                logits = self._penalise(logits, history)
        if top is not None:
            first, peak = int(top.ids[0]), float(top.logits[0])
        else:
            assert isinstance(logits, np.ndarray)
            first = int(logits.argmax())  # the first NaN if there is one
            peak = float(logits[first])
        if not math.isfinite(peak):
            raise BadLogits(_describe(peak))
        if params.temperature == 0.0 or params.top_k == 1:
            return first
        temperature = max(params.temperature, 1e-20)
        if top is not None:
            ids, gaps = _truncate_top_k(top, params)
            weights = np.exp(gaps / temperature)
        else:
            assert isinstance(logits, np.ndarray)
            with np.errstate(over="ignore"):  # with a tiny temperature, -inf is right: it is never drawn
                ids, gaps = _truncate(logits, peak, params)
                weights = np.exp(gaps / temperature)
        sums = np.add.accumulate(weights, dtype=np.float64)
        drawn = int(sums.searchsorted(self._random.random() * sums[-1], side="right"))
        return int(ids[min(drawn, len(ids) - 1)])

    def _penalise(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        """A copy of `logits` with the repeat penalty; it is valid until the next call."""
        ids = np.fromiter(self._recent(history), np.intp)
        ids = ids[ids < len(logits)]  # a prompt may have ids beyond the generated ones
        if self._penalised.shape != logits.shape:
            self._penalised = np.empty_like(logits)
        np.copyto(self._penalised, logits)
        self._penalised[ids] = self._lower(logits[ids])
        return self._penalised

    def _penalise_top_k(self, top: TopK, history: Sequence[int]) -> TopK:
        """`top` with the repeat penalty.

        Penalised tokens only become less likely: the order of the others is the same, and `top` still has the
        most likely of them.
        """
        if math.isnan(top.logits[0]):
            return top
        recent = self._recent(history)
        penalised = [i for i, id_ in enumerate(top.ids.tolist()) if id_ in recent]
        if not penalised:
            return top
        values = top.logits.copy()
        values[penalised] = self._lower(values[penalised])
        order = np.lexsort((top.ids, -values))
        return TopK(top.ids[order], values[order])

    def _recent(self, history: Sequence[int]) -> set[int]:
        """The ids in the history that are penalised."""
        last = self.params.repeat_last_n
        return set(history[-last:] if last > 0 else history)

    def _lower(self, values: np.ndarray) -> np.ndarray:
        penalty = np.float32(self.params.repeat_penalty)
        return np.where(values > 0, values / penalty, values * penalty)


def _describe(peak: float) -> str:
    if math.isnan(peak):
        return "the logits contain NaN"
    return "the logits contain +inf" if peak > 0 else "all logits are -inf"


def _truncate(logits: np.ndarray, peak: float, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """The ids that remain behind top-k, top-p and min-p, and their logits minus `peak`, the largest one.

    Each of the three steps keeps a prefix of the tokens in order of likelihood, so that only the tokens that
    could remain are sorted.
    """
    floor = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    limit = params.top_k if 0 < params.top_k < len(logits) else len(logits)
    if limit == len(logits) and params.top_p == 1.0:  # min-p alone needs no order
        below = logits - np.float32(peak)
        if floor == -math.inf:
            return np.arange(len(logits)), below
        ids = np.flatnonzero(below >= floor)
        return ids, below[ids]
    if limit < len(logits):
        ids = largest(logits, limit)
        return _truncate_top_k(TopK(ids, logits[ids]), params)
    mass = np.exp(logits - np.float32(peak)).sum(dtype=np.float64)
    count = 64
    while True:
        count = min(4 * count, limit)
        ids = largest(logits, count)
        gaps = logits[ids].astype(np.float64) - peak
        weights = np.exp(gaps)
        if count == limit or gaps[-1] < floor or weights.sum() >= params.top_p * mass:
            break
    kept = _kept(gaps, weights.cumsum(), mass, params)
    return ids[:kept], gaps[:kept]


def _truncate_top_k(top: TopK, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Like `_truncate`, from a TopK with at least `top_k` tokens.

    There are few calls of NumPy, each of which takes a thousandth of a decode step on a GPU.
    """
    logits = top.logits[: params.top_k]
    if logits[-1] == -np.inf:
        logits = logits[logits > -np.inf]
    gaps = logits.astype(np.float64)
    gaps -= gaps[0]
    sums = np.add.accumulate(np.exp(gaps))
    kept = _kept(gaps, sums, sums[-1], params)
    return top.ids[:kept], gaps[:kept]


def _kept(gaps: np.ndarray, sums: np.ndarray, mass: float, params: SamplingParams) -> int:
    """The number of tokens, in order of likelihood, that remain behind top-p and min-p.

    `gaps` are their logits minus the largest; `sums` the cumulative sums of exp(gaps), of which `mass` is the
    sum over the whole vocabulary.
    """
    floor = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    kept = len(gaps) - int(gaps[::-1].searchsorted(floor))
    if params.top_p < 1.0:
        kept = min(kept, int(sums.searchsorted(params.top_p * mass)) + 1)
    return kept
