"""Chat templates: messages in, the text of a prompt out, by the Jinja template that a model ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from ... import KukriError

if TYPE_CHECKING:
    from jinja2 import Template

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class TemplateError(KukriError, ValueError):
    """A template that cannot be used or does not accept the messages.

    `raised` is True where the template itself refused them; the message is its own then.
    """

    def __init__(self, message: str, raised: bool = False) -> None:
        super().__init__(message)
        self.raised = raised


def render_chat(
    template: str,
    messages: Messages,
    tools: Tools | None = None,
    add_generation_prompt: bool = True,
    now: str | datetime | None = None,
    **variables: Any,
) -> str:
    """The prompt that `template` (Jinja source) makes of `messages`.

    messages  role, content and what else the template reads; `reasoning_content` is also given as `thinking`
    tools     JSON schemas of functions, or None
    now       what strftime_now sees: a datetime or its ISO form; the current time if None
    variables bos_token, eos_token, enable_thinking and others that the template reads

    Messages, tools and variables are of JSON's types. The template runs in a sandbox with bounded time and
    memory. TemplateError if it is not valid, fails, reaches outside the sandbox or calls raise_exception.
    """
    from .budget import deadline

    return render_until(deadline(), template, messages, tools, add_generation_prompt, now, variables)


def render_until(
    deadline: float,
    template: str,
    messages: Messages,
    tools: Tools | None,
    add_generation_prompt: bool,
    now: str | datetime | None,
    variables: Mapping[str, Any],
) -> str:
    """render_chat with a deadline (of `budget.deadline`) that several renderings may share."""
    from jinja2 import TemplateError as JinjaError

    from .budget import BUDGET, Budget
    from .sandbox import MAX_TEMPLATE

    context = {
        "messages": [_with_thinking(message) for message in messages],
        "tools": tools,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **variables,
    }
    if len(template) > MAX_TEMPLATE:
        raise TemplateError(
            f"chat template: {len(template)} characters long; at most {MAX_TEMPLATE} are read"
        )
    try:
        context = {name: _plain(value) for name, value in context.items()}
        budget = Budget(deadline, _characters([*context.values()]))
        budget.spend(0)  # compiling takes time too, and so may have what went before
        context[BUDGET] = budget
        context["raise_exception"] = _refuse
        context["strftime_now"] = _clock(now)
        return "".join(_compiled(template).generate(context))
    except TemplateError:
        raise
    except JinjaError as error:
        raise TemplateError(f"chat template: {_one_line(error)}") from None
    except RecursionError:
        raise TemplateError("chat template: nested too deeply") from None
    except (Exception, MemoryError) as error:  # noqa: BLE001 - a template can fail in any way
        raise TemplateError(f"chat template: {type(error).__name__}: {_one_line(error)}") from None


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    from .sandbox import ChatEnvironment

    return ChatEnvironment().from_string(template)


def _refuse(message: object = "") -> NoReturn:
    text = str(message)
    raise TemplateError(text if text.strip() else "the chat template refuses the conversation", raised=True)


def _one_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["failed"])[0][:500]


def _clock(now: str | datetime | None) -> Callable[[str], str]:
    from .methods import format_time

    moment = datetime.fromisoformat(now) if isinstance(now, str) else now or datetime.now()

    def strftime_now(format: str) -> str:  # no `partial`: the attributes of that are open to a template
        return format_time(moment, format)

    return strftime_now


def _with_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some templates read the reasoning of an earlier answer from `thinking`."""
    reasoning = message.get("reasoning_content")
    if reasoning is None or "thinking" in message:
        return message
    return {**message, "thinking": reasoning}


def _characters(value: Any) -> int:
    """About as many as a plain value is written with."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else 8


def _plain(value: Any) -> Any:
    """A copy made of JSON's types only: other objects have methods that no sandbox knows."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TemplateError(f"messages and variables are of JSON's types, not {type(value).__name__}")
