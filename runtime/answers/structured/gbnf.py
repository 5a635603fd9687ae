"""llama.cpp's grammars (GBNF) as Lark, which llguidance reads."""

from __future__ import annotations

import re

from ...engine.errors import ConstraintError
from .library import llguidance


def is_gbnf(text: str) -> bool:
    """Whether a grammar is written in GBNF, whose rules have `::=`."""
    return re.search(r"^\s*[\w-]+\s*::=", text, re.MULTILINE) is not None


def lark_of(text: str) -> str:
    llguidance()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as problem:  # noqa: BLE001
        raise ConstraintError(f"the grammar cannot be read: {problem}") from None
