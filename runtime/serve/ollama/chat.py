"""POST /api/chat and /api/generate: lines of JSON, unless `stream` is false."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any

import msgspec

from ...answers.answer import Answer
from ...answers.events import Finished, TextDelta, ThinkingDelta
from ...answers.request import GenerationRequest
from ...model.model import Model
from ..asking import Conversation, answer
from ..call import Call
from ..endpoint import error_part
from ..fill import fill_ids
from ..http.problems import Problem, about_request
from ..http.sending import Stream, encode
from ..usage import more_usage
from .options import Common, params_of, response_format

NDJSON = "application/x-ndjson"


class OllamaChatRequest(Common, kw_only=True):
    """A conversation to be answered; without messages the model is only loaded."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(Common, kw_only=True):
    """A prompt to be answered; `raw` continues it as it is, `suffix` fills in the middle."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool = False
    images: list[str] | None = None


async def chat(call: Call, request: OllamaChatRequest) -> dict[str, Any] | Stream:
    """The answer to a conversation."""
    started = perf_counter_ns()
    model = await call.model(request.model)
    if not request.messages:
        return await _loaded_or_not(call, request, {"message": {"role": "assistant", "content": ""}})
    asked = Conversation(
        [_message(message, i) for i, message in enumerate(request.messages)],
        tools=request.tools,
        thinking=_thinking(request.think),
        response_format=response_format(request.format),
    )
    params = params_of(request.options)
    found = await call.answer(lambda: answer(model, asked, params))
    return await _reply(call, request, found, _as_message, started)


async def generate(call: Call, request: OllamaGenerateRequest) -> dict[str, Any] | Stream:
    """The answer to a prompt, or what follows it."""
    started = perf_counter_ns()
    for name in ("images", "template"):
        if getattr(request, name):
            raise Problem(400, f"{name} is not supported by this server", name)
    model = await call.model(request.model)
    if not request.prompt:
        return await _loaded_or_not(call, request, {"response": ""})
    params = params_of(request.options)
    if request.raw or request.suffix:
        asked = GenerationRequest(ids=_raw_ids(model, request), params=params)
        found = await call.answer(lambda: model.answer(asked))
    else:
        system = [{"role": "system", "content": request.system}] if request.system else []
        told = Conversation(
            [*system, {"role": "user", "content": request.prompt}],
            thinking=_thinking(request.think),
            response_format=response_format(request.format),
        )
        found = await call.answer(lambda: answer(model, told, params))
    return await _reply(call, request, found, _as_response, started)


def _raw_ids(model: Model, request: OllamaGenerateRequest) -> list[int]:
    with about_request("prompt"):
        if request.suffix:
            return fill_ids(model, request.prompt, request.suffix)
        return [*(request.context or ()), *model.encode(request.prompt, special=True)]


def _thinking(think: bool | str | None) -> bool | None:
    """Levels such as "high" all mean yes."""
    return think if isinstance(think, bool) or think is None else think.lower() not in ("", "false", "none")


def _message(message: dict[str, Any], i: int) -> dict[str, Any]:
    """A message in OpenAI's shape: arguments of calls are objects here, and calls have no ids."""
    where = f"messages[{i}]"
    if message.get("images"):
        raise Problem(400, f"{where}: images are not supported, only text", where)
    if message.get("role") not in ("system", "user", "assistant", "tool"):
        raise Problem(400, f"{where}: the role must be system, user, assistant or tool", where)
    if not isinstance(message.get("content", ""), str):
        raise Problem(400, f"{where}: the content must be a text", where)
    known = ("role", "content", "tool_calls", "tool_call_id")
    found = {key: message[key] for key in known if message.get(key) is not None}
    found.setdefault("content", "")
    if message.get("thinking"):
        found["reasoning_content"] = message["thinking"]
    if message.get("tool_name"):
        found["name"] = message["tool_name"]
    return found


async def _loaded_or_not(call: Call, request: Common, empty: dict[str, Any]) -> dict[str, Any]:
    """A request without a prompt loads a model, or with keep_alive 0 lets it go."""
    entry = call.serving.pool.find(request.model)
    unload = request.keep_alive in (0, "0")
    if unload and entry.owned and entry.n_users == 1:
        await call.serving.pool.unload(entry)
    return {**_head(call), **empty, "done": True, "done_reason": "unload" if unload else "load"}


Field = Callable[[str, str, list[dict[str, Any]]], dict[str, Any]]  # text, thinking, calls → fields


def _as_message(text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    more: dict[str, Any] = {"thinking": thinking} if thinking else {}
    if calls:
        more["tool_calls"] = calls
    return {"message": {"role": "assistant", "content": text, **more}}


def _as_response(text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"response": text, **({"thinking": thinking} if thinking else {})}


def _head(call: Call) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": call.model_name, "created_at": now}


async def _reply(
    call: Call, request: Common, found: Answer, fields: Field, started: int
) -> dict[str, Any] | Stream:
    if request.stream:
        on_error = error_part(call.path, lambda body: encode(body) + b"\n")
        return Stream(_lines(call, found, fields, started), on_error, NDJSON, ping=b"")
    await call.complete(found)
    return {
        **_head(call),
        **fields(found.text, found.thinking, _calls(found)),
        **_end(found, started),
    }


async def _lines(call: Call, found: Answer, fields: Field, started: int) -> AsyncIterator[bytes]:
    n_calls = 0
    async for batch in call.batches(found):
        text = "".join(event.text for event in batch if isinstance(event, TextDelta))
        thinking = "".join(event.text for event in batch if isinstance(event, ThinkingDelta))
        calls = _calls(found)[n_calls:]
        n_calls += len(calls)
        parts = []
        if text or thinking or calls:
            parts.append({**_head(call), **fields(text, thinking, calls), "done": False})
        if isinstance(batch[-1], Finished):
            parts.append({**_head(call), **fields("", "", []), **_end(found, started)})
        yield b"".join(encode(part) + b"\n" for part in parts)


def _calls(found: Answer) -> list[dict[str, Any]]:
    return [
        {"function": {"name": each.name, "arguments": msgspec.json.decode(each.arguments or "{}")}}
        for each in found.tool_calls
    ]


def _end(found: Answer, started: int) -> dict[str, Any]:
    """Counts, and times in nanoseconds."""
    stats = found.stats
    return {
        "done": True,
        "done_reason": "length" if found.finish_reason in ("length", "context") else "stop",
        "total_duration": perf_counter_ns() - started,
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": round(stats.prompt_seconds * 1e9),
        "eval_count": stats.new_tokens,
        "eval_duration": round(stats.decode_seconds * 1e9),
        **more_usage(stats),
    }
