"""Jinja sources of chat templates, made from what a prompt format puts around each message."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SYSTEM = "(system if system is defined else '')"
_EXPRESSIONS = {
    "$bos": "bos_token",
    "$eos": "eos_token",
    "$role": "message.role",
    "$first": "(folded if loop.first else '')",
    "$last": "(folded if loop.last else '')",
    "$unthought": "(unthought if unthought is defined else '')",
}
TAKE_SYSTEM = (
    "{% if messages and messages[0].role == 'system' %}"
    "{% set system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}"
)
FOLD = "{% set folded = system + '\\n\\n' if system is defined else '' %}"
_NO_TOOLS = (
    "{% if tools %}{{ raise_exception('this model ships no chat template, and the built-in one takes no "
    "tools') }}{% endif %}"
)
NO_SUCH_ROLE = "{{ raise_exception('the built-in chat template has no place for the role ' + message.role) }}"


@dataclass(frozen=True)
class Form:
    """What is written before and after a message's content.

    $bos and $eos stand for the model's tokens, $role for the message's role; $first and $last for the system
    message and a blank line, if this is the first message after it or the last one of all; $unthought for
    what `opening` has set so, in front of answers without thoughts.
    """

    before: str
    after: str
    trim: bool = False
    thoughts: bool = True  # False: what comes before "</think>" is left out
    first_lines: bool = True  # False: line feeds at the beginning are left out


def turns(
    user: Form,
    assistant: Form,
    prompt: str,
    system: Form | None = None,
    *,
    begin: str = "",
    opening: str | None = None,
) -> str:
    """A template that begins, writes one message after another, and ends with `prompt`.

    `opening` is Jinja source that takes care of a system message at the start: it finds that in `system`,
    which is undefined if there is none. `prompt` is Jinja source where it begins with a brace.
    """
    source = [_NO_TOOLS]
    if opening is not None:
        source.append(TAKE_SYSTEM)
    source += [written(begin), opening or "", "{% for message in messages %}"]
    test = "if"
    for role, form in (("user", user), ("assistant", assistant), ("system", system)):
        if form is not None:
            source.append(f"{{% {test} message.role == '{role}' %}}{one_message(form)}")
            test = "elif"
    source += ["{% else %}", NO_SUCH_ROLE, "{% endif %}{% endfor %}"]
    ending = prompt if prompt.startswith("{") else written(prompt)
    source += ["{% if add_generation_prompt %}", ending, "{% endif %}"]
    return "".join(source)


def folded(user: Form, assistant: Form, prompt: str, begin: str) -> str:
    """`turns` for formats without a system message: it goes where $first or $last in `user` is."""
    return turns(user, assistant, prompt, begin=begin, opening=FOLD)


def written(text: str) -> str:
    """Jinja source that writes `text`, with the placeholders of `Form`."""
    return "{{ " + expression(text) + " }}" if text else ""


def expression(text: str) -> str:
    """The same as a Jinja expression."""
    parts = [part for part in re.split(r"(\$(?:bos|eos|role|first|last|unthought))", text) if part]
    return " + ".join(_EXPRESSIONS.get(part) or json.dumps(part) for part in parts) or "''"


def one_message(form: Form) -> str:
    """Jinja source that writes `message`."""
    content = "message.content"
    if not form.thoughts:
        rest = "message.content.split('</think>')[-1].lstrip('\\n')"
        content = f"({rest} if '</think>' in message.content else message.content)"
    if not form.first_lines:
        content = f"{content}.lstrip('\\n')"
    if form.trim:
        content = f"({content} | trim)"
    return "{{ " + " + ".join([expression(form.before), content, expression(form.after)]) + " }}"


def always(form: Form, text: str) -> str:
    """A system message that is always there; `text` is a Jinja expression."""
    return written(form.before) + f"{{{{ {text} }}}}" + written(form.after)


def or_else(text: str) -> str:
    """The system message, or else `text`, a Jinja expression."""
    return f"(system if system is defined else {text})"


def given(form: Form) -> str:
    """A system message that is left out if it is empty."""
    return "{% if system %}" + always(form, "system") + "{% endif %}"
