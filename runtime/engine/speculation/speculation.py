"""Speculation: a decode step runs drafted ids along with the token before them, and keeps the right ones.

The sampler chooses each token from the logits of the ids before it, as it would without drafts; a drafted id
that is not the one that it chooses ends the step, and what comes behind it in the cache is given back. So the
distribution of answers is that of plain sampling, and greedy ones are the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from .ngram import FOLLOWING, NgramDraft
from .policy import MOST_DRAFTED, Acceptance, StepCosts

PRIORS = {FOLLOWING: 0.85, 5: 0.7, 3: 0.5, 2: 0.2}  # how often drafts are right, before anything is known


class SequenceDrafts:
    """The drafts of one sequence."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._ngrams = NgramDraft()
        self._acceptance = Acceptance(PRIORS)
        self._kind, self._place, self._n_ids = FOLLOWING, -1, 0

    def propose(self, ids: Sequence[int], base: int, most: int) -> list[int]:
        """Ids that may follow `ids`, at most `most`, for a step that has `base` rows without them; often
        none."""
        self._settle(ids)
        self._kind, self._place = self._ngrams.find(ids)
        self._n_ids = len(ids)
        if self._place < 0:
            return []
        most = min(most, MOST_DRAFTED, MOST_DRAFTED + 1 - base, len(ids) - self._place)
        n = self._acceptance.best_length(self._kind, FOLLOWING, self._costs, base, most)
        return list(ids[self._place : self._place + n])

    def _settle(self, ids: Sequence[int]) -> None:
        """Learn from what has come since the last proposal."""
        n = self._n_ids
        if self._place < 0 or len(ids) <= n:
            return
        self._acceptance.observe(self._kind, ids[n] == ids[self._place])
        for i in range(n + 1, min(len(ids), n + 1 + MOST_DRAFTED)):  # those behind, as far as they were right
            if ids[i - 1] != ids[self._place + i - 1 - n]:
                break
            self._acceptance.observe(FOLLOWING, ids[i] == ids[self._place + i - n])
        self._ngrams.observe(ids, self._place, n)
