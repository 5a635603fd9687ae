"""What any chat template and any conversation may take: 2 s of processor time and 500 MB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kukri.tokenizer import TemplateError, render_chat
from kukri.tokenizer.chat import budget

from ...usual_machine import within

PACKAGE = Path(__file__).parents[3]
HI = [{"role": "user", "content": "hi"}]
SECONDS = 2.0
MEGABYTES = 500


def loop(turns: int, body: str) -> str:
    return "{% for i in range(" + str(turns) + ") %}" + body + "{% endfor %}"


def again(turns: int, expression: str) -> str:
    """An expression that is worked out so often, and not shown."""
    return loop(turns, "{% set y = " + expression + " %}")


def grow(first: str, step: str, last: str = "", turns: int = 99) -> str:
    """A template that makes n.x larger in every turn of a loop, and then shows `last`."""
    shown = "{{ " + last + " }}" if last else ""
    return "{% set n = namespace(x=" + first + ") %}" + loop(turns, "{% set n.x = " + step + " %}") + shown


def numbered(part: str, count: int) -> str:
    return "".join(part.replace("K", str(i)) for i in range(count))


BIG = "{% set b = 255 ** 512 %}"
ALIKE = "range(0, (2 ** 61 - 1) * 99999, 2 ** 61 - 1)"  # numbers of the same hash
WIDE = "'\\U000e0001'"  # ten characters of a repr, four bytes each
HOSTILE = {
    # Whole numbers: their digits count wherever they are written
    "a list of integers as text": BIG + "{{ ([b] * 50000)|string|length }}",
    "a list of long integers": grow("255 ** 500", "n.x + n.x", "([n.x] * 50000)|string|length", turns=9000),
    "integers that were added": grow("255 ** 512", "n.x + n.x", turns=99999),
    "integers that were subtracted": grow("-(255 ** 512)", "n.x - (0 - n.x)", turns=99999),
    "integers again and again": BIG + "{% set l = [b] * 50000 %}" + again(999, "l|string"),
    "integers shown": BIG + "{{ [b] * 50000 }}" * 99,
    "integers joined": BIG + again(99999, "([b] * 50000)|join"),
    "integers as JSON": BIG + again(99999, "([b] * 50000)|tojson"),
    "integers in a format": BIG + again(99999, "'%s' % ([b] * 50000)"),
    "integers in fields": BIG + again(99999, "'{0}{0}{0:b}'.format(b, [b] * 5000)"),
    "integers beside text": BIG + again(99999, "b ~ b ~ b ~ [b, b, b]"),
    "integers in a dict": BIG + again(99999, "{b: [b, b]}|string"),
    "integers that are multiplied": grow("3", "n.x * n.x", "n.x"),
    "powers of powers": grow("3", "n.x ** 3", "n.x"),
    "a sum of integers": BIG + "{{ ([b] * 50000)|sum }}",
    "a long number in base 3": "{{ ('2' * 1000000)|int(0, 3) }}",
    "a long number in base 16": "{{ ('f' * 1000000)|int(0, 16) }}",
    "a long decimal number": again(9999, "('9' * 1000000)|int"),
    "a long fraction": again(9999, "('0.' ~ '9' * 1000000)|float"),
    "rounding to many places": again(9999, "(7)|round(-900000, 'floor')"),
    "a literal of many digits": "{{ 0x" + "f" * 60000 + " }}",
    # Widths, as Python reads them
    "Unicode digits": "{{ ('{0:\u0669\u0669\u0669\u0669\u0669}' * 9999).format(1) }}",
    "other Unicode digits": "{{ ('{0:\u096f\u096f\u096f\u096f\u096f}' * 9999).format('') }}",
    "a Unicode precision": "{{ ('{0:.\u0669\u0669\u0669\u0669\u0669f}' * 9999).format(1.5) }}",
    "a width from an argument": "{{ '{0:{1}}'.format(1, 10 ** 9) }}",
    "a Unicode width inside": "{{ '{0:{1}}'.format(1, '\u0669' * 9) }}",
    "a mapped width": "{{ ('{a:' ~ '\u0669' * 9 ~ '}').format_map({'a': 1}) }}",
    "printf with a star": "{{ '%*d' % (10 ** 9, 1) }}",
    "printf with a mapped width": "{{ ('%(a)99999d' * 9999) % {'a': 1} }}",
    "printf with nested parentheses": "{{ ('%((a))99999d' * 9999) % {'(a)': 1} }}",
    "printf with a precision": "{{ '%.999999999f' % 1.5 }}",
    "printf shows a dict": "{% set d = {'a': 'x' * 65536} %}{{ ('%s' * 9999) % d }}",
    "fields that show a list": "{{ ('{0}' * 9999).format(['x' * 65536]) }}",
    "reprs": "{% set t = " + WIDE + " * 999999 %}{{ '%r%r%a' % (t, t, t) }}",
    "a repr in a field": "{{ ('{0!r}{0!a}' * 9).format(" + WIDE + " * 9999999) }}",
    "padding": again(99999, "''.center(1000000, '\u4e2d')"),
    "zeros": grow("''", "n.x ~ ''.zfill(1000000)"),
    "tabs": "{{ ('\t' * 9999).expandtabs(999999) }}",
    "an indent of text": "{{ ('a\n' * 99999)|indent('y' * 99999) }}",
    "an indent of lines of other kinds": "{{ ('a\\u2028' * 99999)|indent(99999) }}",
    "JSON indented by a text": "{{ [[[[[1]]]]]|tojson(indent='y' * 9999999) }}",
    "JSON indented deeply": grow("1", "[n.x]", "n.x|tojson(indent=99999)", turns=190),
    "batches that are filled up": again(99999, "[1]|batch(1000000, 'x')|list"),
    "many slices": again(99, "[]|slice(1000000)|list"),
    "time formats": again(99999, "strftime_now('%99999d' * 99)"),
    "an end of truncated text": "{{ ('x' * 999999)|truncate(5, true, 'y' * 9999999, 0)|length }}" * 99,
    # Lists that methods and filters make
    "a text joined with itself": "{{ ('x' * 9999999).join('y' * 9999999) }}",
    "a join of characters": "{% set t = '\u00e9' * 9999999 %}{{ ''.join(t)|length }}" * 9,
    "a text as list": "{% set t = '\u4e2d' * 9999999 %}{{ t|list|length }}",
    "a text split at spaces": "{{ (' \u4e2d' * 4999999).split()|length }}",
    "a text split at letters": "{{ ('a' * 9999999).split('a')|length }}",
    "a text split from the right": "{{ ('a' * 9999999).rsplit('a')|length }}",
    "a text of lines": "{{ ('\u2028' * 9999999).splitlines()|length }}",
    "a sorted text": "{{ ('\u4e2d' * 9999999)|sort|length }}",
    "batches of a text": "{{ ('\u4e2d' * 9999999)|batch(1)|list|length }}",
    "a text spread into arguments": "{% macro m() %}{% endmacro %}{{ m(*('x' * 16000000)) }}",
    "a range spread into arguments": again(9999, "cycler(*range(100000))"),
    "a text mapped": "{{ ('\u4e2d' * 9999999)|map('upper')|list|length }}",
    "copies in lower case": "{{ (['X' * 999] * 16000)|sort|length }}",
    "unique copies in lower case": "{{ (['X' * 999] * 16000)|unique|list|length }}",
    "the largest of copies": "{{ (['X' * 9999] * 1600)|max|length }}",
    "a dict of one hash": "{{ {}.fromkeys(" + ALIKE + ") }}",
    "a dict of pairs of one hash": "{{ dict(" + ALIKE + "|batch(1)|map('list')|list)|length }}"
    "{% set l = " + ALIKE + "|list %}{{ dict(l|batch(2))|length }}",
    "unique numbers of one hash": "{{ (" + ALIKE + "|list + " + ALIKE + "[:-1]|list)|unique|list|length }}",
    "unique numbers that are spread": "{{ cycler(*" + ALIKE + "|unique) }}",
    "keys without others": again(99999, "{'a': 1}.keys() - range(100000)"),
    "deep tuples as keys": grow("()", "(n.x,)", "{n.x: 1}", turns=99999),
    "deep lists that are compared": grow("[]", "[n.x]", "n.x == n.x", turns=99999),
    "views of views": grow("[1]", "{'a': [n.x], 'b': [n.x]}.items()", "n.x|string"),
    "a view's mapping": grow("[1]", "{'a': n.x, 'b': n.x}.items().mapping", "n.x|string"),
    "bound methods": "{{ (" + WIDE + " * 9999999)|safe|attr('split') }}" * 9,
    "text in other cases": "{% set t = '\u0390' * 9999999 %}" + again(99999, "t.upper()"),
    "escapes": again(99999, "('\"' * 999999)|escape|forceescape"),
    "escapes of what is added": "{% set t = ''|safe %}" + again(99999, "t + '\"' * 9999999"),
    "tags that are looked for": "{{ (('<!---->' * 99999)|safe).striptags() }}",
    "URLs": "{{ ('\U0001f600' * 999999)|urlencode|length }}",
    "a long search": "{% set t = 'a' * 9999999 %}" + again(99999, "('b' ~ 'a' * 99) in t"),
    "a search in a list of lists": "{% set l = [['a' * 99] * 99] * 999 %}"
    + again(99999, "['a' * 99] * 98 in l"),
    "a number in a range": again(99999, "'a' in range(100000)"),
    "select in a range": "{{ range(100000)|select('in', range(100000)|list)|list|length }}",
    "a chain of searches": "{% set t = 'a' * 9999999 %}" + again(99999, "'b' in t in t"),
    # Errors that would hold giant texts
    "an undefined name": "{{ {}[" + WIDE + " * 9999999].x }}",
    "a key that is missing": "{{ ('%(' ~ " + WIDE + " * 9999999 ~ ')s') % {} }}",
    "a text that is not in a list": "{{ [].index(" + WIDE + " * 9999999) }}",
    "an argument's name": "{% macro m() %}{% endmacro %}{{ m(**{" + WIDE + " * 9999999: 1}) }}",
    "a filter's name": "{{ [1]|map(" + WIDE + " * 9999999)|list }}",
    "a refusal": "{{ raise_exception('\n' * 9999999) }}",
    "a refusal with a list": "{{ raise_exception([" + WIDE + " * 9999999]) }}",
    # Loops, macros, blocks
    "short outputs": loop(99999, "{{ i ~ '' }}" * 99),
    "turns that are left out": "{% set l = [0] * 900000 %}" + loop(999, "{% for a in l if a %}{% endfor %}"),
    "many prefixes": "{% set l = ('b',) * 900000 %}" + again(99999, "'a'.startswith(l)"),
    "changes of equal lists": "{% set l = [0] * 900000 %}{% set m = [0] * 900000 %}"
    + loop(99999, "{{ loop.changed(l if i is odd else m) }}"),
    "lists of what is missing": grow("[a, b]", "n.x + n.x", turns=99999),
    "nothing": loop(99999, loop(99999, "")),
    "macros that call themselves": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "macros to a depth": "{% macro m(d) %}{% if d %}{{ m(d - 1) }}{{ m(d - 1) }}{% endif %}{% endmacro %}"
    "{{ m(40) }}",
    "blocks that call themselves": "{% set n = namespace(d=0) %}{% block b %}{% if n.d < 99999 %}"
    "{% set n.d = n.d + 1 %}{{ self.b() }}{{ self.b() }}{% endif %}{% endblock %}",
    "loops that call themselves": loop(
        9, "{% for a in [[1] * 99] * 99 recursive %}{{ loop([[[1] * 99] * 99]) }}{% endfor %}"
    ),
    "a list of namespaces": grow("[]", "n.x + [namespace(), namespace(), cycler(1)]", turns=99999),
    "a list of macros": grow("[]", "n.x + [n]", turns=99999),
    "namespaces of names": again(99999, "namespace(**{'a': 1, 'b': 2})"),
    "generators that are kept": grow("[]", "n.x + [[1]|map('string')]", turns=99999),
    "blocks of text": loop(99999, "{% set y %}" + "x" * 9999 + "{% endset %}"),
    "a filter's block": loop(99999, "{% filter upper %}" + "x" * 9999 + "{% endfilter %}"),
    "what is called": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + loop(99999, "{% call m() %}" + "x" * 9999 + "{% endcall %}"),
    "changes": loop(99999, "{{ loop.changed(range(100000)|list) }}"),
    "cycles": loop(99999, "{{ loop.cycle(*range(100000)) }}"),
    # Compiling
    "names side by side": "{{a}}" * 13000,
    "a sum of names": "{{ a" + "+a" * 32000 + " }}",
    "texts side by side": "{{ a" + "~a" * 32000 + " }}",
    "a chain of comparisons": "{{ a" + "<a" * 32000 + " }}",
    "a long list": "{{ [" + "a," * 32000 + "] }}",
    "a long dict": "{{ {" + "1:a," * 16000 + "} }}",
    "parentheses": "{{ " + "(" * 30000 + "1" + ")" * 30000 + " }}",
    "brackets": "{{ " + "[" * 30000 + "1" + "]" * 30000 + " }}",
    "filters behind filters": "{{ a" + "|e" * 30000 + " }}",
    "look-ups behind look-ups": "{{ a" + "[a]" * 20000 + " }}",
    "conditions": "{%if a%}{%endif%}" * 3800,
    "conditions with names": numbered("{%if aK%}{%endif%}", 3000),
    "conditions that set names": numbered("{%if a%}{%set aK=1%}{%endif%}", 1900),
    "loops in loops": ("{%for a in a%}" * 19 + "{%endfor%}" * 19) * 140,
    "scoped blocks": numbered("{%set aK=1%}", 2000) + numbered("{%block bK scoped%}{%endblock%}", 1000),
    "includes": numbered("{%set aK=1%}", 2000) + "{%include a%}" * 2000,
    "macros": numbered("{%macro aK()%}{%endmacro%}", 2100),
    "calls": "{%call a()%}{%endcall%}" * 2800,
    "arguments": "{{ a(" + "a," * 32000 + ") }}",
    "constants worked out": "{{ 'a' * 10 ** 9 }}{{ 10 ** 10 ** 7 }}{{ ('x' * 99999).join('y' * 99999) }}",
    "constants that are not reached": "{% if false %}{{ 'a' * 10 ** 9 }}{{ 10 ** 10 ** 7 }}{% endif %}",
    "a dict of constants of one hash": loop(
        99999, "{% set y = {" + "".join(f"{k * (2**61 - 1)}:1," for k in range(1, 2200)) + "} %}"
    ),
}

_CHILD = """
import json, resource, sys, time
from pathlib import Path
from kukri.tokenizer import TemplateError, render_chat
render_chat("{{ 'a'|upper }}", [])
hostile = json.load(sys.stdin)
megabytes = int(sys.argv[1])
if megabytes:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
for name, template in hostile.items():
    start = time.process_time()
    try:
        render_chat(template, [{"role": "user", "content": "hi"}])
        error = ""
    except TemplateError as found:
        error = str(found)
    print(json.dumps([name, time.process_time() - start, error]), flush=True)
