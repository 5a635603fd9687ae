"""Buffer: a matrix that ops read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Buffer:
    """A float32 matrix [rows, width] that ops read and write; `name` is unique in a program.

    With `logits_rows` it has one line for each row whose logits are asked for, else one for each row of the
    step.
    """

    name: str
    width: int
    logits_rows: bool = False


def buffers_of(ops: Iterable[Any]) -> tuple[Buffer, ...]:
    """All buffers that `ops`, dataclasses, read and write, each once, in the order of first use."""
    buffers: dict[str, Buffer] = {}
    for op in ops:
        for field in fields(op):
            value = getattr(op, field.name)
            for b in value if isinstance(value, tuple) else (value,):
                if isinstance(b, Buffer):
                    buffers[b.name] = b
    return tuple(buffers.values())
