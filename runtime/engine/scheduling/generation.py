"""A generation: the tokens of one request, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from time import monotonic

from ..sampling.logprobs import TokenLogprobs
from ..stats import FinishReason, GenerationStats
from .driver import Driver
from .sequence import Sequence

LEAST_TOGETHER = 2  # tokens in the time between two batches: with fewer, each comes as soon as it is there
MOST_BATCHES = 1000  # a second, of all generations that run: they leave the engine's thread time


@contextmanager
def listening(sequence: Sequence) -> Iterator[asyncio.Event]:
    """An event of the running loop that is set when there is something to read of a sequence."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(there.set)

    sequence.listener = tell
    try:
        yield there
    finally:
        sequence.listener = None


class Generation:
    """The tokens that follow a prompt, to be read by one thread or one coroutine.

    `for token in generation` runs the engine's steps in this thread where no other thread does;
    `async for token in generation` leaves them to the engine's own thread. A generation that is closed, or
    forgotten, frees its part of the cache within a step.
    """

    def __init__(self, driver: Driver, sequence: Sequence) -> None:
        self._driver = driver
        self._sequence = sequence

    @property
    def stats(self) -> GenerationStats:
        """Token counts and times, and why it ended."""
        return self._sequence.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it runs."""
        return self._sequence.stats.finish_reason

    @property
    def tokens(self) -> list[int]:
        """The tokens so far, also those that were not read yet."""
        return self._sequence.ids[self._sequence.n_prompt :]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """The log probabilities of `tokens`, in order; empty unless the parameters ask for them."""
        return self._sequence.logprobs[: self._sequence.n_new]

    def logprob_of(self, n: int) -> TokenLogprobs | None:
        """The log probabilities of token `n` of the answer, which is there; None if nobody asked for them."""
        return self._sequence.logprobs[n] if n < len(self._sequence.logprobs) else None

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None]:
        """The log probabilities of the prompt's tokens, in order, as far as they are known: of all from the
        first token of the answer on. The first has none. Empty unless the parameters ask for them."""
        asked = self._sequence.sampler.params.prompt_logprobs is not None
        return list(self._sequence.prompt_logprobs) if asked else []

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """The next token. Raises what ended the generation: BadLogits, or an error of the machine."""
        while True:
            token = self._read()
            if token is not None:
                return token
            if self._sequence.finished:
                if self._sequence.error is not None:
                    raise self._sequence.error
                raise StopIteration
            self._driver.advance(self._sequence)

    def _read(self) -> int | None:
        """The next token that is there; None if there is none."""
        sequence = self._sequence
        if sequence.n_new <= sequence.n_read:
            return None
        token = sequence.ids[sequence.n_prompt + sequence.n_read]
        sequence.n_read += 1
        return token

    def _read_all(self) -> list[int]:
        """All tokens that are there and were not read."""
        sequence = self._sequence
        tokens = sequence.ids[sequence.n_prompt + sequence.n_read :]
        sequence.n_read += len(tokens)
        return tokens

    async def __aiter__(self) -> AsyncIterator[int]:
        """The tokens, without blocking the event loop."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for token in batch:
                    yield token

    async def batches(self, seconds: float = 0.0) -> AsyncGenerator[list[int], None]:
        """The tokens in batches of all that are there, without blocking the event loop; none is empty.

        The first token and the last come at once, and so does each where fewer than LEAST_TOGETHER come in so
        many `seconds`. Where more do, they are gathered: a batch comes so many seconds behind the one before,
        or as many more as keep all generations that run below MOST_BATCHES a second. Meanwhile the event loop
        has nothing to do for this generation. Without `seconds` nothing is gathered.
        """
        self._driver.start()
        reader = _Reader(self._sequence)
        self._sequence.listener = reader.tell
        latest = 0.0  # when the last token of the latest batch was there
        try:
            while not self._sequence.finished or self._sequence.n_new > self._sequence.n_read:
                self._driver.check()
                newest = self._sequence.changed_at
                if batch := self._read_all():
                    start, before, latest = monotonic(), latest, newest
                    yield batch
                    if seconds and LEAST_TOGETHER * (latest - before) <= len(batch) * seconds:
                        crowd = len(self._driver.scheduler.running) / MOST_BATCHES
                        await reader.pause_until(start + max(seconds, crowd))
                elif not self._sequence.finished:
                    await reader.wait()
        finally:
            self._sequence.listener = None
            if not self._sequence.finished:
                self.close()
        if self._sequence.error is not None:
            raise self._sequence.error

    def close(self) -> None:
        """End the generation; what it has computed stays in the cache for others."""
        self._driver.cancel(self._sequence)

    cancel = close

    def __del__(self) -> None:
        self.close()


class _Reader:
    """Wakes a coroutine that reads a sequence: when something is there, or only when the sequence has ended.

    `tell` runs in the engine's thread, at every token. It must not enter the event loop for nothing.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._loop = asyncio.get_running_loop()
        self._there = asyncio.Event()
        self._asked = False  # whether the next token matters

    def tell(self) -> None:
        if self._asked or self._sequence.finished:
            self._asked = False
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._there.set)

    async def wait(self) -> None:
        """Until there is something to read. It may return early."""
        self._there.clear()
        self._asked = True
        if not self._sequence.readable:
            await self._there.wait()
        self._asked = False

    async def pause_until(self, time: float) -> None:
        """Until a time of the monotonic clock, or until the sequence has ended."""
        self._there.clear()
        timer = self._loop.call_later(time - monotonic(), self._there.set)
        if not self._sequence.finished:
            await self._there.wait()
        timer.cancel()
