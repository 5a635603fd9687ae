"""Beam search: of all continuations of the k most likely beginnings, keep the k most likely ones.

The rules are those of transformers' `generate(num_beams=k)`, so that both find the same answers; they go back
to Wu et al. 2016, "Google's Neural Machine Translation System", section 7. What is here computes with ids and
logits only; `beams/group.py` runs the sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Literal, TypeAlias

import numpy as np

from ..errors import BadLogits
from ..stats import FinishReason
from .edits import Bias, Edit, Penalties, edit_all
from .params import SamplingParams
from .sampler import describe_peak
from .top_k import largest

MOST_BEAMS = 256
EarlyStopping: TypeAlias = bool | Literal["never"]


@dataclass(frozen=True)
class BeamParams:
    """How a beam search looks for answers. A value out of range raises ValueError.

    - `k`: beams, the beginnings that each step continues. 1 is greedy.
    - `length_penalty`: an answer of n tokens, the end token among them, is judged by the sum of their log
      probabilities, divided by n to this power: above 0, longer answers gain; below 0, shorter ones.
    - `early_stopping`: when to stop once there are k complete answers. True: at once. False: when the
      likeliest beam, were it complete now, would be no better than the worst of them. "never": when no
      continuation of it could be better, for a penalty above 0 not even at the most tokens.
    """

    k: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        try:
            beams = index(self.k)
        except TypeError:
            beams = 0
        if not 1 <= beams <= MOST_BEAMS:
            raise ValueError(f"beams must be a whole number from 1 to {MOST_BEAMS}, not {self.k!r}")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty must be a number, not {self.length_penalty!r}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f'early_stopping is True, False or "never", not {self.early_stopping!r:.40}')
        object.__setattr__(self, "k", beams)


def check_sampling(params: SamplingParams) -> None:
    """Raise ValueError for what a beam search cannot have."""
    if params.max_tokens == 0:
        raise ValueError("a beam search needs max_tokens of 1 or more")
    if params.has_dry or params.mirostat:
        raise ValueError("a beam search goes without DRY and Mirostat")
    if params.logprobs is not None or params.prompt_logprobs is not None:
        raise ValueError("a beam search gives the log probabilities of whole answers only, not `logprobs`")


@dataclass(frozen=True)
class Beam:
    """An answer that a beam search found: its tokens without an end token, and what they are worth.

    `logprob` is the sum of the log probabilities, that of the end token among them, and `score` that sum by
    the length penalty, by which answers are ordered.
    """

    ids: list[int]
    score: float
    logprob: float
    finish_reason: FinishReason


@dataclass(frozen=True)
class Candidates:
    """The most likely tokens behind a beam, the most likely first, and their log probabilities."""

    ids: np.ndarray  # int [n]
    logprobs: np.ndarray  # float64 [n]


@dataclass(frozen=True)
class Running:
    """A beam that goes on: all its `ids`, prompt and answer, the sum of the answer's log probabilities, and
    the place of the beam, among those of the step before, that it continues."""

    ids: list[int]
    logprob: float
    parent: int


@dataclass(frozen=True)
class BeamState:
    """What a search knows after some steps: the beams that go on and the answers, the best first."""

    running: tuple[Running, ...]
    complete: tuple[Beam, ...] = ()
    n_new: int = 0
    done: bool = False


@dataclass(frozen=True)
class BeamSearch:
    """One search. `most_new` is the number of tokens that an answer has at most, 1 or more.

    Bias and penalties of `params` change the log probabilities, which are not normalised again, as
    transformers' logits processors do; what else there is of sampling has no meaning here.
    """

    prompt: list[int]
    beams: BeamParams
    params: SamplingParams
    end_ids: frozenset[int]
    most_new: int
    cut_reason: FinishReason = "length"  # of answers that have no end token

    def __post_init__(self) -> None:
        check_sampling(self.params)

    def start(self) -> BeamState:
        """What is known before the first step: one beam, the prompt."""
        return BeamState((Running(self.prompt, 0.0, 0),))

    @property
    def _n_candidates(self) -> int:
        """How many continuations are looked at, so that at least k of them have no end token."""
        return max(2, 1 + len(self.end_ids)) * self.beams.k

    @cached_property
    def _edits(self) -> list[Edit]:
        edits: list[Edit] = [Bias(self.params)] if self.params.logit_bias else []
        return [*edits, Penalties(self.params)] if self.params.has_penalties else edits

    def candidates(self, logits: np.ndarray, ids: Sequence[int]) -> Candidates:
        """Those behind a beam of `ids`, for logits float32 [vocab]. Raises BadLogits."""
        peak = float(logits[logits.argmax()])
        if not math.isfinite(peak):
            raise BadLogits(describe_peak(peak))
        log_sum = peak + math.log(float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
        if not self._edits:
            best = largest(logits, self._n_candidates)
            return Candidates(best, logits[best].astype(np.float64) - log_sum)
        logprobs = logits - np.float32(log_sum)
        with np.errstate(over="ignore"):
            for edit in self._edits:
                if (change := edit.change(ids)) is not None:
                    edit_all(logprobs, change)
        best = largest(logprobs, self._n_candidates)
        if not len(best):
            raise BadLogits("all logits are -inf")
        return Candidates(best, logprobs[best].astype(np.float64))

    def following(self, before: BeamState, candidates: Sequence[Candidates]) -> BeamState:
        """What is known after a step that gave these candidates for the beams that run."""
        k = self.beams.k
        sums = [beam.logprob + each.logprobs for beam, each in zip(before.running, candidates, strict=True)]
        parents = np.repeat(np.arange(len(sums)), [len(each) for each in sums])
        totals, ids = np.concatenate(sums), np.concatenate([each.ids for each in candidates])
        order = np.argsort(-totals, kind="stable")[: self._n_candidates]
        n_new = before.n_new + 1
        ended: list[Beam] = []
        running: list[Running] = []
        for rank, place in enumerate(order.tolist()):
            parent, token, logprob = int(parents[place]), int(ids[place]), float(totals[place])
            if token not in self.end_ids and n_new < self.most_new:
                if len(running) < k:
                    running.append(Running([*before.running[parent].ids, token], logprob, parent))
            elif rank < k:  # only what is among the k best counts as an answer
                ended.append(self._complete(before.running[parent].ids, token, logprob, n_new))
        complete = before.complete
        if not (self._stops_when_full and len(complete) == k):
            complete = tuple(sorted([*complete, *ended], key=lambda beam: -beam.score)[:k])
        return BeamState(tuple(running), complete, n_new, self._is_done(running, complete, n_new))

    @property
    def _stops_when_full(self) -> bool:
        return self.beams.early_stopping is True or self.beams.k == 1

    def _complete(self, before: list[int], token: int, logprob: float, n_new: int) -> Beam:
        ended = token in self.end_ids
        answer = before[len(self.prompt) :] if ended else [*before[len(self.prompt) :], token]
        return Beam(answer, self._score(logprob, n_new), logprob, "stop" if ended else self.cut_reason)

    def _score(self, logprob: float, n_new: int) -> float:
        return float(logprob / n_new**self.beams.length_penalty)

    def _is_done(self, running: list[Running], complete: tuple[Beam, ...], n_new: int) -> bool:
        """Whether no step is needed any more."""
        if not running:
            return True
        if len(complete) < self.beams.k:
            return False
        at_most = self.beams.early_stopping == "never" and self.beams.length_penalty > 0.0
        best_possible = self._score(running[0].logprob, self.most_new if at_most else n_new)
        return self._stops_when_full or best_possible <= complete[-1].score

    def best(self, state: BeamState) -> list[Beam]:
        """The answers, the best first. Before the end: the complete ones, and behind them those that run."""
        cut = [
            Beam(
                beam.ids[len(self.prompt) :],
                self._score(beam.logprob, max(1, state.n_new)),
                beam.logprob,
                "interrupted",
            )
            for beam in state.running
        ]
        return [*state.complete, *([] if state.done else cut)]
