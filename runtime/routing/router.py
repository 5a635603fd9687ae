"""Router: a small model's answers, and a large one's in place of those that seem unsure."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from ..answers.answer import Answer, AnswerParts
from ..answers.events import AnswerEvent
from ..answers.request import GenerationRequest
from ..engine.errors import ContextExceeded
from ..engine.stats import Routing
from ..model.model import Model
from .confidence import N_TOP
from .policy import Policy


class Router:
    """Two models, the small one of which is asked.

        router = Router(small, large, Policy(0.7))
        small.router = router
        small.answer("Why is the sky blue?")  # by the large one, where the small one is unsure

    It is attached to the small model, whose `answer` then is `Router.answer`, and which closes both. The
    large model gets the conversation as it is; of a prompt without messages it gets the text.
    """

    def __init__(self, small: Model, large: Model, policy: Policy) -> None:
        """ValueError for a calibration of another model."""
        calibration = policy.calibration
        if calibration is not None and calibration.model != small.fingerprint:
            raise ValueError(f"the calibration is of another model than {small.name}")
        self.small, self.large, self.policy = small, large, policy

    def answer(self, request: GenerationRequest) -> Answer:
        """The answer to a request, whose first event comes when it is decided who gives it.

        Errors are those of `Model.answer`; ValueError for what two models with different vocabularies cannot
        do: log probabilities, and biases by id.
        """
        params = request.params
        if params.logprobs is not None or params.prompt_logprobs is not None:
            raise ValueError("there are no log probabilities where one of two models answers")
        if any(isinstance(token, int) for token, _ in params.logit_bias):
            raise ValueError("where one of two models answers, a logit bias names a text, not an id")

        def ask_large() -> AnswerParts:
            return self.large.answer_parts(self._for_large(request))

        if self.policy.threshold > 1.0:
            return self._unasked(ask_large())
        scored = replace(request, params=replace(params, logprobs=N_TOP))
        try:
            parts = self.small.answer_parts(scored)
        except ContextExceeded:  # the large one's may be larger
            return self._unasked(ask_large())
        return RoutedAnswer(parts, self, ask_large)

    def _unasked(self, parts: AnswerParts) -> Answer:
        """The large model's answer, where the small one was not asked."""
        parts.tokens.stats.routing = Routing(self.large.name, True, None, self.policy.threshold, 0)
        return Answer(parts)

    def _for_large(self, request: GenerationRequest) -> GenerationRequest:
        """The request in the large model's tokens."""
        begun = self._translated(request.begun) if request.begun else ()
        if request.messages is not None or request.prompt is not None:
            return replace(request, ids=None, begun=begun)
        ids = list(request.ids or ())
        prefix = self.small.tokenizer.with_prefix([])
        if prefix and ids[: len(prefix)] == prefix:
            ids = ids[len(prefix) :]
        text = self.small.tokenizer.decode(ids)
        return replace(request, ids=self.large.encode(text, special=True), begun=begun)

    def _translated(self, ids: Sequence[int]) -> list[int]:
        text = self.small.tokenizer.decode(list(ids))
        return self.large.tokenizer.encode(text, special=True)

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides the answers: both models and the policy (SHA-256)."""
        parts = [self.small.fingerprint, self.large.fingerprint, repr(self.policy)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def close(self) -> None:
        """Close the large model."""
        self.large.close()


class RoutedAnswer(Answer):
    """An answer that is held back until it is complete: it is then either told, or replaced by the large
    model's before anybody has seen it."""

    def __init__(self, parts: AnswerParts, router: Router, ask_large: Callable[[], AnswerParts]) -> None:
        super().__init__(parts)
        self._router = router
        self._ask_large = ask_large

    def _read(self) -> Iterator[AnswerEvent]:
        held = list(super()._read())
        if self._is_replaced():
            yield from super()._read()
        else:
            yield from held

    async def batches(self, seconds: float = 0.0) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events in batches, as those of `Answer`; all at once where the small model's are told."""
        held: list[AnswerEvent] = []
        async with aclosing(super().batches()) as batches:
            async for batch in batches:
                held += batch
        if not await asyncio.to_thread(self._is_replaced):
            yield held
            return
        async with aclosing(super().batches(seconds)) as batches:
            async for batch in batches:
                yield batch

    def _is_replaced(self) -> bool:
        """Decide, when the small model's answer is complete; ask the large one if it has to be."""
        policy, stats = self._router.policy, self.stats
        confidence = policy.confidence(self.generation.logprobs[: self._n_tokens])
        if self.finish_reason == "interrupted" or policy.keeps(confidence):
            escalated, name = False, self._router.small.name
        else:
            escalated, name = True, self._router.large.name
            self._begin(self._ask_large())
        self.stats.routing = Routing(name, escalated, confidence, policy.threshold, stats.new_tokens)
        return escalated
