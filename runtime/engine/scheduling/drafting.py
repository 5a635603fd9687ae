"""Drafting: asks what may follow the sequences that decode, before the rows of a step are planned."""

from __future__ import annotations

import logging
from collections.abc import Sequence as List
from time import perf_counter

from ..cache import PageTable
from ..machine import Machine
from ..speculation.drafter import Drafter, Wish
from ..speculation.speculation import SequenceDrafts
from .placement import Limits
from .sequence import Sequence

_log = logging.getLogger(__name__)


class Drafting:
    """Drafts of all sequences of a machine: n-grams that each looks up, and those that a `drafter` computes.

    `seconds` is how long the drafter took for the latest step.
    """

    def __init__(
        self, machine: Machine, table: PageTable, limits: Limits, drafter: Drafter | None = None
    ) -> None:
        self._machine = machine
        self._table = table
        self._limits = limits
        self._drafter = drafter
        self.seconds = 0.0

    def prepare(self, running: List[Sequence]) -> None:
        """Draft for the sequences that are about to decode. The drafter may run a machine of its own."""
        self.seconds = 0.0
        decoding = [s for s in running if not s.paused and not s.prefilling]
        wishes, asking = list[Wish](), list[SequenceDrafts]()
        for sequence in decoding:
            drafts = sequence.drafts
            if drafts is None or len(sequence.ids) - sequence.n_cached != 1:
                continue
            most = self._most(sequence, len(decoding))
            wanted = drafts.choose(sequence.ids, len(decoding), most, self._left(sequence))
            if wanted:
                sampler = drafts.sampler(sequence.sampler)
                wishes.append(Wish(sequence, sequence.slot, sequence.ids, wanted, sampler))
                asking.append(drafts)
        if wishes and self._drafter is not None:
            start = perf_counter()
            self._ask(self._drafter, wishes, asking)
            self.seconds = perf_counter() - start

    def _ask(self, drafter: Drafter, wishes: List[Wish], asking: List[SequenceDrafts]) -> None:
        try:
            proposals = drafter.propose(wishes)
        except Exception as problem:  # noqa: BLE001 - answers do not depend on drafts
            _log.warning("drafting failed, and is given up: %s", problem)
            self._drafter = None
            proposals = [[] for _ in wishes]
        for drafts, proposal in zip(asking, proposals, strict=True):
            drafts.offer(proposal)

    def take(self, sequence: Sequence, n_decoding: int) -> list[int]:
        """The ids that are drafted for a sequence, in a step of `n_decoding` that decode."""
        if sequence.drafts is None or len(sequence.ids) - sequence.n_cached != 1 or self._limits.alone:
            return []
        return sequence.drafts.take(sequence.ids, self._most(sequence, n_decoding))

    def _left(self, sequence: Sequence) -> int:
        """Tokens that a sequence may still get."""
        left = (sequence.sampler.params.max_tokens or self._limits.context) - sequence.n_new
        return min(left, self._limits.context - len(sequence.ids))

    def _most(self, sequence: Sequence, n_decoding: int) -> int:
        """The most ids that may be drafted for a sequence."""
        return min(
            self._left(sequence) - 1,
            self._table.free_tokens + -sequence.n_cached % self._table.page_size - 1,  # without others'
            self._machine.max_logits // n_decoding - 1,
            self._machine.max_rows // n_decoding - 1,
        )
