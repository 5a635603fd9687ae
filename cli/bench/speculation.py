"""Decoding with drafts, through the engine: what they bring depends on the text, so one is gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...runtime.engine.sampling.params import SamplingParams
from .plan import Test

if TYPE_CHECKING:
    from ...runtime.model.model import Model

LEAST_PROMPT = 64  # tokens of the text that is gone on with


@dataclass(frozen=True)
class Speculated:
    """Runs of greedy decoding with drafts: the seconds of each, and the tokens of all."""

    seconds: list[float]
    drafted: int
    accepted: int
    steps: int
    new: int

    @property
    def facts(self) -> dict[str, Any]:
        """What the results of a test have beside those without drafts."""
        return {
            "n_drafted": self.drafted,
            "n_accepted": self.accepted,
            "tokens_per_step": self.new / self.steps if self.steps else 0.0,
        }


def is_speculated(test: Test) -> bool:
    """Whether a test is also run with drafts: decoding of one sequence."""
    return test.n_gen > 0 and not test.n_prompt and test.n_parallel == 1


def measure_speculation(model: Model, test: Test, repetitions: int, warm_up: bool = True) -> Speculated:
    """Decode `test.n_gen` tokens greedily behind the first `test.n_depth` of the text that comes with kukri,
    at least LEAST_PROMPT of them. Prefill, with the first token that comes out of it, is not timed.
    """
    from ...runtime.calibration.encoder import default_text

    ids = model.encode(default_text())
    while len(ids) < max(LEAST_PROMPT, test.n_depth):
        ids += ids
    ids = ids[: max(LEAST_PROMPT, test.n_depth)]
    params = SamplingParams(temperature=0, max_tokens=test.n_gen + 1, ignore_eos=True)
    seconds: list[float] = []
    drafted = accepted = steps = new = 0
    for nth in range(repetitions + warm_up):
        generation = model.generate(ids, params)
        next(generation)
        start = perf_counter()
        n = sum(1 for _ in generation)
        took = perf_counter() - start
        if nth < warm_up:
            continue
        stats = model.stats
        seconds.append(took * test.n_gen / max(1, n))
        drafted += stats.drafted_tokens
        accepted += stats.accepted_tokens
        steps += stats.decode_steps
        new += stats.decode_tokens
    return Speculated(seconds, drafted, accepted, steps, new)
