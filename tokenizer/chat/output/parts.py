"""The parts of an answer, in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Text:
    """More of the text that is for the user."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call of the function `name` begins, the one with number `index` of the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    """More of a call's arguments: all of them, joined, are the text of a JSON object."""

    index: int
    arguments: str


@dataclass(frozen=True)
class ToolCallEnd:
    """A call is complete."""

    index: int


@dataclass(frozen=True)
class ToolCallDropped:
    """A call that has begun turned out to be malformed, or was cut off: it counts for nothing. All that the
    model wrote of it comes next, as text."""

    index: int


CallPart: TypeAlias = ToolCallStart | ToolCallDelta | ToolCallEnd | ToolCallDropped
Part: TypeAlias = Text | Thinking | CallPart
