"""What ops read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Buffer:
    """A float32 matrix [rows, width] that ops read and write; `name` is unique in a program."""

    name: str
    width: int
    logits_rows: bool = False


def buffers_of(ops: Iterable[Any]) -> tuple[Buffer, ...]:
    """All that ops, dataclasses, read and write, each once."""
    found: dict[str, Buffer] = {}
    for op in ops:
        for field in fields(op):
            value = getattr(op, field.name)
            for b in value if isinstance(value, tuple) else (value,):
                if isinstance(b, Buffer):
                    found[b.name] = b
    return tuple(found.values())
