"""Sampler: from logits to the next token.

The steps of the parameters become a short list of functions, once; a step that is off is not in it. In the
default order they are those of llama.cpp's chain: penalties → DRY → top-nσ → top-k → typical → top-p →
min-p → XTC → temperature → draw. The bias comes before all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BadLogits
from .candidates import Candidates
from .dry import Dry
from .edits import Bias, Edit, LaterEdit, Penalties, edit_all, edited
from .mask import Mask, best_allowed, top_k_allowed
from .mirostat import Mirostat
from .params import SamplingParams
from .steps import DynamicTemperature, Step, Temperature, TopNSigma, Truncation, Typical, Xtc
from .top_k import TopK


class Sampler:
    """Draws one token after another with one set of parameters and one random stream.

    It is for one sequence: it keeps μ of Mirostat and DRY's index of the history. ValueError if a parameter
    has text where ids are needed.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random = np.random.Generator(np.random.PCG64(params.seed))
        self._scratch = np.empty(0, np.float32)
        edits, steps, greedy = _chain(params, self._random)
        self._edits = edits
        self._steps = steps
        self._greedy = greedy
        self._takes_first = greedy and not steps  # of all logits, or of the TopK
        self._choose: Callable[[Candidates], int] = Candidates.best if greedy else self._draw
        if params.mirostat and not greedy:
            self._choose = Mirostat(params.mirostat_ent, params.mirostat_lr, self._random).choose
        first = steps[0] if steps else None
        self._k = 1 if self._takes_first else first.top_k if isinstance(first, Truncation) else 0
        # What a plain chain has behind its edits, which then needs no Candidates around it.
        draws = not greedy and not params.mirostat and len(steps) == 1
        self._only = first if draws and isinstance(first, Truncation) else None
        if params.logprobs is not None or (params.mirostat and not greedy):
            self._k = 0

    def twin(self, same_tokens: bool = True) -> Sampler:
        """A sampler for the logits of another model, whose guesses of this one's choices `follow` prepares.

        It does without what depends on all earlier choices: Mirostat and DRY; and without bias and penalties
        if the ids are not the `same_tokens`.
        """
        off: dict[str, Any] = {"mirostat": 0, "dry_multiplier": 0.0, "logprobs": None}
        if not same_tokens:
            off |= {"logit_bias": (), "repeat_last_n": 0}
        return Sampler(replace(self.params, **off))

    def follow(self, other: Sampler) -> None:
        """Draw with the random numbers that `other` will draw with next."""
        if not self._takes_first:
            self._random.bit_generator.state = other._random.bit_generator.state

    def top_k_needed(self, n_logits: int, n_history: int) -> int:
        """The k with which `sample` draws the same from a TopK as from all logits; 0: there is none.

        `n_history` is the length of the history that `sample` will get.
        """
        k = self._k
        if not k or (k >= n_logits and not self._takes_first):
            return 0
        for edit in self._edits:
            lowered = edit.n_lowered(n_history)
            if lowered is None:
                return 0
            k += lowered
        return k

    def sample(self, logits: np.ndarray | TopK, history: Sequence[int] = (), mask: Mask | None = None) -> int:
        """The next token id for `logits`: float32 [vocab], or a TopK with the k of `top_k_needed`.

        `logits` are not changed; a token with -inf is never drawn. `history` are the ids of prompt and
        answer; between two calls it may only grow. With a `mask`, which needs all logits, the others are as
        if they had -inf. Raises BadLogits.
        """
        if mask is not None:
            assert isinstance(logits, np.ndarray)
            if self._takes_first and not self._edits and (best := best_allowed(logits, mask)) is not None:
                return best
            k = self.top_k_needed(len(logits), len(history))
            if k and (likeliest := top_k_allowed(logits, mask, k)) is not None:
                return self.sample(likeliest, history)
            if mask.allowed is not None:
                return self._sample_among(mask.allowed, logits, history)
            logits = self._edited(logits, history, mask.banned)
            first = int(logits.argmax())
            peak = float(logits[first])
        elif isinstance(logits, TopK):
            top = self._edited_top_k(logits, history) if self._edits else logits
            first, peak = top.ids.item(0), top.logits.item(0)
        else:
            if self._edits:
                logits = self._edited(logits, history)
            first = int(logits.argmax())  # the first NaN if there is one
            peak = float(logits[first])
        if not math.isfinite(peak):
            raise BadLogits(describe_peak(peak))
        if self._takes_first:
            return first
        if isinstance(logits, TopK):
            if self._only is not None:
                return self._draw_of(*self._only.prefix(top.ids, top.logits))
            tokens = Candidates(top.ids, top.logits, peak, 0.0, True)
            for step in self._steps:
                tokens = step(tokens, history)
            return self._choose(tokens)
        return self._sample_candidates(Candidates(None, logits, peak, 0.0, False), history)

    def remaining(self, logits: np.ndarray, history: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The ids that `sample` would draw from, the likeliest first, and their probabilities, float64.

        Mirostat's cut is left out: it depends on what was drawn before. Raises BadLogits.
        """
        if self._edits:
            logits = self._edited(logits, history)
        peak = float(logits[int(logits.argmax())])
        if not math.isfinite(peak):
            raise BadLogits(describe_peak(peak))
        tokens = Candidates(None, logits, peak, 0.0, False)
        with np.errstate(over="ignore"):
            for step in self._steps:
                tokens = step(tokens, history)
        if self._greedy:
            return np.array([tokens.best()]), np.ones(1)
        gaps = tokens.possible().gaps().astype(np.float64)
        ids = tokens.possible().ids
        order = np.argsort(-gaps, kind="stable")
        powers = np.exp(gaps[order])
        return (order if ids is None else ids[order]), powers / powers.sum()

    def _sample_candidates(self, tokens: Candidates, history: Sequence[int]) -> int:
        """The id that the steps choose."""
        with np.errstate(over="ignore"):  # with a tiny temperature, -inf is right: it is never drawn
            for step in self._steps:
                tokens = step(tokens, history)
            return self._choose(tokens)

    def _sample_among(self, allowed: np.ndarray, logits: np.ndarray, history: Sequence[int]) -> int:
        """`sample` of the ids `allowed`, which ascend."""
        if self._edits:
            logits = self._edited(logits, history)
        values = logits[allowed]
        peak = float(values.max(initial=-np.inf))
        if not math.isfinite(peak):
            raise BadLogits(describe_peak(peak))
        if self._takes_first or len(allowed) == 1:
            return int(allowed[values.argmax()])
        return self._sample_candidates(Candidates(allowed, values, peak, 0.0, False), history)

    def _draw(self, tokens: Candidates) -> int:
        """One of the candidates by its probability."""
        return self._draw_of(tokens.ids, tokens.gaps())

    def _draw_of(self, ids: np.ndarray | None, gaps: np.ndarray) -> int:
        """One of `ids` (None: all), whose logits are `gaps`, by its probability."""
        sums = np.add.accumulate(np.exp(gaps), dtype=np.float64)
        drawn = int(sums.searchsorted(self._random.random() * sums[-1], side="right"))
        drawn = min(drawn, len(sums) - 1)
        return drawn if ids is None else int(ids[drawn])

    def _edited(
        self, logits: np.ndarray, history: Sequence[int], banned: np.ndarray | None = None
    ) -> np.ndarray:
        """A copy of `logits` with bias and penalties, and -inf for `banned` ids; it is valid until the next
        call."""
        if self._scratch.shape != logits.shape:
            self._scratch = np.empty_like(logits)
        np.copyto(self._scratch, logits)
        with np.errstate(over="ignore"):  # -inf is never drawn, and +inf is found
            for edit in self._edits:
                if (change := edit.change(history)) is not None:
                    edit_all(self._scratch, change)
        if banned is not None:
            self._scratch[banned] = -np.inf
        return self._scratch

    def _edited_top_k(self, top: TopK, history: Sequence[int]) -> TopK:
        """`top` with bias and penalties.

        These tokens only become less likely: the order of the others is the same, and `top` still has the
        most likely of them.
        """
        if math.isnan(top.logits[0]):
            return top
        ids, values = top.ids, top.logits
        for edit in self._edits:
            if (change := edit.change(history)) is not None:
                ids, values = edited(ids, values, change, ordered=True)
        return TopK(ids, values)


def is_repeatable(params: SamplingParams) -> bool:
    """Whether the same logits give the same tokens each time: by a seed, or because nothing is drawn."""
    if params.seed is not None:
        return True
    _, steps, greedy = _chain(params, np.random.Generator(np.random.PCG64(0)))
    return greedy and not any(isinstance(step, Xtc) for step in steps)


def describe_peak(peak: float) -> str:
    """What is wrong with logits whose first largest value is this, which is not finite."""
    if math.isnan(peak):
        return "the logits contain NaN"
    return "the logits contain +inf" if peak > 0 else "all logits are -inf"


def _chain(params: SamplingParams, random: np.random.Generator) -> tuple[list[Edit], list[Step], bool]:
    """The edits that come first, the steps behind them, and whether the most likely token of what these
    leave is taken."""
    edits: list[Edit] = [Bias(params)] if params.logit_bias else []
    steps: list[Step] = []
    in_order = True  # the steps so far keep the most likely token
    for name in ("temperature",) if params.mirostat else params.samplers:
        step = _edit(name, params) or _step(name, params, random)
        if step is None:
            continue
        if isinstance(step, Penalties | Dry):
            if not steps:
                edits.append(step)
                continue
            step = LaterEdit(step)
        if _leaves_one(name, params):
            return edits, [] if in_order else steps, True
        in_order = in_order and not isinstance(step, LaterEdit | Typical | Xtc)
        last = steps[-1] if steps else None
        if isinstance(last, Truncation) and (both := last.then(step)) is not None:
            steps[-1] = both
        else:
            steps.append(step)
    return edits, steps, False


def _leaves_one(name: str, params: SamplingParams) -> bool:
    """Whether a step leaves the most likely token only."""
    if name == "temperature":
        return params.temperature == 0.0 and (params.dynatemp_range == 0.0 or params.mirostat != 0)
    return name == "top_k" and params.top_k == 1


def _edit(name: str, params: SamplingParams) -> Penalties | Dry | None:
    if name == "penalties":
        return Penalties(params) if params.has_penalties else None
    return Dry(params) if name == "dry" and params.has_dry else None


def _step(name: str, params: SamplingParams, random: np.random.Generator) -> Step | None:
    """A step that is no edit; None: it is off."""
    if name == "temperature":
        return _temperature(params)
    if name == "top_k" and params.top_k:
        return Truncation(top_k=params.top_k)
    if name == "top_p" and params.top_p < 1.0:
        return Truncation(top_p=params.top_p)
    if name == "min_p" and params.min_p > 0.0:
        return Truncation(min_p=params.min_p)
    if name == "typ_p" and params.typical_p < 1.0:
        return Typical(params.typical_p)
    if name == "top_n_sigma" and params.top_n_sigma > 0.0:
        return TopNSigma(params.top_n_sigma)
    if name == "xtc" and params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5:
        return Xtc(params.xtc_probability, params.xtc_threshold, random)
    return None


def _temperature(params: SamplingParams) -> Step | None:
    spread = params.dynatemp_range
    if spread > 0.0 and not params.mirostat:
        least = max(params.temperature - spread, 0.0)
        return DynamicTemperature(least, params.temperature + spread, params.dynatemp_exp)
    return None if params.temperature == 1.0 else Temperature(params.temperature)
