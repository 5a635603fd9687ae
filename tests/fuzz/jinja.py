"""Chat templates changed token by token: what Jinja's grammar is made of, and what hostile ones try."""

from __future__ import annotations

import re
from random import Random

from .mutate import NUMBERS, TEXTS, change_text

_TOKEN = re.compile(r"\{[{%#]-?|-?[}%#]\}|\w+|'[^']*'|\"[^\"]*\"|\s+|.", re.DOTALL)


def _words(text: str) -> tuple[str, ...]:
    """What stands between bars with spaces around them."""
    return tuple(re.split(r" \|(?: |\n)", text.strip("\n")))


_HOSTILE = _words(
    r"""
''.__class__ | ''['__class__'].__mro__ | messages.__init__ | ''|attr('__class__') | self.__dict__ |
cycler.__init__.__globals__ | '{0.__class__}'.format('') | namespace.__init__ | range(1000000) |
'a' * 99999999 | 10 ** 9999999 | '%99999999d' % 1 | [[1]] * 9999999 | 'x'|center(99999999) |
range(100000)|map('string')|join('x' * 99999) | messages|tojson(indent=999999) | 1 // 0 | 7 % 0 |
('a' * 99999)|replace('a', 'b' * 99999) | strftime_now('%Y' * 9999) | raise_exception('no') |
messages|map(attribute='content')|list | 'a b'.split() | namespace(x=1) | messages[::-1] |
('x' * 65536)|wordwrap(1) | ('<a ' * 65536)|striptags | ('http://a.b ' * 9999)|urlize |
range(99999)|sort|unique|list | range(99999)|groupby('a')|list | dict(a=dict(b=messages)) | loop.index0 |
('a' * 99999).split('a') | range(99999)|random | range(99999)|sum(start=[]) | '%s' % (messages,) |
messages|pprint | ('a' * 65536) in ('b' * 65536) | {}|items|list | ('ab' * 65536)|title|escape|xmlattr |
('a' * 65536)|wordcount | 'a'.encode().hex() | '1e9'|float|int | '9' * 9999|int | messages|string|length |
messages|last|dictsort
"""
)
_STATEMENTS = _words(
    r"""
{% for i in range(99999) %} | {% endfor %} | {% if 1 %} | {% else %} | {% elif x %} | {% endif %} |
{% set x =  | {% set n.x = n.x + n.x %} | {% macro m(a) %}{{ m(a) }} | {% endmacro %} | {% break %} |
{% continue %} | {% generation %} | {% endgeneration %} | {% raw %} | {% endraw %} | {% include 'x' %} |
{% import 'os' as os %} | {% call(a) m() %} | {% endcall %} | {% filter upper %} | {% endfilter %} |
{% set n = namespace(x='a') %} | {% block b %} | {% endblock %} | {{ self.b() }} | {% with x = 1 %} |
{% endwith %} | {% set y %} | {% endset %} |
{% for a in messages recursive %}{{ loop(messages) }}{% endfor %} | {{  |  }} | {# | #} |
{% for i in range(999) %}{% set n.x = n.x ~ n.x %}{% endfor %} | {% autoescape true %} |
{% endautoescape %}
"""
)
# N stands for a size; T, L, I and A for a text, a list, a whole number and anything.
_SIZES = ("0", "1", "7", "63", "999", "5000", "65536", "99999", "1000000", "99999999", "-1")
_UNICODE_SIZES = ("\u0669\u0669\u0669", "\u096f" * 5, "\u0669" * 9)  # which some formats read as well
_OF_TEXT = _words(
    r"""
'ab \t\n' | 'é😀' | '\U000e0001' | messages[0].content | n.x | '<&"' | 'a' * 65536 | T * N | T ~ A | T + T |
T[::-1] | T[1:] | T[:N] | T|upper | T|title | T.title() | T|escape | (T|safe) + T | (T|safe) % A |
T|urlencode | T|center(N) | T.center(N, T) | T.ljust(N) | T.zfill(N) | T.expandtabs(N) | T|indent(N) |
T|indent(T) | T|replace('', T) | T.replace('a', T) | T|truncate(N) | L|join | L|join(T) | T.join(L) |
T.join(T) | L|map('string')|join(T) | A|string | A|tojson | A|tojson(indent=N) | A|tojson(indent=T) |
A|upper | A|trim(T) | T.strip(T) | A|forceescape | '{0:N}'.format(A) | '{:>N}{}'.format(A, 1) |
'{:{}}'.format(A, N) | '{!r:N}'.format(A) | T.casefold() | '%Nd' % I | '%.Nf' % I | '%*d' % (N, I) |
'%(a)Ns' % {'a': A} | '%r%a' % (A, A) | '%s' % A | ('{0:N}' * N).format(A) | ('%Ns' * N) % A |
'{:,}{:_b}'.format(I, I) | '%x' % I | T|format(A) | ('{0}' * N).format(A) | ('%(a)s' * N) % {'a': A} |
'{a[0]}'.format_map({'a': L}) | T % A | L|first | strftime_now('%Nd') | I|filesizeformat |
raise_exception(A) | T|reverse | A|default(T, true)
"""
)
_OF_LIST = _words(
    r"""
messages | tools | n.x | range(99999) | [] | () | range(N) | range(0, 9 * N, N) | varargs | loop | [A, A] |
(A,) | [L, L] | L * N | L + L | L[::-1] | L[1:] | L|list | T|list | T.split() | T.split('a') |
T.rsplit('ab') | T.splitlines() | T.partition(T) | T.rpartition(T) | L|sort | L|unique | L|unique|list |
L|map('string')|list | L|map('list') | L|map('upper') | L|select('in', L)|list | L|reject('eq', A)|list |
L|batch(N)|list | L|batch(N, A)|list | L|slice(N)|list | T|slice(N)|list | L|groupby(0) |
{'a': L, 'b': L}.values() | {'a': L}.items() | {'a': A}|dictsort | L|reverse | T|sort |
L|map('join', T)|list | L|map(attribute=0)|list | dict(L) | {A: A} | {}.fromkeys(L) | T|map('upper')|list |
range(0, (2 ** 61 - 1) * 99999, 2 ** 61 - 1) | L.copy() | L|selectattr(0, 'in', L)|list | namespace(*L) |
cycler(*L) | dict(**{'a': L}) | {'a': {'a': A}} | L|items|list | m(*L) | m(*T) | L|tojson|list
"""
)
_OF_INTEGER = _words(
    r"""
N | 255 ** 512 | 7 ** 1365 | 10 ** 400 | true | 1.5e308 |
0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff |
(-8) ** 0.5 | 2 ** 61 - 1 | I + I | I - I | I * I | I ** I | I // I | I % I | -I | I|abs | T|int |
T|int(0, 36) | L|sum | ('f' * N)|int(0, 16) | ('9' * N)|int | I|round(N) | I|round(N, 'floor') | I|float |
T|length | L|length | T.count(T) | T.rfind(T) | T.find(T) | L.index(A) | L.count(A) | (I).bit_length() |
(1).to_bytes(N, 'big') | T|wordcount | L|max | L|min | I / I | T in T | A in L | A == A | L < L |
A is in L | T is upper | A is eq A | I is divisibleby(I) | [A, A, A]|sum | ([I] * N)|sum | '0.' ~ T|float |
(1.5).hex()
"""
)
_PLACE = re.compile(r"\b[TLIA]\b")
_SIZE = re.compile(r"N(?![a-z])")
_OF = {"T": _OF_TEXT, "L": _OF_LIST, "I": _OF_INTEGER, "A": (*_OF_TEXT, *_OF_LIST, *_OF_INTEGER)}
_BOMBS = _words(
    r"""
{% if a %}|{% endif %} | {% for a in a %}|{% endfor %} | {% macro a() %}|{% endmacro %} | {{(|1)}} |
{% call a() %}|{% endcall %} | {% with a = 1 %}|{% endwith %} | {{[|]}} | {{{1:|}}} |
{% block bK scoped %}|{% endblock %} | {% filter e %}|{% endfilter %} | {{not |a}} | {{-|1}}
"""
)
_SERIES = _words(
    r"""
{{a}} | +a | ~aK | .a | [a] | |e | [:] | () |  and aK | <a | 'a' | a, | [], | 1:aK, |  if a else  |
{% set aK = 1 %} | {% if aK %}{% endif %} | {% elif a %} | {% include a %} | aK=1, |
{% block bK scoped %}{% endblock %} | {% import a as b %} | {% set aK %}{% endset %} | {##} |
{% macro aK() %}{% endmacro %} | {{ f(aK) }} | {% for a in a if a %}{% else %}{% endfor %} | 9
"""
)


