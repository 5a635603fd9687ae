"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from time import time
from typing import Annotated, Any
from uuid import uuid4

import msgspec
from msgspec import Meta

from .... import __version__
from ...answers.answer import Answer
from ...answers.events import (
    AnswerEvent,
    Finished,
    TextDelta,
    ThinkingDelta,
    TokenEvent,
    ToolCallDelta,
    ToolCallStart,
)
from ...engine.stats import GenerationStats
from ...model.model import Model
from ..asking import Conversation, answer
from ..call import Call
from ..endpoint import error_part
from ..http.bodies import refuse
from ..http.problems import Problem
from ..http.sending import DONE, Stream, sse
from ..merging import merged
from ..sampling import Sampling, given_count, sampling_params
from ..usage import more_usage
from .logprobs import TokenNames
from .messages import checked_messages
from .parameters import REFUSED, form_of
from .tools import checked_tools, thinks, tool_choice

FINGERPRINT = f"kukri-{__version__}"
REASONS = {"length": "length", "context": "length", "tool_calls": "tool_calls"}  # others: "stop"


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatRequest(Sampling, kw_only=True):
    """A chat completion. What it does not have is ignored where it changes nothing, and refused otherwise."""

    messages: list[dict[str, Any]]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=-1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


async def chat(call: Call, request: ChatRequest) -> dict[str, Any] | Stream:
    """The answer to a conversation, or `n` of them."""
    refuse(call.fields, REFUSED)
    model = await call.model(request.model)
    answers = await _answers(call, model, request)
    reply = _Reply(call, model, request, answers)
    if request.stream:
        return Stream(reply.chunks(), error_part(call.path, sse))
    return reply.whole([await call.complete(answer) for answer in answers])


async def _answers(call: Call, model: Model, request: ChatRequest) -> list[Answer]:
    n = request.n or 1
    if n > call.serving.options.max_answers:
        raise Problem(400, f"n must be at most {call.serving.options.max_answers}", "n", "invalid_value")
    if request.top_logprobs is not None and not request.logprobs:
        raise Problem(400, "top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
    asked = _conversation(request, call.fields)
    most = given_count(request.max_completion_tokens, request.max_tokens)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    answers: list[Answer] = []
    for nth in range(n):
        params = sampling_params(request, most, logprobs, nth=nth)
        answers.append(await call.answer(partial(answer, model, asked, params)))
    return answers


def _conversation(request: ChatRequest, fields: Mapping[str, Any]) -> Conversation:
    return Conversation(
        checked_messages(request.messages),
        tools=checked_tools(request.tools),
        tool_choice=tool_choice(request.tool_choice),
        parallel=request.parallel_tool_calls is not False,
        thinking=thinks(request.reasoning_effort),
        response_format=form_of(request.response_format, fields),
        variables=request.chat_template_kwargs,
    )


class _Reply:
    """Writes answers in the shape of chat completions."""

    def __init__(self, call: Call, model: Model, request: ChatRequest, answers: Sequence[Answer]) -> None:
        self._call = call
        self._answers = answers
        self._usage = request.stream_options is not None and bool(request.stream_options.include_usage)
        self._names = TokenNames(model) if request.logprobs else None
        self._head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time()),
            "model": call.model_name,
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, tokens: Sequence[Sequence[TokenEvent]]) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                self._choice(i, *each) for i, each in enumerate(zip(self._answers, tokens, strict=True))
            ],
            "usage": usage([answer.stats for answer in self._answers]),
        }

    def _choice(self, index: int, answer: Answer, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        message = answer.message()
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None
        return {
            "index": index,
            "message": {**message, "refusal": None},
            "logprobs": self._logprobs(tokens),
            "finish_reason": REASONS.get(answer.finish_reason or "", "stop"),
        }

    def _logprobs(self, events: Sequence[TokenEvent]) -> dict[str, Any] | None:
        return None if self._names is None else {"content": self._names.chat(events), "refusal": None}

    async def chunks(self) -> AsyncIterator[bytes]:
        for index in range(len(self._answers)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, batch in merged(self._call, self._answers):
            part = b"".join(self._chunk(index, *each) for each in self._deltas(batch))
            if part:
                yield part
        if self._usage:
            stats = [answer.stats for answer in self._answers]
            yield sse({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage(stats)})
        yield DONE

    def _deltas(
        self, batch: Sequence[AnswerEvent]
    ) -> list[tuple[dict[str, Any], Sequence[TokenEvent], str | None]]:
        """The deltas of a batch; neighbours of one kind are one."""
        found: list[tuple[dict[str, Any], Sequence[TokenEvent], str | None]] = []
        for event in batch:
            match event:
                case TextDelta() | ThinkingDelta():
                    key = "content" if isinstance(event, TextDelta) else "reasoning_content"
                    if found and list(found[-1][0]) == [key]:
                        delta, tokens, _ = found.pop()
                        joined = {key: delta[key] + event.text}
                        found.append((joined, (*tokens, *event.token_events), None))
                    else:
                        found.append(({key: event.text}, event.token_events, None))
                case ToolCallStart():
                    function = {"name": event.name, "arguments": ""}
                    started = {"index": event.index, "id": event.id, "type": "function", "function": function}
                    found.append(({"tool_calls": [started]}, (), None))
                case ToolCallDelta():
                    more = {"index": event.index, "function": {"arguments": event.arguments}}
                    found.append(({"tool_calls": [more]}, (), None))
                case Finished():
                    found.append(({}, (), REASONS.get(event.reason, "stop")))
        return found

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        tokens: Sequence[TokenEvent] = (),
        reason: str | None = None,
    ) -> bytes:
        logprobs = self._logprobs(tokens) if tokens else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        more = {"usage": None} if self._usage else {}
        return sse({**self._head, "object": "chat.completion.chunk", "choices": [choice], **more})


def usage(stats: Sequence[GenerationStats]) -> dict[str, Any]:
    """Tokens of answers that share one prompt."""
    prompt, new = stats[0].prompt_tokens, sum(each.new_tokens for each in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": stats[0].cached_tokens, "audio_tokens": 0},
        **more_usage(*stats),
    }