"""


@pytest.mark.slow
def test_hostile_templates() -> None:
    """In a process that may take 500 MB more than an ordinary template."""
    limit = MEGABYTES if sys.platform == "linux" else 0
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(limit)],
        input=json.dumps(HOSTILE),
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
    )
    found = {name: (took, error) for name, took, error in map(json.loads, done.stdout.splitlines())}
    assert (done.returncode, [*found]) == (0, [*HOSTILE]), done.stderr[-500:]
    slow = {name: took for name, (took, _) in found.items() if not within(took, SECONDS)}
    assert not slow
    failed = {name: error for name, (_, error) in found.items() if "MemoryError" in error or "\n" in error}
    assert not failed


# What becomes of a long message in a hostile template that keeps it, shows it or throws it away.
WITH_TEXT = (
    *("t.upper()", "t|upper", "t|title", "t.split()", "t.split('a')", "t.splitlines()", "t|list", "t|tojson"),
    *("[t]|string", "t|replace('a', 'bbb')", "t|escape", "t|urlencode", "t ~ t", "t + t", "t * 2", "t[::-1]"),
    *(
        "t|sort",
        "t|unique|list",
        "'%r' % t",
        "'{0}{0}'.format(t)",
        "t.rfind('zzzz')",
        "'zz' in t",
        "t == t[1:]",
    ),
    *("t|batch(9)|list", "''.join(t)", "t|int(0)", "(t|safe) + t", "messages|string", "t.casefold()"),
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages of its process")
@pytest.mark.parametrize("letter", ["\U0001f600", "a"])
def test_a_long_message_in_a_hostile_template(letter: str) -> None:
    shapes = (
        "{% set y = EXPRESSION %}",
        "{% set n.x = n.x + [EXPRESSION] %}",
        "{{ EXPRESSION }}",
    )
    start = "{% set t = messages[0].content %}{% set n = namespace(x=[]) %}"
    hostile = {
        shape.replace("EXPRESSION", expression): start + loop(99, shape.replace("EXPRESSION", expression))
        for expression in WITH_TEXT
        for shape in shapes
    }
    content = f"({letter!r} + ' ') * {budget.MAX_GIVEN // 2 - 99}"
    child = _CHILD.replace('"hi"', "LONG").replace("hostile =", f"LONG = {content}\nhostile =")
    done = subprocess.run(
        [sys.executable, "-c", child, str(MEGABYTES)],
        input=json.dumps(hostile),
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
    )
    found = {name: (took, error) for name, took, error in map(json.loads, done.stdout.splitlines())}
    assert (done.returncode, [*found]) == (0, [*hostile]), done.stderr[-500:]
    assert not {name: took for name, (took, _) in found.items() if not within(took, SECONDS)}
    assert not {name: error for name, (_, error) in found.items() if "MemoryError" in error}


def refused(template: str, **variables: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        render_chat(template, HI, **variables)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_given_is_bounded() -> None:
    assert "a whole number of over 4096 bits" in refused("{{ x }}", x=[{"a": 1 << 4096}])
    assert render_chat("{{ x }}", HI, x=-(2**4096 - 1)) == str(-(2**4096 - 1))
    assert render_chat("{{ x }}", HI, x=[True, 1.5, None]) == "[True, 1.5, None]"
    deep: Any = {}
    for _ in range(budget.MAX_DEPTH - 1):
        deep = {"a": deep}
    assert len(render_chat("{{ x }}", HI, x=deep)) == 2 + 7 * (budget.MAX_DEPTH - 1)
    assert "nested too deeply" in refused("{{ x }}", x=[[deep]])
    assert "of over 1000000 parts" in refused("{{ x }}", x=[[0] * 1000] * 1001)
    assert "of over 33554432 characters" in refused("{{ x }}", x=["x" * 999_999] * 34)
    with pytest.raises(TemplateError, match="a message is an object"):
        render_chat("", [1])  # type: ignore[list-item]


def test_a_refusal_is_of_bounded_length() -> None:
    with pytest.raises(TemplateError) as caught:
        render_chat("{{ raise_exception('x' * 99999) }}", HI)
    assert str(caught.value) == "x" * 4096
    assert len(refused("{{ {}['x' * 99999].y }}")) < 500
    assert len(refused("{{ (''|attr('_' ~ 'x' * 99999)).y }}")) < 500
    assert len(refused("{{ ('%(' ~ 'x' * 99999 ~ ')s') % {} }}")) < 1000
