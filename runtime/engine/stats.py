"""GenerationStats: token counts and times of one generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "context", "stop_string", "interrupted"]


@dataclass(frozen=True)
class Routing:
    """Which of two models has answered.

    - `model`: its name; `escalated`: whether it is the large one.
    - `confidence`: of the small one in its own answer, from 0 to 1; None: it was not asked.
    - `threshold`: the confidence below which the large one answers.
    - `small_tokens`: tokens that the small one wrote.
    """

    model: str
    escalated: bool
    confidence: float | None
    threshold: float
    small_tokens: int


@dataclass
class GenerationStats:
    """Token counts and times, updated while a generation runs.

    Times are in seconds and do not include what the consumer does between two tokens.

    - `prompt_tokens`: ids in the prompt; the keys and values of `cached_tokens` of them were in the KV cache.
    - `prefilled_tokens`: ids of the prompt that prefill has computed so far, without the cached ones.
    - `new_tokens`: tokens yielded, which does not include an end token.
    - `time_to_first_token`: from the start of the generation until its first token was sampled.
    - `prompt_seconds`, `decode_seconds`: prefill steps, and everything after the first token.
    - `decode_steps`, `decode_tokens`: steps after the first token, and the tokens that they gave, the end
      token and those that a constraint forced among them.
    - `drafted_tokens`, `accepted_tokens`: ids that speculation proposed, and those of them that were right;
      `drafted_by_kind`, `accepted_by_kind`: the same by what proposed them, "ngram", "draft" or "mtp".
    - `finish_reason`: "stop" (an end token), "length" (max_tokens), "context" (it is full), "stop_string",
      "interrupted" (Ctrl-C, closed early, or an error), None while it runs.
    - `from_cache`: whether the answer was kept from an earlier request, so that nothing was computed.
    - `routing`: which of two models has answered, where a router chooses.
    - `complete`: whether the tokens so far have the form that a constraint asks for; None without one.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    new_tokens: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_by_kind: dict[str, int] = field(default_factory=dict)
    accepted_by_kind: dict[str, int] = field(default_factory=dict)
    time_to_first_token: float = 0.0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    finish_reason: FinishReason | None = None
    complete: bool | None = None
    from_cache: bool = False
    routing: Routing | None = None

    def count_draft(self, kind: str, n: int, n_right: int) -> None:
        """Add a draft of `n` ids, the first `n_right` of which were right."""
        self.drafted_tokens += n
        self.accepted_tokens += n_right
        self.drafted_by_kind[kind] = self.drafted_by_kind.get(kind, 0) + n
        self.accepted_by_kind[kind] = self.accepted_by_kind.get(kind, 0) + n_right

    @property
    def tokens_per_second(self) -> float:
        """Decode speed, without the first token, which comes from prefill. 0.0 if unknown."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prefill speed of the tokens that were not in the cache. 0.0 if unknown."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prompt_seconds if self.prompt_seconds > 0 else 0.0
