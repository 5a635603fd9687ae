"""What is asked of a model: a prompt in one of three forms, and how to answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..engine.sampling.params import SamplingParams

Messages: TypeAlias = Sequence[Mapping[str, Any]] | str  # a conversation, or the text of one user message


@dataclass(frozen=True)
class GenerationRequest:
    """One request to a model, for `Model.answer`; the same from the terminal, Python and HTTP.

    The prompt is one of these:

    - `messages`: a conversation for the model's chat template: dicts with `role` and `content`, or the text
      of one user message;
    - `prompt`: raw text, which is continued, without a chat template;
    - `ids`: token ids. Beside `messages` they are what these were encoded to, where that is known already.

    How to answer:

    - `params`: SamplingParams.
    - `tools`: JSON schemas of functions that the model may call.
    - `variables`: what else the chat template reads, such as {"enable_thinking": False}.
    - `response_format`: the form that the answer must have: a JSON schema, a class with fields, or what else
      `ResponseFormat.of` takes.
    - `priority`: requests of a higher one go first.

    Raises TypeError or ValueError for what no model could answer; ConstraintError, which is a ValueError, for
    a form that is not supported or that nothing has.
    """

    messages: Messages | None = None
    prompt: str | None = None
    ids: Sequence[int] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] | None = None
    priority: int = 0
    response_format: Any = None

    def __post_init__(self) -> None:
        if self.prompt is not None and (self.messages is not None or self.ids is not None):
            raise ValueError("a request has messages or a raw prompt, not both")
        if self.messages is None and self.prompt is None and self.ids is None:
            raise ValueError("a request needs messages, a prompt, or token ids")
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise TypeError(f"a raw prompt is a text, not {type(self.prompt).__name__}")
        if not isinstance(self.params, SamplingParams):
            raise TypeError(f"`params` are SamplingParams, not {type(self.params).__name__}")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError("a priority is a whole number")
        if self.response_format is not None:
            from .structured.response_format import ResponseFormat

            object.__setattr__(self, "response_format", ResponseFormat.of(self.response_format))
