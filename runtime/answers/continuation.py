"""A continuation: the text of one request, token by token, beside any number of others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from ..engine.scheduling.generation import Generation
from ..engine.stats import FinishReason, GenerationStats
from .events import TokenEvent
from .token_reader import TokenReader, shown


class Continuation:
    """What follows a prompt, as an iterator over TokenEvents; made by `Model.submit`.

    The texts joined are the answer, up to the first stop string. Requests that were submitted before the
    first of them is read run together, and their answers may be read in any order: by a thread, or by a
    coroutine (`async for`). `close` ends it early.
    """

    def __init__(self, generation: Generation, reader: TokenReader, check_open: Callable[[], object]) -> None:
        self.generation = generation
        self._check_open = check_open
        self._reader = reader
        self._events = self._read()

    @property
    def stats(self) -> GenerationStats:
        """Token counts and times, and why it ended."""
        return self.generation.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it runs."""
        return self.generation.finish_reason

    def __iter__(self) -> Iterator[TokenEvent]:
        return self

    def __next__(self) -> TokenEvent:
        """The next token. Raises BadLogits, ModelClosed, or an error of the machine."""
        return next(self._events)

    def _read(self) -> Iterator[TokenEvent]:
        n = 0
        while True:
            self._check_open()
            token = next(self.generation, None)
            if token is None:
                break
            event, ended = self._push(token, n)
            yield event
            if ended:
                return
            n += 1
        if text := self._finish():
            yield TokenEvent(None, text)

    def _push(self, token: int, n: int) -> tuple[TokenEvent, bool]:
        """The event of token number `n`, and whether a stop string ends the text with it."""
        event = TokenEvent(token, shown(self._reader.push(token)), self.generation.logprob_of(n))
        if self._reader.stopped:
            self.generation.close()
            self.stats.finish_reason = "stop_string"
        return event, self._reader.stopped

    def _finish(self) -> str:
        """The text that was held back."""
        text = shown(self._reader.finish())
        if self._reader.stopped:
            self.stats.finish_reason = "stop_string"
        return text

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """The same events, without blocking the event loop."""
        n = 0
        try:
            async for token in self.generation:
                self._check_open()
                event, ended = self._push(token, n)
                yield event
                if ended:
                    return
                n += 1
            if text := self._finish():
                yield TokenEvent(None, text)
        finally:
            self.close()

    def close(self) -> None:
        """End it; what was computed stays in the cache for others."""
        self.generation.close()
