"""Perplexity of a model on a text, and divergence of its predictions from a baseline's, from token ids.

Windows and scores are those of llama.cpp's `llama-perplexity`: the text, with a BOS token in front if the
model uses one, is cut into independent windows of `context` tokens; the rest at the end is dropped, and BOS
replaces the first token of every window. There are two conventions for the tokens that are scored:

- *second half*: the tokens with at least half a window before them, `context // 2 + 1` … `context - 1`;
- *all*: every token but the first of a window.

A model is compared with a baseline on second halves: Kullback-Leibler divergence D(baseline ‖ model) in
nats, the difference Δp in the probability of the text's next token, and whether both have the same most
likely token. Standard errors assume independent tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..cpu.row_scores import LogSums, RowScorer
from ..engine.errors import BadLogits
from .saved_logits import LogitsWriter, SavedLogits

# int32 [n] token ids → float32 [n, vocab] logits after each token, or an iterable of parts of consecutive
# rows, each valid until the next is requested: `Engine.logits`, `Engine.logits_in_parts`.
Logits = Callable[[np.ndarray], np.ndarray | Iterable[np.ndarray]]


def cut_into_windows(
    ids: Sequence[int] | np.ndarray, context: int, bos: int | None = None, limit: int | None = None
) -> np.ndarray:
    """int32 [n, context]: the windows of a text whose tokens, without BOS, are `ids`.

    `bos` is the token that the model expects in front, if any; `limit` is the largest number of tokens in all
    windows together. n may be 0. Raises ValueError for a context of less than 4 tokens.
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
    """The first row of a window's logits that belongs to the second half."""
    return context // 2


@dataclass(frozen=True)
class Estimate:
    """A mean, or a function of one, and its standard error (NaN for a single token)."""

    value: float
    error: float


@dataclass(frozen=True)
class Divergence:
    """The divergence of a model from a baseline; KLD in nats, probabilities and differences as fractions."""

    kld: Estimate
    kld_median: float
    kld_99: float  # percentile
    kld_max: float
    dp: Estimate  # mean of Δp = p(model) - p(baseline)
    dp_rms: Estimate
    same_top: Estimate
    ratio: Estimate  # perplexity of the model / perplexity of the baseline


