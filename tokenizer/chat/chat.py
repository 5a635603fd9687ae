"""A conversation to the ids of a prompt: renders the chat template, then encodes, safe against forged
turns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..core import Tokenizer
from .template import Messages, TemplateError, Tools, render_until

_PROBE = "kukri probe"


def encode_chat(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Messages,
    tools: Tools | None = None,
    **variables: Any,
) -> list[int]:
    """The ids of the prompt that a chat template makes of `messages`; the arguments are those of render_chat.

    Special tokens, and others spelled like <|this|>, count where the template writes them. The same
    spelling inside a message, a tool or a document stays ordinary text, so nobody can forge a turn by
    typing one. A begin token is added if the model expects one and the template writes none. `template`
    None is the tokenizer's own: "tool_use" for tools, if there is one of that name, else "default".

    Messages may be in the shape that chat APIs use: tool-call arguments as JSON text, `content` null or
    missing beside tool calls, or a list of text parts. They are brought into a shape that the template
    handles.
    TemplateError if there is no template or it does not accept the messages.
    """
    if template is None:
        template = (tokenizer.chat_templates.get("tool_use") if tools else None) or tokenizer.chat_template
    if template is None:
        raise TemplateError("this model has no chat template")
    variables = {
        "bos_token": "" if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
        "eos_token": "" if tokenizer.eos_id is None else tokenizer.token_text(tokenizer.eos_id),
        **variables,
    }
    return tokenizer.with_prefix(_Prompt(tokenizer, template, variables).encode(messages, tools))


class _Prompt:
    """A template with its variables. All renderings for one prompt share one deadline."""

    def __init__(self, tokenizer: Tokenizer, template: str, variables: Mapping[str, Any]) -> None:
        from .budget import deadline

        self._tokenizer = tokenizer
        self._template = template
        self._variables = dict(variables)
        self._add_generation_prompt = self._variables.pop("add_generation_prompt", True)
        self._now = self._variables.pop("now", None)
        self._deadline = deadline()

    def encode(self, conversation: Messages, tools: Tools | None) -> list[int]:
        from .given import plain

        documents = self._variables.get("documents")
        given = plain({"messages": list(conversation), "tools": tools, "documents": documents})
        tools, documents = given["tools"], given["documents"]
        messages = [self._plain_message(message) for message in given["messages"]]
        used = json.dumps([messages, tools, documents, self._template], ensure_ascii=False)
        stand_ins = self._tokenizer.guard.stand_ins(used)

        def hidden(exempt: list[str]) -> str:
            return self._render(
                [stand_ins.disguise(m, exempt=exempt if _from_model(m) else ()) for m in messages],
                stand_ins.disguise(tools),
                stand_ins.disguise(documents),
            )

        text = hidden([])
        if text != stand_ins.restore(text):
            # Something was disguised. A template may look for a token of its own in what the model wrote,
            # as in content.split("</think>"): if the result shows it, such tokens are left there.
            try:
                naive = self._render(messages, tools, documents)
            except TemplateError:
                naive = stand_ins.restore(text)
            if stand_ins.restore(text) != naive:
                known = [token for token in self._tokenizer.guard.spellings if token in self._template]
                other = hidden(known)
                text = other if stand_ins.restore(other) == naive else text
        return self._tokenizer.encode_rendered(text, stand_ins.restore)

    def _render(self, messages: list[dict[str, Any]], tools: Any, documents: Any) -> str:
        """The prompt, with messages in the first shape that the template does not fail on."""
        variables = self._variables if documents is None else {**self._variables, "documents": documents}
        shapes = (_as_they_are, _with_content, _with_argument_texts, _with_content_and_argument_texts)
        shaped = [[shape(message) for message in messages] for shape in shapes]
        attempts = [(tools, messages) for messages in shaped]
        if tools is None:  # a template that is only for tools may loop over them all the same
            attempts += [([], messages) for messages in shaped]
        first_error: TemplateError | None = None
        for i, (given, changed) in enumerate(attempts):
            if (given, changed) in attempts[:i]:
                continue
            try:
                return self._render_once(changed, given, variables)
            except TemplateError as error:
                if error.raised:
                    raise
                first_error = first_error or error
        raise first_error or TemplateError("no chat template")

    def _render_once(self, messages: Messages, tools: Any, variables: Mapping[str, Any]) -> str:
        add, now = self._add_generation_prompt, self._now
        return render_until(self._deadline, self._template, messages, tools, add, now, variables)

    def _plain_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message with null content as "", tool-call arguments as objects, and text parts joined unless
        the template reads parts.
        """
        if not isinstance(message, Mapping):
            raise TemplateError(
                f"a message is an object with a role and a content, not {type(message).__name__}"
            )
        plain = dict(message)
        if plain.get("content", "") is None:
            plain["content"] = ""
        if isinstance(plain.get("content"), list | tuple) and not self._takes_parts:
            plain["content"] = "".join(map(_part_text, plain["content"]))
        if isinstance(plain.get("tool_calls"), list | tuple):
            plain["tool_calls"] = [_change_arguments(call, parsed_arguments) for call in plain["tool_calls"]]
        return plain

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template itself reads a content that is a list of parts."""
        probe = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
        try:
            text = self._render_once(probe, None, {"bos_token": "", "eos_token": ""})
        except TemplateError:
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text


def _from_model(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ("assistant", "model")


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise TemplateError("this model's chat template takes text only")


def _change_arguments(call: Any, change: Any) -> Any:
    """A tool call, with or without "function" around it, with its arguments changed."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _change_arguments(call["function"], change)}
    return {**call, "arguments": change(call["arguments"])} if "arguments" in call else call


def parsed_arguments(arguments: Any) -> Any:
    """The arguments of a call: the object that a text states, and as they are if it states none, as where an
    answer was cut within a call."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _as_text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _as_they_are(message: dict[str, Any]) -> dict[str, Any]:
    return message


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    return {"content": "", **message} if "tool_calls" in message else message


def _with_argument_texts(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_change_arguments(call, _as_text) for call in calls]}


def _with_content_and_argument_texts(message: dict[str, Any]) -> dict[str, Any]:
    return _with_argument_texts(_with_content(message))
