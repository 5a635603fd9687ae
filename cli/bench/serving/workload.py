"""What clients ask: prompts and answers of fixed lengths, or of lengths such as conversations have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Common words, each a token with a blank in front in almost every vocabulary.
WORDS = (
    "the of and to in is that for it was on are as with his they be at one have this from or had by not "
    "word but what some we can out other were all there when up use your how said an each she which do "
    "their time if will way about many then them write would like so these her long make thing see him two "
    "has look more day could go come did number sound no most people my over know water than call first who "
    "may down side been now find any new work part take get place made live where after back little only"
)

# Of conversations that people shared (ShareGPT, as serving benchmarks sample it): medians of about 120 tokens
# of prompt and 150 of answer, with long tails.
PROMPT_LOG, PROMPT_SPREAD = 4.8, 1.1
ANSWER_LOG, ANSWER_SPREAD = 5.0, 0.9
LEAST, MOST = 4, 1024


@dataclass(frozen=True)
class Job:
    """A request: a text of about `n_prompt` tokens, and the tokens to write."""

    prompt: str
    n_prompt: int
    n_new: int


def jobs(n: int, n_prompt: int | None, n_new: int | None, seed: int) -> list[Job]:
    """`n` requests with prompts that begin differently. A length that is None is drawn for each."""
    return list(_jobs(n, n_prompt, n_new, np.random.default_rng(seed)))


def _jobs(n: int, n_prompt: int | None, n_new: int | None, rng: np.random.Generator) -> Iterator[Job]:
    known = WORDS.split()
    for _ in range(n):
        prompt = n_prompt or _length(rng, PROMPT_LOG, PROMPT_SPREAD)
        answer = n_new or _length(rng, ANSWER_LOG, ANSWER_SPREAD)
        words = rng.integers(0, len(known), prompt)
        yield Job(" " + " ".join(known[i] for i in words), prompt, answer)


def _length(rng: np.random.Generator, log: float, spread: float) -> int:
    return int(np.clip(rng.lognormal(log, spread), LEAST, MOST))