@dataclass(frozen=True)
class Evaluation:
    """Scores of all tokens: column j of `nll` is the negative log-likelihood of a window's token j + 1.

    `baseline_nll` has those of the baseline. `kld` and `same_top` cover second halves only.
    """

    nll: np.ndarray  # float64 [windows, context - 1]
    baseline_nll: np.ndarray | None = None
    kld: np.ndarray | None = None  # float64 [windows, tokens of the second half]
    same_top: np.ndarray | None = None  # bool, the same shape

    @property
    def first(self) -> int:
        return first_scored(self.nll.shape[1] + 1)

    def perplexity(self, every: bool = False) -> Estimate:
        """The perplexity on second halves, or on all tokens if `every`."""
        return perplexity(self.nll if every else self.nll[:, self.first :])

    def baseline_perplexity(self, every: bool = False) -> Estimate:
        assert self.baseline_nll is not None
        return perplexity(self.baseline_nll if every else self.baseline_nll[:, self.first :])

    def divergence(self) -> Divergence:
        """The divergence from the baseline; only for evaluations with one."""
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
    """The mean of independent values and its standard error."""
    error = float(np.std(values, ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan
    return Estimate(float(np.mean(values)), error)


def perplexity(nll: np.ndarray) -> Estimate:
    """The exponential of the mean negative log-likelihood."""
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
    """Score a model and a baseline on `windows` (int32 [n, context], n > 0), one window at a time.

    Both models take turns part by part, so that memory grows neither with the text nor with the window.
    `save` receives the model's predictions. `progress` is called after each window with the number of
    windows that are done, and their scores. Raises BadLogits for NaN or infinite logits, and ValueError for
    a baseline with another vocabulary or saved logits of other windows.
    """
    n, context = windows.shape
    if isinstance(baseline, SavedLogits) and not np.array_equal(baseline.windows[:n], windows):
        raise ValueError("the saved logits are of other windows")
    scores = _empty(n, context, baseline is not None)
    with RowScorer(threads) as scorer:
        for i, ids in enumerate(windows):
            window = _part(scores, i, i + 1)
            if isinstance(baseline, SavedLogits):
                assert window.baseline_nll is not None
                window.baseline_nll[0] = baseline.nll[i]
                base, base_from = _Rows(baseline.rows(i)), window.first
            else:
                base, base_from = _Rows(baseline(ids) if baseline else ()), 0 if baseline else context
            try:
                _score(scorer, ids, _Rows(logits(ids)), base, base_from, window, save)
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
    """Fill in the scores of one window. `base` has the baseline's rows from row `base_from` on."""
    at, first, end = 0, scores.first, len(ids) - 1
    while at < end:
        q = model.peek((first if at < first else end) - at)
        p = base.peek(len(q)) if at >= base_from else None
        q = q if p is None else q[: len(p)]
        here = slice(at, at + len(q))
        targets = ids[at + 1 : at + 1 + len(q)]
        sums = scorer.log_sums(q)
        scores.nll[0, here] = _nll(q, sums, targets)
        if p is not None:
            base_sums = scorer.log_sums(p)
            assert scores.baseline_nll is not None
            if base_from == 0:  # saved logits come with `nll`
                scores.baseline_nll[0, here] = _nll(p, base_sums, targets)
            if at >= first:
                assert scores.kld is not None
                assert scores.same_top is not None
                there = slice(at - first, at - first + len(q))
                scores.kld[0, there] = scorer.divergences(p, base_sums, q, sums)
                scores.same_top[0, there] = base_sums.top == sums.top
        for nll, name in ((scores.nll, "the model"), (scores.baseline_nll, "the baseline")):
            if nll is not None and not np.isfinite(nll[0, here]).all():
                span = f"{at + 1} … {at + len(q)}"
                raise BadLogits(f"the logits of {name} after tokens {span} hold NaN or infinity")
        if save and at >= first:
            save.add(q, sums)
        at += len(q)
        model.skip(len(q))
        if p is not None:
            base.skip(len(q))


def _nll(logits: np.ndarray, sums: LogSums, targets: np.ndarray) -> np.ndarray:
    """The negative log-likelihood of each row's target token."""
    return sums.log_sum - logits[np.arange(len(targets)), targets]


class _Rows:
    """A queue over rows of logits that come in parts."""

    def __init__(self, parts: np.ndarray | Iterable[np.ndarray]) -> None:
        self._parts = iter([parts] if isinstance(parts, np.ndarray) else parts)
        self._rest: np.ndarray | None = None

    def peek(self, limit: int) -> np.ndarray:
        """The next rows without removing them: at least one, at most `limit`."""
        while self._rest is None or not len(self._rest):
            self._rest = next(self._parts)
        return self._rest[:limit]

    def skip(self, n: int) -> None:
        """Remove the next n rows, which `peek` has returned."""
        assert self._rest is not None
        self._rest = self._rest[n:]


def _empty(n: int, context: int, compared: bool) -> Evaluation:
    """Uninitialised scores of n windows."""
    shape = n, context - 1 - first_scored(context)
    return Evaluation(
        np.empty((n, context - 1)),
        np.empty((n, context - 1)) if compared else None,
        np.empty(shape) if compared else None,
        np.empty(shape, bool) if compared else None,
    )


def _part(scores: Evaluation, first: int, last: int) -> Evaluation:
    """The scores of windows `first` … `last` - 1, as views."""
    arrays = (scores.nll, scores.baseline_nll, scores.kld, scores.same_top)
    return Evaluation(*(a if a is None else a[first:last] for a in arrays))  # type: ignore[arg-type]
