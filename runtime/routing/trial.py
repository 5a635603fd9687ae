"""Both models on questions with known answers: what each threshold gives, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

from ..answers.request import GenerationRequest
from ..engine.sampling.params import SamplingParams
from ..model.model import Model
from .confidence import N_TOP, Calibration, Signs
from .labelled import Match, Question
from .policy import Policy

ALL, NONE = 0.0, 1.01  # thresholds at which all answers of the small model are kept, and none
MOST_THRESHOLDS = 11


@dataclass(frozen=True)
class Attempt:
    """What both models made of one question: whether they were right, the seconds and tokens (prompt and
    answer) that each took, and the signs of the small one's answer (None: it was empty)."""

    signs: Signs | None
    small_right: bool
    large_right: bool
    small_seconds: float
    large_seconds: float
    small_tokens: int
    large_tokens: int


@dataclass(frozen=True)
class Outcome:
    """What a threshold gives: the share of questions that go to the large model, the share of right answers,
    seconds, and these as a share of what the large model alone takes."""

    threshold: float
    escalated: float
    right: float
    seconds: float
    cost: float


def attempts(
    small: Model,
    large: Model,
    questions: Sequence[Question],
    params: SamplingParams,
    match: Match = "contains",
    report: Callable[[int], None] = lambda n: None,
) -> list[Attempt]:
    """Ask both models every question, one after another, so that the seconds of each are its own."""
    found = []
    for number, question in enumerate(questions, 1):
        scored = replace(params, logprobs=N_TOP)
        small_text, small_seconds, small_tokens, signs = _ask(small, question, scored)
        large_text, large_seconds, large_tokens, _ = _ask(large, question, params)
        found.append(
            Attempt(
                signs,
                question.is_right(small_text, match),
                question.is_right(large_text, match),
                small_seconds,
                large_seconds,
                small_tokens,
                large_tokens,
            )
        )
        report(number)
    return found


def _ask(model: Model, question: Question, params: SamplingParams) -> tuple[str, float, int, Signs | None]:
    start = perf_counter()
    answer = model.answer(GenerationRequest(question.asked, params=params)).complete()
    seconds = perf_counter() - start
    stats = answer.stats
    signs = Signs.of(answer.generation.logprobs[: stats.new_tokens])
    return answer.text, seconds, stats.prompt_tokens + stats.new_tokens, signs


def calibrated(model: Model, tried: Sequence[Attempt]) -> Calibration:
    """A calibration of the small model, with the threshold that gives the most right answers, and of several
    the cheapest. ValueError if no answer has signs."""
    known = [(each.signs, each.small_right) for each in tried if each.signs is not None]
    made = Calibration.fit(model.fingerprint, [signs for signs, _ in known], [right for _, right in known])
    outcomes = table(tried, Policy(calibration=made), most=len(tried) + 2)
    best = max(outcome.right for outcome in outcomes)
    cheapest = min((o for o in outcomes if o.right == best), key=lambda o: o.cost)
    return replace(made, threshold=cheapest.threshold)


def table(tried: Sequence[Attempt], policy: Policy, most: int = MOST_THRESHOLDS) -> list[Outcome]:
    """The outcomes of thresholds from "the small model alone" to "the large model alone", which then is not
    preceded by the small one: at most `most` of them, which send about as many more questions on from each
    to the next.

    Thresholds lie between two confidences, so that rounding decides nothing.
    """
    confidences = [policy.of_signs(each.signs) for each in tried]
    ordered = sorted(set(confidences))
    between = [(a + b) / 2 for a, b in pairwise(ordered) if a < (a + b) / 2 <= b]
    steps = max(1, most - 1)
    chosen = sorted(
        {between[round(i * (len(between) - 1) / steps)] for i in range(1, steps)} if between else ()
    )
    return [outcome(tried, confidences, threshold) for threshold in (ALL, *chosen, NONE)]


def outcome(tried: Sequence[Attempt], confidences: Sequence[float], threshold: float) -> Outcome:
    """What a threshold gives for questions of these confidences."""
    policy, n = Policy(threshold), max(1, len(tried))
    alone = sum(each.large_seconds for each in tried)
    sent = [not policy.keeps(confidence) for confidence in confidences]
    right = sum(
        each.large_right if goes else each.small_right for each, goes in zip(tried, sent, strict=True)
    )
    seconds = sum(each.large_seconds for each, goes in zip(tried, sent, strict=True) if goes)
    if threshold <= 1.0:  # else the small model is not asked
        seconds += sum(each.small_seconds for each in tried)
    return Outcome(threshold, sum(sent) / n, right / n, seconds, seconds / alone if alone else 0.0)
