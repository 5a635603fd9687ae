"""POST /v1/responses, without what a server would have to keep between requests."""

from __future__ import annotations

from time import time
from typing import Annotated, Any
from uuid import uuid4

import msgspec
from msgspec import Meta

from ..asking import Conversation, answer
from ..call import Call
from ..endpoint import error_part
from ..http.bodies import refuse
from ..http.problems import Problem
from ..http.sending import Stream, sse
from ..sampling import Sampling, sampling_params
from .inputs import input_messages
from .response_events import Writer
from .tools import checked_tools, thinks, tool_choice

_REFUSED: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "max_tool_calls": (),
}


class Reasoning(msgspec.Struct):
    effort: str | None = None


class TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None


class ResponseRequest(Sampling, kw_only=True):
    """What shall be answered; nothing of it is stored, so that each request brings the whole conversation."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None


async def responses(call: Call, request: ResponseRequest) -> dict[str, Any] | Stream:
    """The answer to a conversation."""
    refuse(call.fields, _REFUSED)
    asked = Conversation(
        input_messages(request.instructions, request.input),
        tools=checked_tools(request.tools),
        tool_choice=tool_choice(request.tool_choice),
        parallel=request.parallel_tool_calls is not False,
        thinking=thinks(request.reasoning.effort if request.reasoning else None),
        response_format=_format(request.text),
    )
    params = sampling_params(request, request.max_output_tokens)
    model = await call.model(request.model)
    found = await call.answer(lambda: answer(model, asked, params))
    writer = Writer(call, found, _head(call, request))
    if request.stream:
        return Stream(writer.events(), error_part(call.path, _error_event))
    await call.complete(found)
    return writer.whole()


def _format(text: TextOptions | None) -> dict[str, Any] | None:
    """The format in the shape of chat completions, which has the schema one level deeper."""
    form = text.format if text else None
    if form is None or form.get("type") != "json_schema":
        return form
    if not isinstance(form.get("schema"), dict):
        raise Problem(400, "text.format must have a schema", "text.format", "invalid_value")
    return {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}


def _head(call: Call, request: ResponseRequest) -> dict[str, Any]:
    """What a response says about its request."""
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time()),
        "model": call.model_name,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
        "store": False,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "text": {"format": (request.text.format if request.text else None) or {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "truncation": "disabled",
    }


def _error_event(body: dict[str, Any]) -> bytes:
    error = body["error"]
    event = {"type": "error", "code": error["code"], "message": error["message"], "param": error["param"]}
    return sse({**event, "sequence_number": 0}, "error")
