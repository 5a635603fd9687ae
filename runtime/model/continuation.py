"""A continuation: the text of one request, token by token, beside any number of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...tokenizer.incremental import IncrementalDecoder
from ..engine.sampling.logprobs import TokenLogprobs
from ..engine.scheduling.generation import Generation
from ..engine.stats import FinishReason, GenerationStats
from .stop_strings import StopFilter


@dataclass(frozen=True)
class TokenEvent:
    """A token of an answer, and the text that became certain with it: whole characters, often none.

    `id` is None for the text that is left at the end. `logprobs` are those of the token, if the parameters
    ask for them.
    """

    id: int | None
    text: str
    logprobs: TokenLogprobs | None = None


class Continuation:
    """What follows a prompt, as an iterator over TokenEvents; made by `Model.submit`.

    The texts joined are the answer, up to the first stop string. Requests that were submitted before the
    first of them is read run together, and their answers may be read in any order. `close` ends it early.
    """

    def __init__(
        self,
        generation: Generation,
        decoder: IncrementalDecoder,
        stops: StopFilter,
        check_open: Callable[[], object],
    ) -> None:
        self.generation = generation
        self._check_open = check_open
        self._events = self._read(decoder, stops)

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

    def _read(self, decoder: IncrementalDecoder, stops: StopFilter) -> Iterator[TokenEvent]:
        n = 0
        while True:
            self._check_open()
            token = next(self.generation, None)
            if token is None:
                break
            text = stops.push(decoder.push(token))
            yield TokenEvent(token, text, self.generation.logprob_of(n))
            n += 1
            if stops.stopped is not None:
                self.generation.close()
                self.stats.finish_reason = "stop_string"
                return
        text = stops.push(decoder.flush()) + stops.flush()
        if stops.stopped is not None:
            self.stats.finish_reason = "stop_string"
        if text:
            yield TokenEvent(None, text)

    def close(self) -> None:
        """End it; what was computed stays in the cache for others."""
        self.generation.close()
