"""Speculation: a decode step runs drafted ids along with the token before them, and keeps the right ones.

The sampler chooses each token from the logits of the ids before it, as it would without drafts; a drafted id
that is not the one that it chooses ends the step, and what comes behind it in the cache is given back. So the
distribution of answers is that of plain sampling, the same seed gives the same ids, and greedy answers are
the same ids. (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", draw the
accepted ids from a coupling of both distributions; here the coupling is that both read the same random
number: Daliri et al. 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding".)
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling.sampler import Sampler
from .drafter import Drafter
from .ngram import FOLLOWING, NgramDraft
from .policy import MOST_DRAFTED, Acceptance, Rests, StepCosts

MODEL, MODEL_FOLLOWING = -1, -2  # kinds of ids that a drafter proposes: the first one, and those behind it
PRIORS = {
    FOLLOWING: 0.85,
    5: 0.7,
    3: 0.5,
    2: 0.2,
    MODEL: 0.7,
    MODEL_FOLLOWING: 0.7,
}  # before anything is known
NGRAM = "ngram"  # the name in statistics
MOST_BEHIND = 64  # ids that a drafter may have to read for each one that may still be written


class SequenceDrafts:
    """The drafts of one sequence: n-grams of its own ids, if `ngrams`, and those of a `drafter`.

    `choose` decides what is drafted in a step, `offer` brings what the drafter proposes, and `take` gives the
    draft.
    """

    def __init__(self, costs: StepCosts, ngrams: bool = True, drafter: Drafter | None = None) -> None:
        self._costs = costs
        self._ngrams = NgramDraft() if ngrams else None
        self._drafter = drafter
        self._acceptance = Acceptance(PRIORS)
        self._rests = Rests()
        self._order, self._place, self._n_ids = FOLLOWING, -1, -1
        self._drafted: list[int] = []
        self._n_known = 0  # ids that the drafter has read
        self.kind = NGRAM  # of the latest draft
        self._sampler: Sampler | None = None

    def choose(self, ids: Sequence[int], base: int, most: int, left: int) -> int:
        """Decide what is drafted behind `ids`, at most `most` ids, in a step that has `base` rows without
        them, of a sequence that may get `left` more. Returns how many ids the drafter is to propose."""
        self._settle(ids)
        self._n_ids, self.kind = len(ids), NGRAM
        most = min(most, MOST_DRAFTED, MOST_DRAFTED + 1 - base)
        n, gain = 0, 0.0
        if self._ngrams is not None:
            self._order, self._place = self._ngrams.find(ids)
            if self._place >= 0:
                fitting = min(most, len(ids) - self._place)
                n, gain = self._acceptance.best_length(
                    self._order, FOLLOWING, self._costs.shares(base), fitting
                )
        self._drafted = list(ids[self._place : self._place + n])
        if self._drafter is None or len(ids) - self._n_known > MOST_BEHIND * left:
            return 0
        wanted, promised = self._acceptance.best_length(
            MODEL, MODEL_FOLLOWING, lambda n: self._cost(n, base, self._drafter), most
        )
        if n and gain >= promised:
            return 0
        wanted = self._rests.length(len(ids), wanted, most)
        if wanted:
            self.kind, self._drafted = self._drafter.kind, []
        return wanted

    def _cost(self, n: int, base: int, drafter: Drafter | None) -> float:
        """What the sequence costs with `n` ids of the drafter, in what it costs without."""
        assert drafter is not None
        drafting = drafter.seconds(n, base, self._costs) / self._costs.seconds(base)
        return self._costs.share(n, base) + drafting

    def offer(self, drafted: Sequence[int]) -> None:
        """What the drafter proposes."""
        self._drafted = list(drafted)
        self._n_known = self._n_ids

    def take(self, ids: Sequence[int], most: int) -> list[int]:
        """The draft behind `ids`, at most `most` of what was chosen."""
        if self._n_ids != len(ids):
            return []
        self._drafted = self._drafted[: max(0, most)]
        return self._drafted

    def sampler(self, of: Sampler) -> Sampler:
        """A sampler that chooses a draft's ids as `of` will choose the sequence's."""
        if self._sampler is None:
            assert self._drafter is not None
            self._sampler = of.twin(self._drafter.own_tokens)
        self._sampler.follow(of)
        return self._sampler

    def _settle(self, ids: Sequence[int]) -> None:
        """Learn from what has come since the last decision."""
        n = self._n_ids
        if n < 0 or len(ids) <= n:
            return
        if self.kind != NGRAM:
            self._observe(MODEL, MODEL_FOLLOWING, self._drafted, ids)
        if self._ngrams is not None and self._place >= 0:
            self._observe(self._order, FOLLOWING, ids[self._place : self._place + MOST_DRAFTED], ids)
            self._ngrams.observe(ids, self._place, n)

    def _observe(self, first: int, following: int, drafted: Sequence[int], ids: Sequence[int]) -> None:
        """Note which of `drafted` were right, up to the first one that was not."""
        for i, (draft, id_) in enumerate(zip(drafted, ids[self._n_ids :], strict=False)):
            self._acceptance.observe(following if i else first, draft == id_)
            if draft != id_:
                break