def template_bytes(rng: Random, raw: bytes) -> bytes:
    source = raw.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        source = _changed(rng, source)
    return source.encode("utf-8", "surrogatepass")


def _changed(rng: Random, source: str) -> str:
    tokens = _TOKEN.findall(source) or [""]
    i = rng.randrange(len(tokens))
    match rng.randrange(14):
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
        case 9:
            tokens[i] = _expression(rng, 3)
        case 10:
            tokens.insert(i, "{{ " + _expression(rng, 4) + " }}")
        case 11:  # at the end or the beginning, where it is not inside of a tag
            return rng.choice((source + _grown(rng), _grown(rng) + source, _grown(rng)))
        case 12:
            tokens.insert(i, _bomb(rng))
        case 13:
            return _bomb(rng) if rng.random() < 0.5 else source + _bomb(rng)
    return "".join(tokens)


def _expression(rng: Random, depth: int, kind: str = "A") -> str:
    """Something that makes a large value of others: integers, formats, joins, splits, nests and repeats."""
    made = rng.choice(_OF[kind])
    while depth <= 0 and _PLACE.search(made):
        made = rng.choice(_OF[kind])

    def filled(found: re.Match[str]) -> str:
        if found[0] == "N":
            return rng.choice(_SIZES if rng.random() < 0.9 else _UNICODE_SIZES)
        wanted = found[0] if rng.random() < 0.95 else rng.choice("TLI")
        return f"({_expression(rng, depth - 1, wanted)})"

    return _SIZE.sub(filled, _PLACE.sub(filled, made)) if depth > 0 else _SIZE.sub(filled, made)


