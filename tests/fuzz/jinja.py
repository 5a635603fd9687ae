"""Chat templates changed token by token: what Jinja's grammar is made of, and what hostile ones try."""

from __future__ import annotations

import re
from random import Random

from .mutate import NUMBERS, TEXTS, change_text

_TOKEN = re.compile(r"\{[{%#]-?|-?[}%#]\}|\w+|'[^']*'|\"[^\"]*\"|\s+|.", re.DOTALL)
_HOSTILE = (
    *(
        "''.__class__",
        "''['__class__'].__mro__",
        "messages.__init__",
        "''|attr('__class__')",
        "self.__dict__",
    ),
    *("cycler.__init__.__globals__", "'{0.__class__}'.format('')", "namespace.__init__", "range(1000000)"),
    *("'a' * 99999999", "10 ** 9999999", "'%99999999d' % 1", "[[1]] * 9999999", "'x'|center(99999999)"),
    *("range(100000)|map('string')|join('x' * 99999)", "messages|tojson(indent=999999)", "1 // 0", "7 % 0"),
    *("('a' * 99999)|replace('a', 'b' * 99999)", "strftime_now('%Y' * 9999)", "raise_exception('no')"),
    *("messages|map(attribute='content')|list", "'a b'.split()", "namespace(x=1)", "messages[::-1]"),
    *("('x' * 65536)|wordwrap(1)", "('<a ' * 65536)|striptags", "('http://a.b ' * 9999)|urlize"),
    *(
        "range(99999)|sort|unique|list",
        "range(99999)|groupby('a')|list",
        "dict(a=dict(b=messages))",
        "loop.index0",
    ),
    *("('a' * 99999).split('a')", "range(99999)|random", "range(99999)|sum(start=[])", "'%s' % (messages,)"),
    *(
        "messages|pprint",
        "('a' * 65536) in ('b' * 65536)",
        "('ab' * 65536)|title|escape|xmlattr",
        "{}|items|list",
    ),
    *(
        "('a' * 65536)|wordcount",
        "'a'.encode().hex()",
        "'1e9'|float|int",
        "'9' * 9999|int",
        "messages|string|length",
    ),
)
_STATEMENTS = (
    *(
        "{% for i in range(99999) %}",
        "{% endfor %}",
        "{% if 1 %}",
        "{% else %}",
        "{% elif x %}",
        "{% endif %}",
    ),
    *(
        "{% set x = ",
        "{% set n.x = n.x + n.x %}",
        "{% macro m(a) %}{{ m(a) }}",
        "{% endmacro %}",
        "{% break %}",
    ),
    *(
        "{% continue %}",
        "{% generation %}",
        "{% endgeneration %}",
        "{% raw %}",
        "{% endraw %}",
        "{% include 'x' %}",
    ),
    *(
        "{% import 'os' as os %}",
        "{% call(a) m() %}",
        "{% endcall %}",
        "{% filter upper %}",
        "{% endfilter %}",
    ),
    *(
        "{% set n = namespace(x='a') %}",
        "{% block b %}",
        "{% endblock %}",
        "{{ self.b() }}",
        "{% with x = 1 %}",
    ),
    *("{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}", "{% endwith %}", "{% set y %}"),
    *(
        "{% for i in range(999) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% endset %}",
        "{{ ",
        " }}",
        "{#",
        "#}",
    ),
)


def template_bytes(rng: Random, raw: bytes) -> bytes:
    source = raw.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        source = _changed(rng, source)
    return source.encode("utf-8", "surrogatepass")


def _changed(rng: Random, source: str) -> str:
    tokens = _TOKEN.findall(source) or [""]
    i = rng.randrange(len(tokens))
    match rng.randrange(9):
        case 0:
            del tokens[i]
        case 1:
            tokens.insert(i, rng.choice(tokens))
        case 2:
            j = rng.randrange(len(tokens))
            tokens[i], tokens[j] = tokens[j], tokens[i]
        case 3:
            tokens.insert(i, "{{ " + rng.choice(_HOSTILE) + " }}")
        case 4:
            tokens.insert(i, rng.choice(_STATEMENTS))
        case 5:
            tokens[i] = rng.choice(_HOSTILE)
        case 6:
            tokens[i] = str(rng.choice(NUMBERS)) if rng.random() < 0.5 else rng.choice(TEXTS)
        case 7:
            j = min(len(tokens), i + (1 << rng.randrange(6)))
            tokens[i:j] = tokens[i:j] * rng.choice((2, 3, 50))
        case 8:
            return change_text(rng, source)
    return "".join(tokens)
