"""Chat templates: what 34 models' templates make of 17 conversations, and what hostile ones must not do."""

from __future__ import annotations

import json
import lzma
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kukri.tokenizer import TemplateError, render_chat
from kukri.tokenizer.chat import budget, sandbox

from ...usual_machine import within

DATA = Path(__file__).parents[2] / "data" / "chat_templates"
CASES: dict[str, Any] = json.loads(lzma.decompress((DATA / "cases.json.xz").read_bytes()))
CONVERSATIONS: dict[str, Any] = json.loads((DATA / "conversations.json").read_text())
HI = [{"role": "user", "content": "hi"}]


def render(template: str, **variables: Any) -> str:
    return render_chat(template, HI, **variables)


def refused(template: str, **variables: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        render(template, **variables)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def grow(first: str, step: str, last: str = "n.x") -> str:
    """A template that makes something larger in every turn of a loop."""
    loop = "{% for i in range(1000) %}{% set n.x = " + step + " %}{% endfor %}"
    return "{% set n = namespace(x=" + first + ") %}" + loop + "{{ " + last + " }}"


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(CASES))
def test_goldens(model: str) -> None:
    spec = CASES[model]
    wrong = []
    for case in spec["cases"]:
        conversation = CONVERSATIONS[case["conversation"]]
        got: str | TemplateError
        try:
            got = render_chat(
                spec["template"],
                conversation["messages"],
                conversation.get("tools"),
                now=spec["now"],
                bos_token=spec["bos_token"],
                eos_token=spec["eos_token"],
                **case["kwargs"],
            )
        except TemplateError as error:
            got = error
        if "expected" in case:
            same = got == case["expected"]
        else:
            raised = case["error"]["kind"] == "raised"
            same = isinstance(got, TemplateError) and got.raised == raised
            same = same and (not raised or str(got) == case["error"]["message"])
        if not same:
            wrong.append((case["conversation"], case["kwargs"]))
    assert len(spec["cases"]) >= 34
    assert wrong == []


def test_the_environment_of_chat_templates() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"  # blocks trimmed
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"
    assert (
        render("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "023"
    )
    assert render("a{% generation %}b{% set x = 1 %}{% endgeneration %}c{{ x }}") == "abc"
    assert render("{{ {'a': '<é&>'}|tojson }}") == '{"a": "<é&>"}'
    assert render("{{ [1]|tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{{ strftime_now('%d %b %Y') }}", now="2025-03-04T15:06:07") == "04 Mar 2025"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    count = "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
    assert render(count + "{{ ns.n }}") == "3"
    assert (
        render("{{ 'a' ~ 1 ~ none }} {{ 'x' * 3 }} {{ '%s-%d' % ('a', 1) }} {{ '{}'.format(2) }}")
        == "a1None xxx a-1 2"
    )
    assert (
        render("{{ ['a', 'b']|join(', ') }} {{ 'a b'|replace('a', 'c') }} {{ ','.join(['x', 'y']) }}")
        == "a, b c b x,y"
    )
    assert (
        render("{{ messages[0].content }}{{ add_generation_prompt }}{{ tools }}{{ documents }}")
        == "hiTrueNoneNone"
    )
    assert render("{{ bos_token }}{{ missing }}", bos_token="<s>") == "<s>"
    assert (
        render("{% macro m(x) %}[{{ x }}{{ bos_token }}]{% endmacro %}{{ m(1) }}", bos_token="<s>")
        == "[1<s>]"
    )


def test_a_template_that_refuses() -> None:
    with pytest.raises(TemplateError, match=r"^only\nyou$") as caught:
        render("{{ raise_exception('only\\nyou') }}")
    assert caught.value.raised
    with pytest.raises(TemplateError) as caught:
        render("{{ 1 + 'a' }}")
    assert not caught.value.raised


def test_reasoning_is_given_under_both_names() -> None:
    messages = [{"role": "assistant", "content": "", "reasoning_content": "why"}]
    assert render_chat("{{ messages[0].thinking }}{{ messages[0].reasoning_content }}", messages) == "whywhy"
    messages[0]["thinking"] = "how"
    assert render_chat("{{ messages[0].thinking }}", messages) == "how"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ ''|attr('__class__') }}",
        "{{ [''|attr('__class__')] }}",
        "{{ ['']|map(attribute='__class__')|list }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{x.__class__}'.format_map({'x': ''}) }}",
        "{{ messages.__class__ }}",
        "{{ messages[0].__init__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.func.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__class__=1) }}",
        "{% for x in messages %}{{ loop.__class__ }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m.__call__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'base' %}",
        "{{ lipsum() }}",
        "{{ strftime_now.args[0].strftime('%c') }}",
        "{{ strftime_now.func(1, '%c') }}",
        "{{ ('{0.__class__}'|attr('format'))('') }}",
        "{{ [1]|map('pprint')|list }}",
    ],
)
def test_nothing_outside_the_sandbox_is_reached(template: str) -> None:
    refused(template)


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * ['a'] }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 12345|round(-1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, '1000000000') }}",
        "{{ strftime_now('%1000000000d') }}",
        "{{ 'a\nb'|indent(1000000000) }}",
        "{{ [[1]]|tojson(indent=1000000000) }}",
        "{{ [1]|batch(1000000000, 'x')|list }}",
        "{{ [1]|slice(1000000000)|list }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ 'a'.translate({97: 'b'}) }}",
        "{{ range(100000)|map('string')|join('x' * 100000) }}",
        "{{ ('x' * 100000).join(range(100000)|map('string')) }}",
        "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}xxxxxxxxxx{% endfor %}{% endfor %}",
        grow("'a'", "n.x ~ n.x"),
        grow("'a'", "n.x + n.x"),
        grow("[1]", "n.x + n.x"),
        grow("[1]", "[n.x, n.x]"),
        grow("[1]", "[n.x, n.x]", "n.x|tojson"),
        grow("[]", "n.x + [range(100000)|list]"),
        # Lists inside lists that stand for more than can be hashed, shown, sorted or compared
        grow("()", "(n.x, n.x)", "{n.x: 1}|length"),
        grow("()", "(n.x, n.x)", "{}.get(n.x)"),
        grow("()", "(n.x, n.x)", "[][n.x].a"),
        grow("()", "{'a': [n.x], 'b': [n.x]}.values()"),
        grow("()", "{'a': [n.x], 'b': [n.x]}.values()", "raise_exception(n.x)"),
        "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}{{ {varargs: 1} }}{% endif %}"
        "{% endmacro %}{{ m(60) }}",
        "{{ ['x' * 1000000] * 100000 }}",
        "{{ ['x' * 1000000] * 100000 | sort | length }}",
        # Copies
        "{% set x = 'x' * 1000000 %}" + "{% set y = x[1:] %}" * 2000,
        "{% set x = [0] * 100000 %}" + "{% set y = x[:] %}" * 2000,
        "{% set x = 'x' * 1000000 %}" + "{% set y = x.partition('y') %}" * 1500,
        "{% macro m(x) %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endmacro %}"
        "{{ m('x' * 1000000)|length }}",
        "{% set y %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
        grow("'x'", "'x'")
        + "{% for i in range(1000) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        # Methods and filters that multiply, or look for one thing everywhere in another
        "{{ ('\t' * 10000).expandtabs(1000000) }}",
        "{{ 'a'.encode() * 10**10 }}",
        "{{ ('\r' * 100000)|indent(1000000, blank=true) }}",
        "{{ [1, 2]|tojson(separators=('x' * 1000000, ':')) }}",
        "{{ ('%99999d' * 1000)|format(1) }}",
        "{{ '%99999d' * 1000 % 1 }}",
        "{{ ('a' * 1000000).rfind('b' ~ 'a' * 500000) }}",
        "{{ ('a' * 1000000).strip('b' * 1000000 ~ 'a') }}",
        "{{ ('a' * 1000000)|trim('b' * 1000000 ~ 'a') }}",
        "{{ range(99999)|map(attribute='a.' * 100000, default={})|list }}",
        "{% set x = range(99999)|list %}{{ x|select('in', x)|list }}",
        # Whole numbers of any size
        "{{ ('f' * 1000000)|int(0, 16) // 3 }}",
        "{{ (1).from_bytes([255] * 100000) // 3 }}",
        "{{ 0x" + "f" * 2000 + " }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    ],
)
def test_time_and_memory_are_bounded(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.5)
    monkeypatch.setattr(budget, "MAX_CHARACTERS", 1 << 22)
    start = time.thread_time()
    refused(template)
    assert within(time.thread_time() - start, 3)


