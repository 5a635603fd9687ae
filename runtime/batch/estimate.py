"""What a batch would take: tokens, time and memory, before it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ... import KukriError
from ..engine.sampling.params import SamplingParams
from ..model.model import Model
from .requests import CHAT, EMBEDDING, Asking, Request
from .rows import BadRow, Row

PROBE_PROMPT, PROBE_TOKENS = 64, 16


@dataclass
class Estimate:
    """Of a whole input.

    - `rows`: all of it; `bad`: those that are no requests, or do not fit the context; `first_bad`: why the
      first one is not.
    - `prompt_tokens`, `longest`: tokens of all prompts, and of the longest one.
    - `answer_tokens`: at most, by the rows' own limits; `unlimited`: rows without one, which are not counted.
    - `prefill`, `decode`: measured tokens a second, `decode` of `width` answers at the same time.
    """

    rows: int = 0
    bad: int = 0
    first_bad: str = ""
    prompt_tokens: int = 0
    longest: int = 0
    answer_tokens: int = 0
    unlimited: int = 0
    prefill: float = 0.0
    decode: float = 0.0
    width: int = 1

    @property
    def seconds(self) -> float:
        """At most, but for rows without a limit."""
        return self.prompt_tokens / self.prefill + self.answer_tokens / self.decode


def estimate(
    model: Model,
    rows: Iterator[Row],
    asking: Asking,
    width: int,
    report: Callable[[int], None] = lambda n: None,
) -> Estimate:
    """Count all rows, and measure how fast the model is with `width` answers at the same time."""
    found = Estimate(width=width)
    found.prefill, found.decode = _measure(model, width)
    for row in rows:
        found.rows += 1
        report(found.rows)
        try:
            request = asking.request(row)
            n = len(_ids(model, request))
            if n > model.context:
                raise BadRow(f"has {n} tokens, and the context holds {model.context}")
        except (KukriError, TypeError, ValueError) as problem:
            found.bad += 1
            found.first_bad = found.first_bad or f"row {row.number} {problem}"
            continue
        found.prompt_tokens += n
        found.longest = max(found.longest, n)
        limit = _limit(request)
        if limit is None:
            found.unlimited += 1
        else:
            found.answer_tokens += min(limit, model.context + 1 - n)
    return found


def _ids(model: Model, request: Request) -> list[int]:
    body = request.body
    if request.url == CHAT:
        return model.encode_chat(body.get("messages", []), body.get("tools"))
    text: Any = body.get("prompt", body.get("input", ""))
    if not isinstance(text, str):
        raise BadRow("is counted only if its prompt is a text")
    return model.encode(text)


def _limit(request: Request) -> int | None:
    """The most tokens of an answer; None for no limit."""
    if request.url == EMBEDDING:
        return 0
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        limit = request.body.get(name)
        if isinstance(limit, int) and limit >= 0:
            return limit
    return None


def _measure(model: Model, width: int) -> tuple[float, float]:
    """Tokens a second of prompts, and of `width` answers at the same time."""
    n_vocab = min(model.config.vocab_size, 1000)
    prompts = [[(i * 37 + j) % n_vocab for j in range(PROBE_PROMPT)] for i in range(width + 1)]
    for _ in model.generate(prompts[-1], temperature=0, max_tokens=1, ignore_eos=True):
        pass  # what a first step alone costs
    params = SamplingParams(temperature=0, max_tokens=PROBE_TOKENS, ignore_eos=True)
    generations = [model.engine.submit(ids, params) for ids in prompts[:width]]
    for generation in generations:
        next(generation)
    start = perf_counter()
    n_begun = sum(len(generation.tokens) for generation in generations)
    for generation in generations:
        for _ in generation:
            pass
    seconds = perf_counter() - start
    n_new = sum(len(generation.tokens) for generation in generations) - n_begun
    prompt_seconds = max(generation.stats.prompt_seconds for generation in generations)
    return width * PROBE_PROMPT / prompt_seconds, max(n_new, 1) / seconds
