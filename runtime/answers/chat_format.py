"""How a model is asked in its chat template, and how what it writes is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from ...tokenizer import Tokenizer
from ...tokenizer.chat.chat import parsed_arguments
from ...tokenizer.chat.output.marks import may_think
from ..engine.constraint import Constraint
from .request import GenerationRequest
from .structured.constraints import Constraints, Thinking, Thoughts, told

if TYPE_CHECKING:
    from ...tokenizer.chat.output.formats import OutputFormat
    from ...tokenizer.chat.output.parser import OutputParser

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Asked: TypeAlias = tuple[Messages, list[dict[str, Any]] | None, dict[str, Any]]
PROMPT_END = 32  # tokens of a prompt, in which thinking may begin
_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query. These are their "
    "signatures:\n<tools>\n{tools}\n</tools>\n\nFor each function call, return a JSON object with the "
    "function's name and its arguments within tags:\n<tool_call>\n"
    '{{"name": <name>, "arguments": <arguments as JSON>}}\n</tool_call>'
)


class ChatFormat:
    """What a model's chat template and vocabulary say of its answers.

    `template`: None for a model without one, whose answers are plain text.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, template: str | None) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self.template = template

    @cached_property
    def output(self) -> OutputFormat:
        """How it marks thinking and calls."""
        from ...tokenizer.chat.output.formats import PLAIN, output_format

        if self.template is None:
            return PLAIN
        special = self._tokenizer.special_tokens
        return output_format(
            self.template, special, [token.content for token in self._tokenizer.added_tokens]
        )

    @cached_property
    def _may_think(self) -> bool:
        """Whether there may be thinking in an answer; known without `output`, whose import takes a while."""
        added = {token.content for token in self._tokenizer.added_tokens}
        return self.template is not None and may_think(self.template, added)

    def asked(self, request: GenerationRequest) -> Asked:
        """What the chat template gets for a request with messages: messages, tools and variables.

        Raises ValueError for thinking that the model cannot turn on or off.
        """
        messages = told(request.messages or (), request.response_format)
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if self._may_think and self.output.is_harmony:
            messages = [_with_one_kind_of_text(message) for message in messages]
        variables = {**self._thinking(request.thinking), **(request.variables or {})}
        tools = [dict(tool.schema) for tool in request.offered_tools]
        if tools and not self.output.takes_tools:
            return _with_tools_told(messages, tools), None, variables
        return messages, tools or None, variables

    def _thinking(self, wanted: bool | None) -> dict[str, Any]:
        """The template's variables that turn thinking on or off."""
        if wanted is None or self.template is None:
            return {}
        from ...tokenizer.chat.switches import thinking_variables

        found = thinking_variables(self.template, wanted)
        if found is not None:
            return found
        if wanted and not self.output.thinks:
            raise ValueError(f"{self._name} does not think: its chat template has no place for that")
        if not wanted and self.output.thinks:
            raise ValueError(
                f"the chat template of {self._name} cannot turn thinking off; a thinking budget of 0 ends it"
            )
        return {}

    def check_thinking(self, wanted: bool | None, budget: int | None = None) -> None:
        """Raises ValueError for thinking that the model cannot turn on or off."""
        self._thinking(wanted)

    def parser(self, request: GenerationRequest, ids: Sequence[int]) -> OutputParser | None:
        """What reads the answer to a request whose prompt is `ids`; None where all of it is text."""
        tools = request.offered_tools
        if request.messages is None or self.template is None or not (self._may_think or tools):
            return None
        from ...tokenizer.chat.output.parser import OutputParser
        from ...tokenizer.chat.output.tools import ToolSchemas

        if not (self.output.thinks or tools):
            return None
        return OutputParser(self.output, ToolSchemas(tool.schema for tool in tools), self._begun(ids))

    def constraint(
        self, request: GenerationRequest, ids: Sequence[int], constraints: Constraints
    ) -> Constraint | None:
        """What holds for the answer to a request whose prompt is `ids`: its form, and where thinking ends;
        None for an answer that may be anything. Raises ConstraintError for what is not supported."""
        form = self._form(request, ids, constraints)
        budget = request.thinking_budget
        if budget is None or request.messages is None or not self.output.thinks:
            return form
        from ...tokenizer.chat.output.families import harmony
        from .structured.budget import ThinkingBudget

        output = self.output
        marks = {harmony.ANALYSIS: harmony.END} if output.is_harmony else output.thinking
        begun = self._begun(ids)
        ending = self._tokenizer.encode(output.ending(begun or next(iter(marks))), special=True)
        return ThinkingBudget(form, self._tokenizer, marks, begun, budget, ending, request.begun)

    def _form(
        self, request: GenerationRequest, ids: Sequence[int], constraints: Constraints
    ) -> Constraint | None:
        """What keeps the answer to a request whose prompt is `ids` to its form, makes it call a tool that
        must be called, or keeps the arguments valid of those that it calls; None for an answer that may be
        anything. Raises ConstraintError for what is not supported or cannot be."""
        forced = request.tool_choice not in ("auto", "none")
        form = None if forced else request.response_format
        if not request.offered_tools or self.template is None:
            return constraints.of(form, self._thinks_first(request, ids), request.begun) if form else None
        named = [tool.schema for tool in request.offered_tools if tool.name == request.tool_choice]
        tools = named or [tool.schema for tool in request.offered_tools]
        parallel = request.parallel_tool_calls and not named
        style = self.output.call_style
        if forced or form:
            thinking = self._thinks_first(request, ids)
            if form:
                return constraints.of_or_calls(form, tools, style, parallel, thinking, request.begun)
            return constraints.calls(tools, style, parallel, thinking, request.begun)
        mark = next((mark for mark in self.output.calls if style.begins_with(mark)), "")
        thoughts = Thoughts(self.output.thinking, self._begun(ids))
        return constraints.calls_if_any(tools, style, mark, parallel, thoughts, request.begun)

    def _begun(self, ids: Sequence[int]) -> str:
        """The mark of thinking that is open where the prompt `ids` ends, "" for none."""
        if not self.output.thinking:
            return ""
        return self.output.begun_thinking(self._tokenizer.decode(ids[-PROMPT_END:]))

    def _thinks_first(self, request: GenerationRequest, ids: Sequence[int]) -> Thinking | None:
        """The marks around what the model may think before it answers; None if it does not."""
        output = self.output
        if output.is_harmony:  # messages on other channels come in front of the one on the last
            return Thinking("", output.ending("").partition("assistant")[2], begun=True)
        if request.prompt is not None or not output.thinking:
            return None
        begun = self._begun(ids)
        opening = begun or next(iter(output.thinking))
        may = bool(begun) or (request.messages is not None and request.thinking is not False)
        return Thinking(opening, output.thinking[opening], bool(begun)) if may else None


