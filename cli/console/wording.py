"""Numbers in sentences."""

from __future__ import annotations


def count(n: int | float | None, noun: str) -> str:
    """`n` of something that `noun` names in the singular: "1 turn", "2 turns"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
