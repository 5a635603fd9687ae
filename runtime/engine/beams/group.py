"""A beam group: the sequences of one beam search, which all stand at the same place.

Each beam is a sequence of the scheduler like any other, so that the beams of a search, other searches and
plain requests run in one step. A beam whose logits are there waits for its siblings; then the search chooses
the beams of the next step. One that continues an old beam keeps its slot; a second one begins in the same
pages, but for the last, of which it gets a copy.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadLogits
from ..sampling.beam_search import Beam, BeamSearch, BeamState, Candidates, Running
from ..sampling.top_k import TopK
from ..scheduling.sequence import NO_SLOT, Sequence
from ..stats import GenerationStats

if TYPE_CHECKING:
    from ..scheduling.scheduler import Scheduler


class BeamGroup:
    """The sequences of a search; `leader` is that of the prompt, whose statistics are the search's.

    The beams of the search belong to `owners`, in their order. Both change at once, and before the sequences
    do, so that an interrupt leaves nothing but what `settle` makes up for. `trail` gets what the search knows
    behind each step.
    """

    def __init__(self, search: BeamSearch, leader: Sequence, trail: list[BeamState] | None = None) -> None:
        self.search = search
        self.leader = leader
        self.trail = trail
        self.sequences = [leader]  # some may be of no use, where there are fewer than k continuations
        self._stand: tuple[BeamState, tuple[Sequence, ...]] = (search.start(), (leader,))
        leader.group = self

    @property
    def beams(self) -> list[Beam]:
        """The answers so far, the best first."""
        return self.search.best(self._stand[0])

    def receive(self, sequence: Sequence, logits: np.ndarray | TopK) -> None:
        """Note the logits behind a beam's last id, float32 [vocab]."""
        assert isinstance(logits, np.ndarray)
        try:
            sequence.candidates = self.search.candidates(logits, sequence.ids)
        except BadLogits as error:
            place = f"token {sequence.n_new + 1} of the answer (position {len(sequence.ids)})"
            sequence.error = BadLogits(f"cannot choose {place}: {error}")

    def settle(self, scheduler: Scheduler) -> bool:
        """Go on with the search if the logits of all beams are there, and bring the sequences to where it
        stands; False if it has ended. The scheduler's lock is held."""
        if any(sequence.finished or sequence.error for sequence in self.sequences):
            self._break_off(scheduler)
            return False
        self._choose()
        state, owners = self._stand
        if state.done:
            self._end(scheduler, state)
            return False
        for beam, owner in zip(state.running, owners, strict=True):
            if owner.ids is not beam.ids and owner is not self._source(beam):
                self._fork(scheduler, beam, owner)
        for beam, owner in zip(state.running, owners, strict=True):
            owner.stats.new_tokens = len(beam.ids) - owner.n_prompt
            if owner.ids is not beam.ids:
                owner.ids, owner.candidates = beam.ids, None  # no call in between, where Ctrl-C could come
            if owner not in scheduler.running and owner not in scheduler.waiting:
                owner.slot, owner.n_cached = NO_SLOT, 0
                insort(scheduler.waiting, owner, key=lambda s: s.order)
        return True

    def _choose(self) -> None:
        """Take a step of the search, if the candidates of all beams are there."""
        state, before = self._stand
        known: list[Candidates] = []
        for beam, owner in zip(state.running, before, strict=True):
            if owner.candidates is None or owner.ids is not beam.ids:
                return
            known.append(owner.candidates)
        if state.done:
            return
        state = self.search.following(state, known)
        # The first beam that continues an old one gets its sequence, others get those that have none left.
        firsts = {beam.parent: place for place, beam in reversed(list(enumerate(state.running)))}
        kept = {place: before[parent] for parent, place in firsts.items()}
        of_use = {id(sequence) for sequence in kept.values()}
        spare = [sequence for sequence in self.sequences if id(sequence) not in of_use]
        owners = [
            kept.get(place) or (spare.pop() if spare else self._new_sequence())
            for place in range(len(state.running))
        ]
        if self.trail is not None and len(self.trail) < state.n_new:
            self.trail.append(state)
        self._stand = state, tuple(owners)

    def _new_sequence(self) -> Sequence:
        leader = self.leader
        sequence = Sequence(
            list(self.search.prompt),
            leader.sampler,
            GenerationStats(),
            leader.end_ids,
            priority=leader.priority,
            arrival=leader.arrival,
            group=self,
        )
        self.sequences.append(sequence)
        return sequence

    def _source(self, beam: Running) -> Sequence:
        """The sequence that has what the parent of a beam has computed."""
        state, owners = self._stand
        return next(o for b, o in zip(state.running, owners, strict=True) if b.parent == beam.parent)

    def _fork(self, scheduler: Scheduler, beam: Running, owner: Sequence) -> None:
        """Let `owner` go on as a beam whose parent another one continues already."""
        source = self._source(beam)
        _take_out(scheduler, owner)
        if scheduler.placement.fork(source, owner, scheduler.running):
            owner.ids, owner.candidates = beam.ids, None
            insort(scheduler.running, owner, key=lambda s: s.order)
            return
        if source.slot != NO_SLOT:
            scheduler.placement.share(source)
        owner.ids, owner.candidates = beam.ids, None
        insort(scheduler.waiting, owner, key=lambda s: s.order)

    def _break_off(self, scheduler: Scheduler) -> None:
        """End all beams with what ended one of them."""
        error = next((sequence.error for sequence in self.sequences if sequence.error is not None), None)
        self.leader.error = self.leader.error or error
        for sequence in self.sequences:
            sequence.finish("interrupted")
            _take_out(scheduler, sequence)
        self.leader.tell()

    def _end(self, scheduler: Scheduler, state: BeamState) -> None:
        best = state.complete[0]
        self.leader.stats.new_tokens = len(best.ids)
        for sequence in self.sequences:
            sequence.finish(best.finish_reason)
            _take_out(scheduler, sequence, keep=True)
        self.leader.tell()


def _take_out(scheduler: Scheduler, sequence: Sequence, keep: bool = False) -> None:
    """Take a sequence out of queue and slot; with `keep`, others may begin with what it has computed."""
    for queue in (scheduler.waiting, scheduler.running):
        if sequence in queue:
            queue.remove(sequence)
    if sequence.slot != NO_SLOT:
        (scheduler.placement.vacate if keep else scheduler.placement.drop)(sequence)
