"""Chat templates: messages in, the text of a prompt out, by the Jinja template that a model ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from ... import KukriError

if TYPE_CHECKING:
    from jinja2 import Template

    from .budget import Budget

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
MAX_REFUSAL = 4096  # characters of what a template says in refusing a conversation
MAX_ERROR = 500  # characters of any other error


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
    from .given import plain
    from .sandbox import MAX_TEMPLATE

    given = {
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
        context: dict[str, Any] = plain(given)
        budget = Budget(deadline, context.values())
        budget.spend(0)  # compiling takes time too, and so may have what went before
        context[BUDGET] = budget
        context["raise_exception"] = _refusing(budget)
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


def _refusing(budget: Budget) -> Callable[..., NoReturn]:
    def raise_exception(message: object = "") -> NoReturn:
        budget.reserve(budget.text_length(message))
        text = str(message)[:MAX_REFUSAL]
        if not text.strip():
            text = "the chat template refuses the conversation"
        raise TemplateError(text, raised=True)

    return raise_exception


def _one_line(error: BaseException) -> str:
    if isinstance(error, KeyError) and isinstance(error.args[0], str):  # whose text is the repr of the key
        return f"no {error.args[0][:MAX_ERROR]!r}"
    return (str(error)[:MAX_ERROR].splitlines() or ["failed"])[0]


def _clock(now: str | datetime | None) -> Callable[[str], str]:
    from .formats import format_time

    moment = datetime.fromisoformat(now) if isinstance(now, str) else now or datetime.now()

    def strftime_now(format: str) -> str:  # no `partial`: the attributes of that are open to a template
        return format_time(moment, format)

    return strftime_now


def _with_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some templates read the reasoning of an earlier answer from `thinking`."""
    if not isinstance(message, Mapping):
        raise TemplateError(f"a message is an object with a role and a content, not {type(message).__name__}")
    reasoning = message.get("reasoning_content")
    if reasoning is None or "thinking" in message:
        return message
    return {**message, "thinking": reasoning}
