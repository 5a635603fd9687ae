"""From a conversation, as any of the APIs has it, to a GenerationRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..answers.answer import Answer
from ..answers.request import GenerationRequest
from ..engine.sampling.params import SamplingParams
from ..model.model import Model
from .http.problems import Problem


@dataclass(frozen=True)
class Conversation:
    """A conversation to be answered, in the shapes that chat templates read.

    - `tools`: in OpenAI's shape; `tool_choice`: "auto", "none", "required" or a function's name.
    - `thinking`: whether the model may think first; None: as it likes. `budget`: tokens of it at most.
    - `response_format`: what the answer must look like, in OpenAI's shape.
    - `begun`: text that the answer begins with, which the model has not written.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | None = None
    parallel: bool = True
    thinking: bool | None = None
    budget: int | None = None
    response_format: Mapping[str, Any] | None = None
    variables: Mapping[str, Any] | None = None
    begun: str = ""


def answer(model: Model, conversation: Conversation, params: SamplingParams) -> Answer:
    """The model's answer; for `Call.answer`, since it may take a while."""
    return model.answer(_request(model, conversation, params))


def _request(model: Model, conversation: Conversation, params: SamplingParams) -> GenerationRequest:
    if conversation.tools and conversation.tool_choice != "none":
        raise Problem(400, "tools are not supported by this server", "tools", "unsupported_parameter")
    form = conversation.response_format
    if form and form.get("type", "text") != "text":
        raise Problem(
            400, "response_format is not supported by this server", "response_format", "unsupported_parameter"
        )
    variables = dict(conversation.variables or {})
    if conversation.thinking is not None:
        variables.setdefault("enable_thinking", conversation.thinking)
    ids = None
    if conversation.begun:
        ids = model.encode_chat(conversation.messages, None, variables)
        ids += model.tokenizer.encode(conversation.begun)
    return GenerationRequest(conversation.messages, ids=ids, params=params, variables=variables)