def test_a_long_chain_of_conditions() -> None:
    """Python up to 3.11 does not compile it; later versions do."""
    start = time.thread_time()
    with suppress(TemplateError):
        assert render("{% if 0 %}" + "{% elif 0 %}" * 5000 + "{% endif %}") == ""
    assert within(time.thread_time() - start, 3)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in messages %}",
        "{{ x.y.z }}",
        "{{ 1/0 }}",
        "{% break %}",
        "{{",
        "{% nonsense %}",
        "{{ 'a'.split('') }}",
    ],
)
def test_broken_templates(template: str) -> None:
    refused(template)


def test_what_python_thinks_of_a_template_is_not_told(recwarn: pytest.WarningsRecorder) -> None:
    assert render("{% if false %}{{ 1['a'](2)[3] }}{% endif %}x") == "x"
    assert not recwarn.list


def test_a_namespace_is_not_written_out() -> None:
    chain = "{% for i in range(99) %}{% set n.x = namespace(a=n.x, b=n.x) %}{% endfor %}"
    assert render("{% set n = namespace(x=1) %}" + chain + "{{ n.x }}") == "<namespace>"


def test_what_is_given_may_be_long() -> None:
    """Messages longer than what a template may make by itself pass through macros, slices and filters."""
    messages = [{"role": "user", "content": "x" * 1_000_000} for _ in range(20)]
    template = (
        "{% macro m(message) %}{{ message.content|trim }}{% endmacro %}{% set rest = messages[1:] %}"
        "{% for a in rest %}{{ m(a) }}{% endfor %}{{ messages|map(attribute='role')|join(' ')|length }}"
    )
    assert len(render_chat(template, messages)) == 19_000_002


def test_only_plain_data_goes_in() -> None:
    class Text(str):
        def secret(self) -> str:
            return "secret"

    assert render("{{ x.secret }}{{ x }}", x=Text("a")) == "a"
    assert "not object" in refused("{{ x }}", x=object())
    assert "not bytes" in refused("{{ x }}", x=b"")
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    assert "deeply" in refused("{{ x }}", x=deep)


def test_input_is_left_as_it_was(recwarn: pytest.WarningsRecorder) -> None:
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": "x", "reasoning_content": "y"}]
    render_chat("{% for m in messages %}{% set m = dict(m, a=1) %}{{ m.a }}{% endfor %}", messages)
    assert messages == [{"role": "assistant", "content": "x", "reasoning_content": "y"}]


def test_a_template_is_compiled_once() -> None:
    template = "{{ messages }}" * 4000
    render(template)
    start = time.process_time()
    render(template)
    again = time.process_time() - start
    compiled: Callable[..., Any] = sandbox.ChatEnvironment().from_string
    start = time.process_time()
    compiled(template)
    assert again < (time.process_time() - start) / 2
