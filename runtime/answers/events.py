"""What an answer tells while it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...tokenizer.chat.output.parts import (
    CallPart,
    ToolCallDelta,
    ToolCallDropped,
    ToolCallEnd,
    ToolCallStart,
)
from ..engine.sampling.logprobs import TokenLogprobs
from ..engine.stats import FinishReason, GenerationStats

__all__ = [
    "AnswerEvent",
    "AnswerReason",
    "Finished",
    "TextDelta",
    "ThinkingDelta",
    "TokenEvent",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallDropped",
    "ToolCallEnd",
    "ToolCallStart",
]

AnswerReason: TypeAlias = FinishReason | Literal["tool_calls"]


@dataclass(frozen=True)
class TokenEvent:
    """A token of an answer, and the text that became certain with it: whole characters, often none.

    `id` is None for the text that is left at the end. `logprobs` are those of the token, if the parameters
    ask for them.
    """

    id: int | None
    text: str
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class TextDelta:
    """More of the answer's text. `token_events`: the tokens that came with it, if log probabilities are
    asked for; those whose text is not certain yet ride along too, so that none is lost."""

    text: str
    token_events: tuple[TokenEvent, ...] = ()


@dataclass(frozen=True)
class ThinkingDelta:
    """More of what the model thinks before it answers; `token_events` as in TextDelta."""

    text: str
    token_events: tuple[TokenEvent, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The last event: why the answer ended, and what it took.

    `reason`: that of the engine (GenerationStats), or "tool_calls" where the model waits for results.
    """

    reason: AnswerReason
    stats: GenerationStats


AnswerEvent: TypeAlias = TextDelta | ThinkingDelta | CallPart | Finished


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for: `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str
