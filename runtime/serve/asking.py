"""From a conversation, as any of the APIs has it, to a GenerationRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..answers.answer import Answer
from ..answers.request import GenerationRequest
from ..engine.sampling.params import SamplingParams
from ..model.model import Model
from .http.problems import about_request


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


def count(model: Model, conversation: Conversation) -> int:
    """The number of tokens of the prompt. Problem 400 for what the library refuses."""
    with about_request("messages"):
        request = _request(model, conversation, SamplingParams())
        return len(model.encode_request(request)) + len(request.begun)


def _request(model: Model, conversation: Conversation, params: SamplingParams) -> GenerationRequest:
    return GenerationRequest(
        conversation.messages,
        params=params,
        tools=conversation.tools,
        tool_choice=conversation.tool_choice or "auto",
        parallel_tool_calls=conversation.parallel,
        thinking=conversation.thinking,
        thinking_budget=conversation.budget,
        variables=conversation.variables,
        response_format=conversation.response_format,
        begun=model.tokenizer.encode(conversation.begun) if conversation.begun else (),
    )
