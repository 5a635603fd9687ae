"""Chat templates of models: cost that grows with a conversation's length, not with its square, far from any
limit; and whatever plain Jinja makes of sound templates."""

from __future__ import annotations

import json
import lzma
import time
from pathlib import Path
from typing import Any

import pytest
from jinja2.nodes import Node
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kukri.tokenizer import TemplateError, render_chat
from kukri.tokenizer.chat import instrument
from kukri.tokenizer.chat.families import FAMILIES
from kukri.tokenizer.chat.sandbox import ChatEnvironment

from ...usual_machine import within

DATA = Path(__file__).parents[2] / "data" / "chat_templates"
CASES: dict[str, Any] = json.loads(lzma.decompress((DATA / "cases.json.xz").read_bytes()))
HI = [{"role": "user", "content": "hi"}]


def conversation(turns: int, system: bool = True) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": "be brief"}] if system else []
    for i in range(turns // 2):
        messages.append({"role": "user", "content": f"question {i} " * 5})
        messages.append({"role": "assistant", "content": f"answer {i}, and more of it. " * 5})
    return messages[:-1]


def seconds(spec: dict[str, Any], messages: list[dict[str, str]]) -> float:
    start = time.thread_time()
    render_chat(
        spec["template"],
        messages,
        [],
        now="2026-01-02T03:04:05",
        bos_token=spec["bos_token"],
        eos_token=spec["eos_token"],
    )
    return time.thread_time() - start


TEMPLATES = {
    **CASES,
    **{
        f"built-in {i}": {"template": family.template, "bos_token": "<s>", "eos_token": "</s>"}
        for i, family in enumerate(FAMILIES)
    },
}
# Gemma 4 goes back through all messages at each message.
SQUARE = {"gemma-4-31b-it"}


@pytest.mark.slow
@pytest.mark.parametrize("model", TEMPLATES)
def test_cost_grows_with_the_length_of_a_conversation(model: str) -> None:
    spec = TEMPLATES[model]
    try:
        seconds(spec, conversation(4))
        system = True
    except TemplateError:
        system = False
    turns = 1000 if model in SQUARE else 2000
    assert within(min(seconds(spec, conversation(turns, system)) for _ in range(2)), 1)
    if model not in SQUARE:
        short = min(seconds(spec, conversation(500, system)) for _ in range(5))
        long = min(seconds(spec, conversation(4000, system)) for _ in range(3))
        assert long < 8 * 2 * short


def test_the_largest_template_of_a_model_is_far_from_the_limits() -> None:
    """Which are there for what no model ships."""
    environment = ChatEnvironment()
    for spec in TEMPLATES.values():
        code = environment.compile(spec["template"], raw=True)
        assert len(code) < instrument.MAX_CODE / 5
        tree = super(ChatEnvironment, environment)._parse(spec["template"], None, None)
        assert len([*tree.find_all(Node)]) < instrument.MAX_NODES / 5


# Expressions of all kinds that templates use; whatever plain Jinja makes of them, so must this one.
SOUND = r"""
1 + 2 * 3 ** 2 // 4 % 5 - -6 / 8 | -7 // 2 | 2 ** 100 - 1 | 1.5 * 2 | 10 % 3 | '%d' % 2 ** 70 | true + 1
7 / 2 | 'a' + 'b' | 'a' * 3 | [1] + [2] | [1, 2] * 2 | (1,) + (2,) | 'a' ~ 1 ~ none ~ [1, 'b'] | 3 * 'ab'
[] * 5 | '%s-%05d-%.2f-%r-%%' % ('a', 42, 1.234, 'b') | '%(a)s %(b)3d' % {'a': 1, 'b': 2} | '%-5s|' % 'ab'
'%x %o' % (255, 8) | '{}-{:>5}-{:.2f}-{!r}'.format('a', 'b', 1.234, 'c') | '{0}{1}{0}'.format(1, 2)
'{a}{b[x]}'.format(a=1, b={'x': 2}) | '{:,}'.format(1234567) | '{{}}{}'.format(1)
'{a}'.format_map({'a': 1}) | '{:05d}'.format(42) | '{:*^9}'.format('mid')
'20250101 100% %s' % 1 if false else 'id 1234567 {}'.format(1) | '%% 12345678 %s' % 'x' | 'abc'|format
'%s'|format(1) | 'abc'[1] | 'abc'[-2:] | 'abcdef'[::2] | 'abc'[::-1] | [1, 2, 3][1:] | (1, 2, 3)[:-1]
'abc'[5:] | [1][0] | {'a': 1}['a'] | 'b' in 'abc' | 'z' not in 'abc' | 1 in [1, 2] | 'a' in {'a': 1}
'x' in messages[0].content | 3 not in (1, 2) | 'a' in 'a' in ['a'] | 1 < 2 < 3 | 1 == 1.0 | 'a' < 'b'
[1] == [1] | {'a': 1} == {'a': 1} | none is none | 1 != 2 | 2 >= 1 | not 1 | 1 and 0 or 5 | 'a b  c'.split()
'a,b,c'.split(',') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | 'a\nb\r\nc'.splitlines()
'a b'.split(' ')[-1] | 'a-b'.partition('-') | 'a-b-c'.rpartition('-') | '-'.join(['a', 'b'])
''.join('abc') | ', '.join({'a': 1, 'b': 2}) | ' a '.strip() | 'xxaxx'.strip('x') | 'xxa'.lstrip('x')
'axx'.rstrip('x') | 'abc'.replace('b', 'X') | 'aaa'.replace('a', 'b', 2) | 'abc'.replace('', '-')
'aXb'.upper() | 'aXb'.lower() | 'ab cd'.title() | 'ab'.capitalize() | 'aB'.swapcase() | 'ß'.casefold()
'ΐ'.upper() | 'ab'.center(7, '*') | 'ab'.ljust(5) | 'ab'.rjust(5, '.') | '-7'.zfill(5)
'a\tb'.expandtabs(4) | 'a\tb'.expandtabs() | 'abcabc'.find('c') | 'abcabc'.rfind('c') | 'abc'.index('b')
'abcabc'.count('a') | 'abc'.startswith(('x', 'a')) | 'abc'.endswith('c') | 'abc'.removeprefix('a')
'abc'.removesuffix('c') | 'abc'.isalpha() | '12'.isdigit() | '1'.isdecimal() | 'a1'.isalnum()
' '.isspace() | 'a'.isascii() | 'Ab'.istitle() | {'a': 1, 'b': 2}.items()|list | {'a': 1}.keys()|list
{'a': 1}.values()|list | {'a': 1}.get('b', 3) | {'a': 1}.copy() | [1, 2, 1].count(1) | [1, 2].index(2)
(1, 2).index(1) | (5).bit_length() | (1.0).is_integer() | range(3)|list | range(1, 9, 3)|list
range(5)|length | range(3).index(1) | dict(a=1) | dict({'a': 1}, b=2) | dict([('a', 1)])
dict(a=1, **{'b': 2}) | namespace(x=1).x | namespace({'x': 2}).x | namespace(**{'x': 3}).x
messages[0].role | messages[0]['content'] | messages[0].missing is defined | missing is undefined
messages|length | messages[-1].role | missing | 'abc'|upper | 'ABC'|lower | 'ab cd'|title | 'ab'|capitalize
' ab '|trim | 'xxaxx'|trim('x') | 'abc'|replace('b', 'd') | 'aaa'|replace('a', 'b', 1) | 'abc'|length
[1, 2]|count | 'a'|default('b') | missing|default('b') | ''|d('c', true) | none|default('x')
[3, 1, 2]|sort | ['b', 'A']|sort | ['b', 'A']|sort(case_sensitive=true) | [3, 1]|sort(reverse=true)
[{'a': 2}, {'a': 1}]|sort(attribute='a') | [1, 1, 2]|unique|list | 'hello'|unique|join | [1, 2, 3]|sum
[{'a': 1}, {'a': 2}]|sum(attribute='a') | [1, 2]|sum(start=10) | [1, 5, 3]|max | [1, 5, 3]|min
['b', 'A']|max | []|max is undefined | [1, 2, 3]|join(', ') | [{'a': 1}, {'a': 2}]|join('-', attribute='a')
'abc'|join('.') | []|join | ['a', 1, none]|join | missing|join(',') | [1, 2, 3]|first | [1, 2, 3]|last
'abc'|first | 'abc'|last | 'abc'|reverse | [1, 2]|reverse|list | [1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3]|batch(2, 'x')|list | [1, 2, 3, 4, 5]|slice(2)|list | [1, 2, 3]|slice(2, 'x')|list | 'abc'|list
{'a': 1}|list | range(3)|list | [1, 2]|map('string')|list | [{'a': 1}]|map(attribute='a')|list
['a']|map('upper')|join | none|map('upper')|list | ['a b']|map('replace', ' ', '-')|list
[{'a': {'b': 1}}]|map(attribute='a.b')|list | [{'a': 1}, {}]|map(attribute='a', default=0)|list
[1, 2, 3]|select('odd')|list | [1, 2]|select|list | [1, 2, 3]|reject('odd')|list | [0, 1, '']|reject|list
[{'a': 1}, {'a': 2}]|selectattr('a', 'eq', 2)|list | [{'a': 1}, {}]|selectattr('a')|list
[{'a': 1}, {}]|rejectattr('a', 'defined')|list | [1, 2, 3]|select('in', [1, 3])|list
['a', 'b']|reject('equalto', 'a')|list | messages|selectattr('role', 'equalto', 'user')|list
[{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]|groupby('a')|list | {'b': 1, 'a': 2}|dictsort
{'b': 1, 'a': 2}|dictsort(false, 'value') | {'a': 1}|items|list | '<a & "b">'|escape | '<'|e
'<'|forceescape | '<b>'|safe | ('<b>'|safe) ~ '<' | ('<b>'|safe) + '<' | ('%s'|safe) % '<'
('<'|safe).replace('<', '>') | (','|safe).join(['<', 'a']) | ('{}'|safe).format('<') | ('a b'|safe).split()
'<'|safe|upper | '<'|safe|string|length | 'a b/ü'|urlencode | {'a': 'b c'}|urlencode | 'a\nb'|indent
'a\nb'|indent(2, true) | 'a\n\nb'|indent('> ', blank=true) | 'ab'|center(6) | 'a b c'|wordcount
'abc def ghi'|truncate(7, true, '…', 0) | 'abc def ghi'|truncate(9) | 123456|filesizeformat
1000000|filesizeformat(true) | '42'|int | 'x'|int(7) | 'ff'|int(0, 16) | '1.5'|float | 'x'|float(2.5)
3.7|int | 1.567|round(2) | 1.5|round | 1.1|round(0, 'ceil') | 17|round(-1) | -5|abs | 5|string
[1, 'a']|string | messages[0]|attr('role') is defined | 'a'|attr('upper') is callable | 1 is odd | 2 is even
9 is divisibleby(3) | 'a' is string | 1 is number | 1.5 is float | 1 is integer | true is boolean
[] is sequence | {} is mapping | 'A' is upper | 'a' is lower | [] is iterable | 1 is sameas(1)
'a' is in('abc') | 1 is in [1] | 2 is gt(1) | 1 is lessthan 2 | 1 is eq(1) | 1 is ne(2) | none is none
'upper' is filter | 'odd' is test | 1 is true | cycler('a', 'b').next() | joiner(', ')() | 'a' if true
('b' if false) is undefined | [1, 2, [3, {'a': none}]] | {'a': [1, {'b': true}]} | (1, 2) | 1.0 | -0.0
1e100
"""
STATEMENTS = (
    "{% for a in [1, 2, 3] %}{{ loop.index }}{{ loop.last }}{{ loop.cycle('x', 'y') }}"
    "{{ loop.changed(a // 2) }}{% endfor %}",
    "{% for a in [1, 2, 3] if a is odd %}{{ a }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for a in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}"
    "{% for c in 'abc' %}{{ c }}{{ loop.revindex }}{% endfor %}",
    "{% for a in [[1, [2]], [3]] recursive %}{% if a is iterable %}[{{ loop(a) }}]{% else %}{{ a }}"
    "{% endif %}{% endfor %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller else '' }}"
    "{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, c=4) }}{{ m(*[1, 2], **{'d': 5}) }}"
    "{% call m(9) %}body{% endcall %}{{ m.name }}{{ m.arguments }}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{{ {" + "".join(f"'a{i}': {i}, " for i in range(100)) + "}['a77'] }}",
    "{% with c = 3 %}{{ c }}{% endwith %}{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{% block b %}c{% endblock %}{{ self.b() }}{% autoescape false %}<{{ '<' }}{% endautoescape %}",
    "{% set n = namespace(i=0, s='') %}{% for a in range(5) %}{% set n.i = n.i + a %}"
    "{% set n.s = n.s ~ a %}{% endfor %}{{ n.i }}{{ n.s }}{{ n.z is defined }}",
    "{% for a in [1] %}{{ '{}{}'.format(a, 2) }}{{ [a]|map('string')|join }}{{ 'x%s' % a }}{% endfor %}",
    "{{ messages }}{{ messages[0] }}{{ tools }}{{ [messages]|length }}{{ messages[0].items()|list }}",
)


def plain_jinja(source: str) -> str:
    """As transformers renders it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(messages=HI, tools=None)


def test_sound_templates_render_as_in_plain_jinja() -> None:
    expressions = [part.strip() for line in SOUND.strip().splitlines() for part in line.split(" | ")]
    sources = [*("{{ " + part + " }}" for part in expressions), *STATEMENTS]
    assert len(sources) > 280
    wrong = []
    for source in sources:
        results = []
        for renders in (lambda source: render_chat(source, HI), plain_jinja):
            try:
                results.append(renders(source))
            except Exception as error:  # noqa: BLE001 - what kind it is, is the result
                results.append(f"{type(error).__name__}: {error}")
        if results[0] != results[1] or "Error: " in results[0]:
            wrong.append((source, *results))
    assert wrong == []
