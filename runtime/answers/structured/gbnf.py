"""llama.cpp's grammars (GBNF) as Lark, which llguidance reads.

llguidance's own translation gives a rule of characters to its lexer, which takes as many of them as it can:
behind `ws ::= [ \\t\\n]*` a line end that the grammar asks for would never come. Here a grammar without
recursion becomes one regular expression, and in one with recursion each character is a terminal of its own,
so that its parser sees all ways to read a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...engine.errors import ConstraintError
from .library import llguidance

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_CHARACTER = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)|(.)", re.DOTALL)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}


def is_gbnf(text: str) -> bool:
    """Whether a grammar is written in GBNF, whose rules have `::=`."""
    return re.search(r"^\s*[\w-]+\s*::=", text, re.MULTILINE) is not None


def lark_of(text: str) -> str:
    """A grammar in GBNF as Lark. ConstraintError for one that cannot be read, or that has no rule `root`."""
    llguidance()
    from llguidance import gbnf_to_lark as gbnf

    try:
        rules = gbnf.GrammarParser().parse(_ESCAPE.sub(_plain, text))
    except gbnf.GbnfToLarkError as problem:
        raise ConstraintError(f"the grammar cannot be read: {problem}") from None
    if "root" not in rules:
        raise ConstraintError("the grammar has no rule `root`")
    used = {name: set(_references(rule.alternatives, gbnf)) for name, rule in rules.items()}
    for name, needed in used.items():
        for missing in sorted(needed - set(rules)):
            raise ConstraintError(f"the grammar has no rule `{missing}`, which `{name}` names")
    recursive = _is_recursive(used)
    names = {name: f"{'r' if recursive else 'R'}{i}" for i, name in enumerate(rules)}
    reached = _reached("root", used)
    lines = [f"start: {names['root']}"]
    for name in rules:
        if name in reached:
            lines.append(f"{names[name]}: {_lark(rules[name].alternatives, names, gbnf)}")
    return "\n".join(lines) + "\n"


def _plain(escape: re.Match[str]) -> str:
    """A character beyond ASCII itself, in place of its escape."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ConstraintError(f"the grammar has the escape {escape[0]}, which is no character")
    return f"\\x{code:02x}" if code < 0x80 else chr(code)


def _references(node: Any, gbnf: Any) -> list[str]:
    """The names of rules in a part of a rule."""
    own = [node.name] if isinstance(node, gbnf.RuleRefNode) else []
    return own + [name for child in node.children() for name in _references(child, gbnf)]


def _reached(name: str, used: Mapping[str, set[str]]) -> set[str]:
    """The rules that a rule needs, itself among them."""
    found, open_ = {name}, [name]
    while open_:
        new = used[open_.pop()] - found
        found |= new
        open_ += new
    return found


def _is_recursive(used: Mapping[str, set[str]]) -> bool:
    """Whether a rule that `root` needs contains itself."""
    reached = _reached("root", used)
    return any(name in _reached(other, used) for name in reached for other in used[name])


def _lark(node: Any, names: Mapping[str, str], gbnf: Any) -> str:
    """A part of a rule in Lark, fit to stand beside others."""
    if isinstance(node, gbnf.RuleRefNode):
        return names[node.name]
    if isinstance(node, gbnf.LiteralNode):
        return " ".join(f"/{_character(found)}/" for found in _CHARACTER.finditer(node.value)) or '""'
    if isinstance(node, gbnf.RegexNode):
        return "/(?s:.)/" if node.rx == "." else f"/{node.rx}/"
    if isinstance(node, gbnf.RepetitionNode):
        most = "" if node.max_times is None else node.max_times
        return f"({_lark(node.node, names, gbnf)}){{{node.min_times},{most}}}"
    children = [_lark(child, names, gbnf) for child in node.children()]
    if isinstance(node, gbnf.AlternativeNode):
        return f"({' | '.join(children)})"
    return " ".join(children) or '""'


def _character(found: re.Match[str]) -> str:
    """A character of a literal as a regular expression."""
    if found[1]:
        return f"\\x{{{found[1]}}}"
    char = found[3] or _CONTROL.get(found[2], found[2])
    return f"\\x{{{ord(char):x}}}"
