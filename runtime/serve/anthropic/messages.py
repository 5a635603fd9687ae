"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...engine.sampling.params import SamplingParams
from ..asking import Conversation, answer, count
from ..call import Call
from ..endpoint import error_part
from ..http.bodies import refuse
from ..http.problems import Problem
from ..http.sending import Stream, sse
from ..sampling import Sampling, sampling_params
from .blocks import conversation
from .replies import Reply

_REFUSED: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
}


class CountRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """A conversation to be answered."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


async def messages(call: Call, request: MessagesRequest) -> dict[str, Any] | Stream:
    """The answer to a conversation."""
    refuse(call.fields, _REFUSED)
    asked = _conversation(request)
    params = _params(request)
    model = await call.model(request.model)
    found = await call.answer(lambda: answer(model, asked, params))
    reply = Reply(call, found)
    if request.stream:
        on_error = error_part(call.path, lambda body: sse(body, "error"))
        return Stream(reply.events(), on_error, ping=sse({"type": "ping"}, "ping"))
    await call.complete(found)
    return reply.whole()


async def count_tokens(call: Call, request: CountRequest) -> dict[str, int]:
    """The number of tokens that a conversation's prompt has."""
    asked = _conversation(request)
    model = await call.model(request.model)
    return {"input_tokens": await asyncio.to_thread(count, model, asked)}


def _params(request: MessagesRequest) -> SamplingParams:
    sampling = Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences,
    )
    return sampling_params(sampling, request.max_tokens)


def _conversation(request: CountRequest) -> Conversation:
    found = conversation(request.system, request.messages)
    begun = ""
    last = found[-1]
    if last["role"] == "assistant" and len(found) > 1 and not last.get("tool_calls"):
        begun = found.pop()["content"].rstrip()  # the answer goes on behind it
    choice = request.tool_choice or {}
    thinking = (request.thinking or {}).get("type")
    return Conversation(
        found,
        tools=[_tool(tool) for tool in request.tools or ()] or None,
        tool_choice=_choice(choice),
        parallel=not choice.get("disable_parallel_tool_use", False),
        thinking={"enabled": True, "disabled": False}.get(thinking or ""),
        budget=_budget(request),
        response_format=_format(request) if isinstance(request, MessagesRequest) else None,
        begun=begun,
    )


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's shape. Problem 400 for one that only Anthropic's servers can run."""
    if tool.get("type", "custom") != "custom":
        raise Problem(400, f"there is no built-in tool {tool['type']!r:.60} here", "tools")
    if not isinstance(tool.get("name"), str):
        raise Problem(400, "a tool must have a name and an input_schema", "tools")
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(choice: dict[str, Any]) -> str | None:
    kind = choice.get("type")
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise Problem(400, "tool_choice must name the tool", "tool_choice")
        return str(choice["name"])
    known = {None: None, "auto": "auto", "any": "required", "none": "none"}
    if kind not in known:
        raise Problem(400, f"tool_choice cannot be {kind!r:.40}", "tool_choice")
    return known[kind]


def _budget(request: CountRequest) -> int | None:
    budget = (request.thinking or {}).get("budget_tokens")
    if budget is not None and (not isinstance(budget, int) or budget < 1):
        raise Problem(400, "thinking.budget_tokens must be a whole number above 0", "thinking")
    return budget


def _format(request: MessagesRequest) -> dict[str, Any] | None:
    """The JSON schema that the answer must have, in OpenAI's shape."""
    form = request.output_format or (request.output_config or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form:
        raise Problem(400, "the output format must be a json_schema with a schema", "output_config")
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": form["schema"], "strict": True},
    }
