"""Members of an object in their order, some of which may be left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from .rules import Rules

Member: TypeAlias = tuple[str, bool]  # its expression, and whether it must be there


def members(rules: Rules, found: Sequence[Member], separator: str) -> str:
    """The expression of members with `separator`, an expression or "", between those that are there."""
    behind = first = '""'  # what follows a member, and what there is if none came yet
    for expression, required in reversed(found):
        another = f"{separator} {expression}".strip()
        alone = f"{expression} {behind}"
        first = rules.rule(alone if required else f"{alone} | {first}")
        behind = rules.rule(f"{another} {behind}" if required else f"({another})? {behind}")
    return first