def _grown(rng: Random) -> str:
    """A loop in which something grows from turn to turn."""
    first, step, last = (_expression(rng, depth, rng.choice("TLI")) for depth in (1, 2, 2))
    if rng.random() < 0.7:
        step = rng.choice(
            ("[n.x, n.x]", "(n.x, n.x)", "n.x + n.x", "n.x ~ n.x", "[n.x] * 9", "{'a': n.x}", step)
        )
    loop = f"{{% for i in range({rng.choice(('9', '99', '9999', '99999'))}) %}}{{% set n.x = {step} %}}"
    shown = rng.choice(("", "{{ " + last + " }}"))
    return f"{{% set n = namespace(x={first}) %}}{loop}{shown}{{% endfor %}}{{{{ {last} }}}}"


def _bomb(rng: Random) -> str:
    """A source that could take long to compile: much nested in one another or side by side."""
    room = 1 << rng.randrange(6, 17)
    if rng.random() < 0.4:
        opening, closing = rng.choice(_BOMBS).split("|")
        count = room // (len(opening) + len(closing)) or 1
        return _numbered(opening, count) + rng.choice(("", "{{ a }}", "a")) + closing * count
    parts = rng.sample(_SERIES, rng.choice((1, 1, 2)))
    made = "".join(_numbered(part, room // len(parts) // len(part) or 1) for part in parts)
    return rng.choice((made, "{{ a" + made + "a }}", "{{ f(" + made + "1) }}", "{{ [" + made + "] }}"))


def _numbered(part: str, count: int) -> str:
    return "".join(part.replace("K", str(i)) for i in range(count)) if "K" in part else part * count
