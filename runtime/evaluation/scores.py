"""How well a model predicts a text, and how far its predictions are from a baseline's. Ids in, numbers out.

Windows and scores are those of llama.cpp's `llama-perplexity`: the text, with the BOS token in front if the
model wants one, is cut into windows of `context` tokens that know nothing of each other; what is left at the
end is dropped; BOS takes the place of every window's first token. Two conventions of what counts:

- *second half*: the tokens that have at least half a window before them, `context // 2 + 1` … `context - 1`;
- *all*: every token but a window's first.

A baseline is compared with on the second half: Kullback-Leibler divergence D(baseline ‖ model) in nats, the
difference Δp in the probability of the token that really follows, and whether the likeliest token is the
same one.
Standard errors treat tokens as independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..cpu.row_scores import LogSums, RowScorer
from ..engine.errors import BadLogits
from .saved_logits import LogitsWriter, SavedLogits

# int32 [n] token ids → float32 [n, vocab] logits after each of them, or the same in parts of consecutive
# rows, each valid until the next is asked for: `Engine.logits`, `Engine.logits_in_parts`.
Logits = Callable[[np.ndarray], np.ndarray | Iterable[np.ndarray]]


def cut_into_windows(
    ids: Sequence[int] | np.ndarray, context: int, bos: int | None = None, limit: int | None = None
) -> np.ndarray:
    """int32 [n, context]: the windows of a text whose tokens, without BOS, are `ids`.

    `bos` is the token that the model wants in front, if any; `limit` the most tokens that all windows may
    have together. There may be none. ValueError for a context of less than 4 tokens.
    """
    if context < 4:
        raise ValueError(f"a window of {context} tokens has nothing to predict; 4 is the least")
    start = [] if bos is None else [bos]
    tokens = np.concatenate([np.array(start, np.int32), np.asarray(ids, np.int32)])
    n = min(len(tokens), len(tokens) if limit is None else limit) // context
    windows = tokens[: n * context].reshape(n, context).copy()
    if bos is not None:
        windows[:, 0] = bos
    return windows


def first_scored(context: int) -> int:
    """The row of a window's logits from which on they count as second half."""
    return context // 2


@dataclass(frozen=True)
class Estimate:
    """A mean, or what is made of one, and its standard error (NaN for a single token)."""

    value: float
    error: float


@dataclass(frozen=True)
class Divergence:
    """How far a model is from a baseline; KLD in nats, probabilities and their differences as fractions."""

    kld: Estimate
    kld_median: float
    kld_99: float  # percentile
    kld_max: float
    dp: Estimate  # the mean of Δp, of the model less of the baseline
    dp_rms: Estimate
    same_top: Estimate
    ratio: Estimate  # of the perplexities, the model's by the baseline's


@dataclass(frozen=True)
class Evaluation:
    """Scores token by token: column j of `nll` is the negative log-likelihood of a window's token j + 1.

    `baseline_nll` is the same of the baseline. `kld` and `same_top` are of the second half only.
    """

    nll: np.ndarray  # float64 [windows, context - 1]
    baseline_nll: np.ndarray | None = None
    kld: np.ndarray | None = None  # float64 [windows, tokens of the second half]
    same_top: np.ndarray | None = None  # bool, the same shape

    @property
    def first(self) -> int:
        return first_scored(self.nll.shape[1] + 1)

    def perplexity(self, every: bool = False) -> Estimate:
        """Of the second half; or of all tokens."""
        return perplexity(self.nll if every else self.nll[:, self.first :])

    def baseline_perplexity(self, every: bool = False) -> Estimate:
        assert self.baseline_nll is not None
        return perplexity(self.baseline_nll if every else self.baseline_nll[:, self.first :])

    def divergence(self) -> Divergence:
        """Against the baseline, which there must have been."""
        assert self.baseline_nll is not None
        assert self.kld is not None
        assert self.same_top is not None
        nll, baseline_nll = self.nll[:, self.first :], self.baseline_nll[:, self.first :]
        dp = np.exp(-nll) - np.exp(-baseline_nll)
        square = estimate(dp * dp)
        rms = math.sqrt(square.value)
        log_ratio = estimate(nll - baseline_nll)
        ratio = math.exp(log_ratio.value)
        return Divergence(
            kld=estimate(self.kld),
            kld_median=float(np.median(self.kld)),
            kld_99=float(np.quantile(self.kld, 0.99)),
            kld_max=float(self.kld.max()),
            dp=estimate(dp),
            dp_rms=Estimate(rms, square.error / (2 * rms) if rms else square.error),
            same_top=estimate(self.same_top),
            ratio=Estimate(ratio, ratio * log_ratio.error),
        )


