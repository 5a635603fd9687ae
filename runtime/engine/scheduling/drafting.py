"""Drafting: asks what may follow the sequences that decode, before the rows of a step are planned."""

from __future__ import annotations

import logging
from collections.abc import Sequence as List
from time import perf_counter

from ..cache import PageTable
from ..machine import Machine
from ..speculation.drafter import Drafter, Seen, Wish
from ..speculation.speculation import SequenceDrafts
from ..state import SavedState, States
from .batching import Rows
from .placement import Limits
from .sequence import NO_SLOT, Sequence

MOST_DRAFTING = 32  # sequences in a step: with more of them, drafts take longer than they can save
MOST_AGAIN = 4  # ids that are computed again beside drafts, where a recurrent state has gone back

_log = logging.getLogger(__name__)


class Drafting:
    """Drafts of all sequences of a machine: n-grams that each looks up, and those that a `drafter` computes.

    `seconds` is how long the drafter took for the latest step.
    """

    def __init__(
        self,
        machine: Machine,
        table: PageTable,
        limits: Limits,
        states: States | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._machine = machine
        self._table = table
        self._limits = limits
        self._states = states if states and states.layers else None
        self._saved: dict[int, SavedState] = {}  # by slot: states in front of rows that may be given back
        self._drafter = drafter
        self.seconds = 0.0

    def prepare(self, running: List[Sequence]) -> None:
        """Draft for the sequences that are about to decode. The drafter may run a machine of its own."""
        self.seconds = 0.0
        for sequence in running:
            if sequence.drafts is not None:
                break
        else:
            return
        decoding = [s for s in running if not s.paused and not s.prefilling]
        if len(decoding) > MOST_DRAFTING:
            return
        wishes: list[Wish] = []
        asking: list[SequenceDrafts] = []
        for sequence in decoding:
            drafts = sequence.drafts
            if drafts is None or not self._may_draft(sequence):
                continue
            most = self._most(sequence, len(decoding))
            base = len(decoding) + len(sequence.ids) - sequence.n_cached - 1
            wanted = drafts.choose(sequence.ids, base, most, self._left(sequence))
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
            self._give_up(problem)
            proposals = [[] for _ in wishes]
        for drafts, proposal in zip(asking, proposals, strict=True):
            drafts.offer(proposal)

    def takes_part(self, sequence: Sequence) -> bool:
        """Whether the next step of a sequence that decodes alone has drafts, or a drafter follows it."""
        return sequence.drafts is not None and (self._drafter is not None or bool(self.take(sequence, 1)))

    def take(self, sequence: Sequence, n_decoding: int) -> list[int]:
        """The ids that are drafted for a sequence, in a step of `n_decoding` that decode."""
        if n_decoding > MOST_DRAFTING or self._limits.alone:
            return []
        if sequence.drafts is None or not self._may_draft(sequence):
            return []
        return sequence.drafts.take(sequence.ids, self._most(sequence, n_decoding))

    def _may_draft(self, sequence: Sequence) -> bool:
        """Whether few enough of a sequence's ids are to be computed yet."""
        return len(sequence.ids) - sequence.n_cached <= (MOST_AGAIN if self._states else 1)

    def keep_states(self, plan: List[Rows]) -> None:
        """Before a step: copy the recurrent states that drafts may turn out to have led astray."""
        self._saved.clear()
        if self._states is not None:
            for rows in plan:
                if rows.drafted:
                    self._saved[rows.sequence.slot] = self._states.save(rows.sequence.slot)

    def settle(self, rows: Rows, n_right: int) -> int:
        """Behind a step, of whose drafted ids `n_right` were right: how many ids the machine has seen.

        A recurrent state that has seen wrong ones goes back to where it was in front of the step; the right
        ones are computed once more with the next token.
        """
        saved = self._saved.get(rows.sequence.slot)
        if n_right < len(rows.drafted) and saved is not None and self._states is not None:
            self._states.restore(rows.sequence.slot, saved)
            return saved.length
        return rows.first + rows.n - len(rows.drafted) + n_right

    def observe(self, plan: List[Rows], right: List[int]) -> None:
        """Behind a step: tell the drafter what was computed of each sequence that may be drafted for."""
        if self._drafter is None or self._drafter.companion is None:
            return
        seen, start, total = list[Seen](), 0, sum(rows.n for rows in plan)
        for rows, n_right in zip(plan, right, strict=True):
            n = rows.n - len(rows.drafted) + n_right
            s = rows.sequence
            if s.drafts is not None and s.slot != NO_SLOT:
                ids = s.ids[rows.first + 1 : rows.first + 1 + n]
                seen.append(Seen(s, s.slot, rows.first, range(start, start + n), total, ids))
            start += rows.n
        try:
            self._drafter.observe(seen)
        except Exception as problem:  # noqa: BLE001 - answers do not depend on drafts
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        _log.warning("drafting failed, and is given up: %s", problem)
        self._drafter = None

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
