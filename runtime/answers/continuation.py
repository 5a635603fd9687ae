"""A continuation: the text of one request, token by token, beside any number of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..engine.scheduling.generation import Generation
from ..engine.stats import FinishReason, GenerationStats
from .events import TokenEvent
from .token_reader import TokenReader, shown


class Continuation:
    """What follows a prompt, as an iterator over TokenEvents; made by `Model.submit`.

    The texts joined are the answer, up to the first stop string. Requests that were submitted before the
    first of them is read run together, and their answers may be read in any order. `close` ends it early.
    """

    def __init__(self, generation: Generation, reader: TokenReader, check_open: Callable[[], object]) -> None:
        self.generation = generation
        self._check_open = check_open
        self._events = self._read(reader)

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

    def _read(self, reader: TokenReader) -> Iterator[TokenEvent]:
        n = 0
        while True:
            self._check_open()
            token = next(self.generation, None)
            if token is None:
                break
            text = shown(reader.push(token))
            yield TokenEvent(token, text, self.generation.logprob_of(n))
            n += 1
            if reader.stopped:
                self.generation.close()
                self.stats.finish_reason = "stop_string"
                return
        text = shown(reader.finish())
        if reader.stopped:
            self.stats.finish_reason = "stop_string"
        if text:
            yield TokenEvent(None, text)

    def close(self) -> None:
        """End it; what was computed stays in the cache for others."""
        self.generation.close()