def one_call_a_message(messages: Messages) -> Messages:
    """The same conversation with each call in a message of its own, followed by its result: some templates
    refuse several calls in one."""
    split: list[Mapping[str, Any]] = []
    results = {m.get("tool_call_id"): m for m in messages if m.get("role") == "tool"}
    taken = set()
    for message in messages:
        calls = message.get("tool_calls") or ()
        if len(calls) > 1:
            for n, call in enumerate(calls):
                split.append(
                    {**message, "content": message.get("content") if n == 0 else "", "tool_calls": [call]}
                )
                if call.get("id") in results:
                    split.append(results[call["id"]])
                    taken.add(call["id"])
        elif message.get("role") != "tool" or message.get("tool_call_id") not in taken:
            split.append(message)
    return split


def _with_one_kind_of_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with calls for harmony's template, which takes thinking or text beside a call, not both."""
    thinking, text = message.get("reasoning_content"), message.get("content")
    if not message.get("tool_calls") or not thinking or not isinstance(text, str) or not text:
        return message
    return {**message, "content": "", "reasoning_content": f"{thinking}\n\n{text}"}


def _with_tools_told(messages: Messages, tools: list[dict[str, Any]]) -> Messages:
    """A conversation for a template that knows of no tools: the system prompt tells of them, and calls and
    results are told as text."""
    about = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    told = [_as_text(message) for message in messages]
    if told and told[0].get("role") == "system":
        return [{**told[0], "content": f"{told[0].get('content') or ''}\n\n{about}".strip()}, *told[1:]]
    return [{"role": "system", "content": about}, *told]


def _as_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without tool calls, and a result as a message of the user."""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.get('content')}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [str(message.get("content") or "")]
    for call in calls:
        function = call.get("function", call)
        arguments = parsed_arguments(function.get("arguments") or {})
        asked = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        texts.append(f"<tool_call>\n{asked}\n</tool_call>")
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(text for text in texts if text)}
