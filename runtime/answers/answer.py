"""An answer: the events of one request, as its tokens come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ...tokenizer.chat.output.parts import (
    Part,
    Text,
    Thinking,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from ..engine.stats import FinishReason, GenerationStats
from .events import AnswerEvent, AnswerReason, Finished, TextDelta, ThinkingDelta, TokenEvent, ToolCall
from .kept import KeptAnswer, Place, Tokens
from .request import GenerationRequest
from .stop_strings import Run
from .token_reader import TokenReader, shown

if TYPE_CHECKING:
    from ...tokenizer.chat.output.parser import OutputParser


class AnswerParts(NamedTuple):
    """What an Answer is made of: the tokens as they come, what makes text of them, what tells thinking and
    calls apart (None: all is text), the request, and where it is to be kept when it is complete."""

    tokens: Tokens
    reader: TokenReader
    parser: OutputParser | None
    request: GenerationRequest
    place: Place | None = None


class Answer:
    """A model's answer to a request: iterate over its events, then ask what it was. Made by `Model.answer`.

        answer = model.answer("Why is the sky blue?", temperature=0)
        for event in answer:
            if isinstance(event, TextDelta):
                print(event.text, end="")
        messages.append(answer.message())

    `for` runs the engine's steps in this thread where no other thread does, `async for` leaves them to the
    engine's own. Answers that were asked for before the first of them is read run together. `close`, or
    leaving a `with` block, ends one early; what there is of it stays.
    """

    def __init__(self, parts: AnswerParts) -> None:
        self._begin(parts)
        self._events = self._read()

    def _begin(self, parts: AnswerParts) -> None:
        """Forget all that there is of it, and begin with other parts."""
        generation, reader, parser, request, place = parts
        self.generation = generation
        self._reader = reader
        self._parser = parser
        self._scored = request.params.logprobs is not None
        self._most_calls = None if request.parallel_tool_calls else 1
        self._tokens: list[TokenEvent] = []  # that no event has brought yet
        self._n_tokens = 0  # that were read
        self._place = place
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, tuple[ToolCallStart, list[str]]] = {}  # that have begun
        self._tool_calls: list[ToolCall] = []
        for token in request.begun:
            self._parts_of(reader.push(token))

    # ---- what it is, so far

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """What the model thought before it answered; "" if it did not, or if its format has no place for
        that."""
        return "".join(self._thinking)

    @property
    def tokens(self) -> list[int]:
        """The tokens that its text is made of, and no more: the engine may have further ones."""
        return self.generation.tokens[: self._n_tokens]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that it asks for and that are complete."""
        return list(self._tool_calls)

    @property
    def finish_reason(self) -> AnswerReason | None:
        """Why it ended; None while it runs. "tool_calls" if it asks for calls and ended by itself."""
        reason = self.generation.finish_reason
        return "tool_calls" if self._tool_calls and (reason == "stop" or self._has_all_calls) else reason

    @property
    def _has_all_calls(self) -> bool:
        return self._most_calls is not None and len(self._tool_calls) >= self._most_calls

    @property
    def _stopped(self) -> bool:
        return self._reader.stopped or self._has_all_calls

    @property
    def may_stop(self) -> bool:
        """Whether its text may end it before the engine does: by a stop string, or with its only call."""
        return self._reader.may_stop or self._most_calls is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self._reader.stop_string

    @property
    def stats(self) -> GenerationStats:
        """Token counts and times."""
        return self.generation.stats

    def message(self) -> dict[str, Any]:
        """The answer as a message to append to the conversation, in the shape that chat APIs have."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        return message

    # ---- its events

    def __iter__(self) -> Iterator[AnswerEvent]:
        return self

    def __next__(self) -> AnswerEvent:
        """The next event. Raises BadLogits, ModelClosed, or an error of the machine."""
        return next(self._events)

    def complete(self) -> Self:
        """Wait for its end: `model.answer("hi").complete().text`."""
        for _ in self:
            pass
        return self

    def _read(self) -> Iterator[AnswerEvent]:
        for token in self.generation:
            yield from self._push(token)
            if self._stopped:
                break
        yield from self._end()

    async def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        """The events, without blocking the event loop."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def batches(self, seconds: float = 0.0) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events in batches of all that are there, without blocking the event loop; none is empty.

        Between two batches are at least so many `seconds`, in which the event loop has nothing to do for
        this answer, but for the last one.
        """
        try:
            async with aclosing(self.generation.batches(seconds)) as batches:
                async for batch in batches:
                    if events := self._push_all(batch):
                        yield events
                    if self._stopped:
                        break
            yield self._end()
        finally:
            self.close()

    def _push_all(self, tokens: Sequence[int]) -> list[AnswerEvent]:
        """The events of the next tokens, as far as the answer goes: fewer than one by one, if it cannot end
        among them."""
        if not (self._scored or self.may_stop):
            self._n_tokens += len(tokens)
            return self._events_of(self._reader.push_all(tokens))
        events: list[AnswerEvent] = []
        for token in tokens:
            events += self._push(token)
            if self._stopped:
                break
        return events

    def _push(self, token: int) -> list[AnswerEvent]:
        """The events of the next token."""
        runs = self._reader.push(token)
        if self._scored:
            logprobs = self.generation.logprob_of(self._n_tokens)
            self._tokens.append(TokenEvent(token, shown(runs), logprobs))
        self._n_tokens += 1
        return self._events_of(runs)

    def _events_of(self, runs: list[Run]) -> list[AnswerEvent]:
        if self._parser is None:
            text = shown(runs)
            return [self._text_delta(text)] if text else []
        return [self._event(part) for part in self._parts_of(runs)]

    def _parts_of(self, runs: list[Run]) -> list[Part]:
        """What the parser makes of some runs."""
        if self._parser is None:
            return []
        parts: list[Part] = []
        for text, is_shown in runs:
            parts += self._parser.push(text, special=not is_shown)
        return parts

    def _end(self) -> list[AnswerEvent]:
        """The last events."""
        events: list[AnswerEvent] = []
        if not self._has_all_calls:
            events += self._events_of(self._reader.finish())
            if self._parser is not None:
                events += map(self._event, self._parser.finish())
        self._keep("stop_string" if self._stopped else self.generation.finish_reason)
        if self._stopped:
            self.generation.close()
        if self._reader.stopped:
            self.stats.finish_reason = "stop_string"
        if self._tokens:
            events.append(self._text_delta(""))
        return [*events, Finished(self.finish_reason or "interrupted", self.stats)]

    def _keep(self, reason: FinishReason | None) -> None:
        """Keep it where it is to be kept, unless more room or time would have made more of it."""
        if self._place is None or reason not in ("stop", "length", "stop_string"):
            return
        n = self._n_tokens
        kept = KeptAnswer(
            self.generation.tokens[:n], reason, self.stats.complete, self.generation.logprobs[:n]
        )
        self._place.keep(kept)

    def _event(self, part: Part) -> AnswerEvent:
        """The event of a part, which is kept as well."""
        match part:
            case Text(text):
                return self._text_delta(text)
            case Thinking(text):
                self._thinking.append(text)
                return ThinkingDelta(text, self._take_tokens())
            case ToolCallStart():
                self._calls[part.index] = (part, [])
            case ToolCallDelta(index, arguments):
                self._calls[index][1].append(arguments)
            case ToolCallEnd(index):
                start, pieces = self._calls[index]
                self._tool_calls.append(ToolCall(start.id, start.name, "".join(pieces)))
        return part

    def _text_delta(self, text: str) -> TextDelta:
        self._text.append(text)
        return TextDelta(text, self._take_tokens())

    def _take_tokens(self) -> tuple[TokenEvent, ...]:
        """The tokens that no event has brought yet."""
        if not self._tokens:
            return ()
        tokens = tuple(self._tokens)
        self._tokens.clear()
        return tokens

    def close(self) -> None:
        """End it; what was computed stays in the cache for others."""
        self.generation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
