"""What is asked of a model: a prompt in one of three forms, and how to answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from .functions import Tool

Messages: TypeAlias = Sequence[Mapping[str, Any]] | str  # a conversation, or the text of one user message

CHOICES = ("auto", "none", "required")  # of tools; anything else is the name of one


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
    - `tools`: functions that the model may call: Python functions, or JSON schemas (see `Tool.of`).
      `tool_choice`: "auto"; "none", which leaves them out; "required"; or the name of one that it must call.
      Without `parallel_tool_calls` an answer ends behind its first call.
    - `thinking`: True or False turns it on or off where the model has a switch; None leaves it to the model.
      `thinking_budget`: tokens after which it must end; None: as many as it likes.
    - `begun`: ids of the answer's beginning, which the model goes on from.
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
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    thinking: bool | None = None
    thinking_budget: int | None = None
    begun: Sequence[int] = ()

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
        if self.thinking not in (None, True, False):
            raise TypeError("`thinking` is True, False or None")
        budget = self.thinking_budget
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
            raise TypeError("a thinking budget is a whole number of tokens")
        if budget is not None and budget < 0:
            raise ValueError("a thinking budget cannot be negative")
        if self.tools:
            from .functions import tools_of

            object.__setattr__(self, "tools", tuple(tools_of(self.tools)))
        object.__setattr__(self, "tool_choice", _choice(self.tool_choice, self.offered_tools))

    @property
    def offered_tools(self) -> Sequence[Tool]:
        """The tools that the model is told of."""
        return () if self.tool_choice == "none" else self.tools or ()


def _choice(choice: object, tools: Sequence[Tool]) -> str:
    """Which tool must be called: one of CHOICES, or the name of a tool."""
    if isinstance(choice, Mapping):  # as chat APIs have it
        choice = choice.get("function", choice).get("name")
    if not isinstance(choice, str):
        raise TypeError('a tool choice is "auto", "none", "required" or the name of a tool')
    names = [tool.name for tool in tools]
    if choice == "required" and not names:
        raise ValueError('the tool choice "required" needs tools')
    if choice not in CHOICES and choice not in names:
        known = f"the tools are {', '.join(names)}" if names else "there are no tools"
        raise ValueError(f"the tool choice {choice!r} is no tool: {known}")
    return choice