def estimate(values: np.ndarray) -> Estimate:
    """The mean of independent values."""
    error = float(np.std(values, ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan
    return Estimate(float(np.mean(values)), error)


def perplexity(nll: np.ndarray) -> Estimate:
    """e to the mean of negative log-likelihoods."""
    mean = estimate(nll)
    value = math.exp(mean.value)
    return Estimate(value, value * mean.error)


def evaluate(
    logits: Logits,
    windows: np.ndarray,
    baseline: Logits | SavedLogits | None = None,
    *,
    save: LogitsWriter | None = None,
    progress: Callable[[int, Evaluation], None] | None = None,
    threads: int | None = None,
) -> Evaluation:
    """Score a model, and the baseline, on `windows` (int32 [n, context], n > 0), one window at a time.

    Both models take turns part by part, so that memory does not grow with the text or the window. `save`
    gets the model's predictions. `progress` is called after each window with how many are done and what they
    scored. Raises BadLogits for NaN or infinite logits, ValueError for a
    baseline with another vocabulary or saved logits of other windows.
    """
    n, context = windows.shape
    if isinstance(baseline, SavedLogits) and not np.array_equal(baseline.windows[:n], windows):
        raise ValueError("the saved logits are of other windows")
    scores = _empty(n, context, baseline is not None)
    with RowScorer(threads) as scorer:
        for i, ids in enumerate(windows):
            one = _part(scores, i, i + 1)
            if isinstance(baseline, SavedLogits):
                assert one.baseline_nll is not None
                one.baseline_nll[0] = baseline.nll[i]
                base, base_from = _Rows(baseline.rows(i)), one.first
            else:
                base, base_from = _Rows(baseline(ids) if baseline else ()), 0 if baseline else context
            try:
                _score(scorer, ids, _Rows(logits(ids)), base, base_from, one, save)
            except BadLogits as problem:
                raise BadLogits(f"window {i + 1}: {problem}") from None
            if progress:
                progress(i + 1, _part(scores, 0, i + 1))
    if save:
        save.finish(scores.nll)
    return scores


def _score(
    scorer: RowScorer,
    ids: np.ndarray,
    model: _Rows,
    base: _Rows,
    base_from: int,
    scores: Evaluation,
    save: LogitsWriter | None,
) -> None:
    """Fill in the scores of one window. The baseline's rows begin at `base_from`."""
    at, first, end = 0, scores.first, len(ids) - 1
    while at < end:
        q = model.ahead((first if at < first else end) - at)
        p = base.ahead(len(q)) if at >= base_from else None
        q = q if p is None else q[: len(p)]
        here = slice(at, at + len(q))
        targets = ids[at + 1 : at + 1 + len(q)]
        sums = scorer.log_sums(q)
        scores.nll[0, here] = _nll(q, sums, targets)
        if p is not None:
            base_sums = scorer.log_sums(p)
            assert scores.baseline_nll is not None
            if base_from == 0:  # saved logits bring their scores
                scores.baseline_nll[0, here] = _nll(p, base_sums, targets)
            if at >= first:
                assert scores.kld is not None
                assert scores.same_top is not None
                there = slice(at - first, at - first + len(q))
                scores.kld[0, there] = scorer.divergences(p, base_sums, q, sums)
                scores.same_top[0, there] = base_sums.top == sums.top
        for nll, whose in ((scores.nll, "the model"), (scores.baseline_nll, "the baseline")):
            if nll is not None and not np.isfinite(nll[0, here]).all():
                span = f"{at + 1} … {at + len(q)}"
                raise BadLogits(f"the logits of {whose} after tokens {span} hold NaN or infinity")
        if save and at >= first:
            save.add(q, sums)
        at += len(q)
        model.skip(len(q))
        if p is not None:
            base.skip(len(q))


def _nll(logits: np.ndarray, sums: LogSums, targets: np.ndarray) -> np.ndarray:
    return sums.log_sum - logits[np.arange(len(targets)), targets]


class _Rows:
    """Rows of logits that come in parts, looked at as many at a time as there are at hand."""

    def __init__(self, parts: np.ndarray | Iterable[np.ndarray]) -> None:
        self._parts = iter([parts] if isinstance(parts, np.ndarray) else parts)
        self._rest: np.ndarray | None = None

    def ahead(self, most: int) -> np.ndarray:
        """The next rows, at least one, at most `most`."""
        while self._rest is None or not len(self._rest):
            self._rest = next(self._parts)
        return self._rest[:most]

    def skip(self, n: int) -> None:
        assert self._rest is not None
        self._rest = self._rest[n:]


def _empty(n: int, context: int, compared: bool) -> Evaluation:
    shape = n, context - 1 - first_scored(context)
    return Evaluation(
        np.empty((n, context - 1)),
        np.empty((n, context - 1)) if compared else None,
        np.empty(shape) if compared else None,
        np.empty(shape, bool) if compared else None,
    )


def _part(scores: Evaluation, first: int, last: int) -> Evaluation:
    """Some of the windows, as views."""
    arrays = (scores.nll, scores.baseline_nll, scores.kld, scores.same_top)
    return Evaluation(*(a if a is None else a[first:last] for a in arrays))  # type: ignore[arg-type]
