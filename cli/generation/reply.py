"""Generates one reply, writes it piece by piece, and reports its statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..console import terminal
from ..console.wording import count
from .prefill import PrefillProgress
from .repetition import RepetitionDetector
from .tool_use import call_facts

if TYPE_CHECKING:
    from ...runtime.answers.events import ToolCall
    from ...runtime.answers.request import GenerationRequest
    from ...runtime.engine.stats import GenerationStats
    from ...runtime.model.model import Model

INTERRUPTED = "interrupted"
LOOP = "loop"
EXIT_INCOMPLETE, EXIT_INTERRUPTED = 6, 130
_STATS = (
    "prompt_tokens", "cached_tokens", "new_tokens", "time_to_first_token", "prompt_seconds", "decode_seconds",
    "tokens_per_second", "prompt_tokens_per_second", "drafted_tokens", "accepted_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """The text that a model wrote, why it stopped, and token counts and times in seconds.

    `thinking`: what it thought before; `tool_calls`: the functions that it asks for; `ids`: all its tokens;
    `message`: it as a part of the conversation.
    `complete`: whether it has the form that it must have; None if it may have any.
    """

    text: str
    finish_reason: str
    stats: dict[str, Any]
    complete: bool | None = None
    thinking: str = ""
    tool_calls: Sequence[ToolCall] = ()
    ids: Sequence[int] = ()
    message: dict[str, Any] = field(default_factory=dict)


def generate(
    model: Model,
    request: GenerationRequest,
    write: Callable[[str], None],
    thinking: terminal.ThinkingText,
) -> Reply:
    """Write the model's answer to a request piece by piece; Ctrl-C ends it but keeps what there is.

    Until the first piece a terminal sees how far prefill is. A model that repeats itself without end is
    stopped as well.
    """
    from ...runtime.answers.events import TextDelta, ThinkingDelta

    repeats = RepetitionDetector().push
    answer, reason, n_written = None, INTERRUPTED, 0
    try:
        with PrefillProgress(lambda: model.stats) as prefill, model.answer(request) as answer:
            for event in answer:
                prefill.stop()
                if isinstance(event, TextDelta):
                    thinking.finish()
                    n_written += len(event.text)
                    write(event.text)
                elif isinstance(event, ThinkingDelta):
                    thinking.write(event.text)
                else:
                    continue
                if repeats(event.text):
                    break
            reason = str(answer.finish_reason or LOOP)
    except KeyboardInterrupt:
        pass
    finally:
        thinking.finish()
    if answer is None:
        return Reply("", reason, stats_facts(model.stats))
    if len(answer.text) > n_written:  # the interrupt came between a piece and its writing
        write(answer.text[n_written:])
    return Reply(
        answer.text,
        reason,
        stats_facts(answer.stats),
        answer.stats.complete if request.response_format is not None else None,
        answer.thinking,
        answer.tool_calls,
        answer.tokens,
        answer.message(),
    )


def stats_facts(stats: GenerationStats) -> dict[str, Any]:
    """The statistics of a reply, fit for JSON."""
    facts: dict[str, Any] = {name: _finite(getattr(stats, name)) for name in _STATS}
    drafts = stats.drafted_by_kind.items()
    if stats.from_cache:
        facts["from_cache"] = True
    if stats.routing is not None:
        facts["routing"] = asdict(stats.routing)
    facts["drafts"] = {
        kind: {"drafted": n, "accepted": stats.accepted_by_kind.get(kind, 0)} for kind, n in drafts
    }
    return facts


def _finite(value: float | int | None) -> float | int | None:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def show_stats(reply: Reply) -> None:
    """Show token counts and speeds in two lines on stderr."""
    stats = reply.stats
    drafted = stats["drafted_tokens"]
    first = _number(stats["time_to_first_token"], "{:.2f} s to the first token")
    terminal.note(
        f"prompt: {count(stats['prompt_tokens'], 'token')}, {stats['cached_tokens']} of them cached"
        + _number(stats["prompt_tokens_per_second"], ", {:.1f} tokens/s")
        + (f", {first}" if first else "")
    )
    terminal.note(
        f"reply: {count(stats['new_tokens'], 'token')}"
        + _number(stats["tokens_per_second"], ", {:.1f} tokens/s")
        + (f", {stats['accepted_tokens']} of {drafted} drafted ones right" if drafted else "")
        + _by_kind(stats["drafts"])
        + f", ended by {reply.finish_reason}"
        + (", from the cache of answers (--cache)" if stats.get("from_cache") else "")
    )
    if routing := stats.get("routing"):
        terminal.note(_routed(routing))


def _routed(routing: dict[str, Any]) -> str:
    """Which of two models has answered, and why."""
    confidence, threshold = routing["confidence"], routing["threshold"]
    if confidence is None:
        return f"routing: {routing['model']} alone"
    relation = "below" if routing["escalated"] else "not below"
    return (
        f"routing: {routing['model']} answered, the small model's confidence is {confidence:.3f}, "
        f"{relation} {threshold:g}, in {count(routing['small_tokens'], 'token')}"
    )


def _by_kind(drafts: dict[str, dict[str, int]]) -> str:
    """How the drafts of each kind fared, where there is another kind than n-grams."""
    if not drafts.keys() - {"ngram"}:
        return ""
    parts = (f"{kind} {counts['accepted']} of {counts['drafted']}" for kind, counts in drafts.items())
    return f" ({', '.join(parts)})"


def _number(value: float | int | None, form: str) -> str:
    return "" if value is None else form.format(value)


def why_cut(reply: Reply, model: Model, cure: str) -> str | None:
    """Why a reply is incomplete, as a phrase; None if it is complete. `cure`: what may help a model that
    repeats itself."""
    cut = _why_cut(reply, model, cure)
    if reply.complete is False and reply.finish_reason != INTERRUPTED:
        return f"{cut or 'cut by a stop string (--stop)'}: the answer does not have the form that it should"
    return cut


def exit_code(reply: Reply) -> int:
    """What `run` ends with after a reply."""
    if reply.finish_reason == INTERRUPTED:
        return EXIT_INTERRUPTED
    return EXIT_INCOMPLETE if reply.complete is False else 0


def _why_cut(reply: Reply, model: Model, cure: str) -> str | None:
    if reply.finish_reason == "length":
        return f"cut after {count(reply.stats['new_tokens'], 'token')} (-n)"
    if reply.finish_reason == "context":
        return f"cut, because the context of {model.context} tokens is full (-c)"
    if reply.finish_reason == LOOP:
        return f"stopped: it says the same again and again; {cure} may help"
    return INTERRUPTED if reply.finish_reason == INTERRUPTED else None


def reply_facts(name: str, reply: Reply) -> dict[str, Any]:
    """The object that `-o json` prints."""
    calls = [call_facts(call) for call in reply.tool_calls]
    complete = {} if reply.complete is None else {"complete": reply.complete}
    return {
        "model": name,
        **({"thinking": reply.thinking} if reply.thinking else {}),
        "text": reply.text,
        **({"tool_calls": calls} if calls else {}),
        "finish_reason": reply.finish_reason,
        **complete,
        "stats": reply.stats,
    }
