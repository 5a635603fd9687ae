"""An answer with what the model expected at each of its tokens, and the branches that it could have taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..engine.stats import FinishReason
from .data import Spelled, Spelling
from .distributions import Distributions
from .inspection import Inspection

# (prompt, beginning of the answer, sampling parameters by name) → an answer that goes on from there
GoOn = Callable[[tuple[int, ...], tuple[int, ...], dict[str, Any]], "ObservedAnswer"]


@dataclass(frozen=True)
class ObservedAnswer:
    """The tokens of an answer, without an end token, and an inspection of prompt and answer together.

    `n_begun` of the answer's tokens were given to it, as the beginning of a branch.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    seen: Inspection
    finish_reason: FinishReason | None
    n_begun: int = 0
    go_on: GoOn | None = field(default=None, repr=False)

    @property
    def top(self) -> Distributions:
        """[len(ids) + 1]: what was expected in the place of each token of the answer, and behind the last.

        `next_probability` and `next_rank` are those of the answer's tokens. The distributions are the
        model's, before bias, penalties and temperature.
        """
        return self.seen.top.rows(len(self.prompt) - 1)

    def branch(self, position: int, token: int, **sampling: Any) -> ObservedAnswer:
        """The answer with `token` at `position` (0: its first token), and what the model writes behind that.

        `sampling`: fields of SamplingParams that replace those of this answer. Raises ValueError for a
        position behind the answer's end, or an id that is no token.
        """
        if not 0 <= position <= len(self.ids):
            raise ValueError(f"the answer has {len(self.ids)} tokens, numbered from 0, and no {position}")
        if self.go_on is None:
            raise ValueError("the model of this answer is gone")
        return self.go_on(self.prompt, (*self.ids[:position], int(token)), sampling)

    def data(self, tokenizer: Spelling | None = None) -> dict[str, Any]:
        """The answer as plain data; docs/inspection.md has its form."""
        spelled, top = Spelled(tokenizer), self.top
        tokens = [
            {
                "position": i,
                **spelled.token(id_),
                "probability": float(f"{top.next_probability[i]:.4g}"),
                "rank": int(top.next_rank[i]),
                "entropy": float(f"{top.entropy[i]:.4g}"),
                "top": spelled.top(top[i]),
                "given": i < self.n_begun,
            }
            for i, id_ in enumerate(self.ids)
        ]
        end = {"entropy": float(f"{top.entropy[-1]:.4g}"), "top": spelled.top(top[len(self.ids)])}
        return {
            "prompt": [spelled.token(id_) for id_ in self.prompt],
            "tokens": tokens,
            "behind": end,
            "finish_reason": self.finish_reason,
        }
