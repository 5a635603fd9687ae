"""What ops read and write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """A float32 matrix [rows, width] that ops read and write; `name` is unique in a program."""

    name: str
    width: int
    wanted: bool = False
