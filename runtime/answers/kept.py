"""Answers that are kept: what a model asks before it computes one, and what it reads instead."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..engine.sampling.logprobs import TokenLogprobs
from ..engine.sampling.params import SamplingParams
from ..engine.stats import FinishReason, GenerationStats
from .request import GenerationRequest

if TYPE_CHECKING:
    from .answer import Answer


class Tokens(Protocol):
    """The tokens of an answer, as they come: a Generation, or those that were kept."""

    @property
    def stats(self) -> GenerationStats: ...

    @property
    def finish_reason(self) -> FinishReason | None: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def logprobs(self) -> list[TokenLogprobs]: ...

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None]: ...

    def logprob_of(self, n: int) -> TokenLogprobs | None: ...

    def __iter__(self) -> Iterator[int]: ...

    def __next__(self) -> int: ...

    def batches(self, seconds: float = 0.0) -> AsyncGenerator[list[int], None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class KeptAnswer:
    """The tokens of an answer without its end token, why it ended, whether it has the form that it must have
    (None: it may have any), and the log probabilities of its tokens, if they were asked for."""

    tokens: Sequence[int]
    reason: FinishReason
    complete: bool | None = None
    logprobs: Sequence[TokenLogprobs] = ()


class Place(Protocol):
    """Where the answer to one request is kept, or would be."""

    def find(self) -> KeptAnswer | None:
        """What there is of it."""

    def keep(self, answer: KeptAnswer) -> None:
        """Keep it. Nothing is raised where that cannot be."""


class AnswerSource(Protocol):
    """What a model asks before it computes an answer."""

    def place(self, request: GenerationRequest, ids: Sequence[int], params: SamplingParams) -> Place | None:
        """The place of the answer to a request whose prompt is `ids`; None if it would be another one the
        next time."""


class AnswerRouter(Protocol):
    """What answers in place of a model that it is attached to (`runtime/routing/`)."""

    @property
    def fingerprint(self) -> str: ...

    def answer(self, request: GenerationRequest) -> Answer: ...

    def close(self) -> None: ...


class KeptTokens:
    """The tokens of a kept answer, to be read like a Generation's; `n_prompt`: tokens of its prompt."""

    def __init__(self, kept: KeptAnswer, n_prompt: int) -> None:
        self._kept = kept
        self._n_read = 0
        self.stats = GenerationStats(
            prompt_tokens=n_prompt, new_tokens=len(kept.tokens), complete=kept.complete, from_cache=True
        )
        self.prompt_logprobs: list[TokenLogprobs | None] = []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None until all is read."""
        return self.stats.finish_reason

    @property
    def tokens(self) -> list[int]:
        """All of them."""
        return list(self._kept.tokens)

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """Those of `tokens`; empty if nobody asked for them."""
        return list(self._kept.logprobs)

    def logprob_of(self, n: int) -> TokenLogprobs | None:
        """That of token `n`; None if nobody asked for it."""
        return self._kept.logprobs[n] if n < len(self._kept.logprobs) else None

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._n_read < len(self._kept.tokens):
            self._n_read += 1
            return self._kept.tokens[self._n_read - 1]
        self.stats.finish_reason = self._kept.reason
        raise StopIteration

    async def batches(self, seconds: float = 0.0) -> AsyncGenerator[list[int], None]:
        """All tokens at once, if there are any."""
        if batch := list(self):
            yield batch

    def close(self) -> None:
        """Nothing runs that would have to end."""
        if self.stats.finish_reason is None:
            self.stats.finish_reason = "interrupted"
