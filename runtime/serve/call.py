"""A call: one request on its way through the server, and what must be put back behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..answers.answer import Answer
from ..answers.events import AnswerEvent, TextDelta, ThinkingDelta, TokenEvent
from ..model.model import Model
from .http.options import ServeOptions
from .http.problems import Problem, about_request
from .metrics import Metrics
from .pool import ModelPool

WHOLE_SECONDS = 0.25  # between two looks at an answer that is sent when it is complete


@dataclass(frozen=True)
class Serving:
    """What all requests share."""

    options: ServeOptions
    pool: ModelPool
    metrics: Metrics
    inspecting: asyncio.Lock = field(default_factory=asyncio.Lock)  # one inspection at a time


@dataclass
class Call:
    """One request. `fields` is its JSON body as it came; `stack` closes what it opened."""

    serving: Serving
    path: str
    fields: dict[str, Any]
    stack: AsyncExitStack
    started: float = field(default_factory=monotonic)
    model_name: str = ""  # as the server calls the model that is used
    n_prompt: int = 0  # tokens, for the log
    n_new: int = 0
    gone: bool = False  # whether the client has left before the end
    _first_token: dict[int, float] = field(default_factory=dict)  # seconds after the start, by answer

    async def model(self, name: str | None, vectors: bool = False) -> Model:
        """The model that the request names, to write or for vectors, until its end. Problem 404 or 503."""
        model = await self.stack.enter_async_context(self.serving.pool.use(name, vectors))
        self.model_name = self.serving.pool.find(name).name
        return model

    async def answer(self, make: Callable[[], Answer]) -> Answer:
        """The answer that `make` submits, in a thread: a template may take a while. It is closed at the
        request's end, if it still runs. Problem 400 for what the library refuses."""
        answer = await asyncio.to_thread(_asked, make)
        self.stack.callback(self._end, answer)
        most = self.serving.options.max_prompt
        if most is not None and answer.stats.prompt_tokens > most:
            raise Problem(
                400,
                f"the prompt has {answer.stats.prompt_tokens} tokens, and this server takes {most}",
                "messages",
                "context_length_exceeded",
            )
        return answer

    def _end(self, answer: Answer) -> None:
        answer.close()
        stats = answer.stats
        self.n_prompt += stats.prompt_tokens
        self.n_new += stats.new_tokens
        self.serving.metrics.answered(self.model_name, stats, self._first_token.get(id(answer)))

    async def batches(self, answer: Answer, whole: bool = False) -> AsyncIterator[list[AnswerEvent]]:
        """The events of an answer, in batches of those that are there. They come no faster than people and
        clients can use them, and hardly ever where the answer is wanted as a `whole`: each batch takes time
        from the threads that compute."""
        pause = WHOLE_SECONDS if whole and not answer.may_stop else self.serving.options.part_seconds
        async with aclosing(answer.batches(pause)) as found:
            async for batch in found:
                self._first_token.setdefault(id(answer), monotonic() - self.started)
                yield batch

    async def complete(self, answer: Answer) -> list[TokenEvent]:
        """Wait for an answer's end. Its tokens, if log probabilities are asked for."""
        tokens: list[TokenEvent] = []
        async for batch in self.batches(answer, whole=True):
            for event in batch:
                if isinstance(event, TextDelta | ThinkingDelta):
                    tokens += event.token_events
        return tokens


def _asked(make: Callable[[], Answer]) -> Answer:
    with about_request():
        return make()
