"""The scheduler: which rows of which sequences run in the next step.

A step mixes a decode row of every running sequence with chunks of prefill. Sequences wait in order of
priority and arrival until there is a slot in the block table and room in the cache; when a page is missing,
the youngest running sequence gives its pages up and is resumed later with the tokens that it has.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Sequence as List
from time import monotonic, perf_counter

import numpy as np

from ..beams.group import BeamGroup
from ..cache import PageTable
from ..errors import ModelClosed
from ..machine import Machine
from ..sampling.top_k import TopK
from ..speculation.drafter import Drafter
from ..state import States
from ..timeline import Timeline
from .accounting import StepTimes, count_step, parts_of
from .batching import Rows, by_turn, next_in_turn, prefill_rows, row_alone, run_step
from .choosing import choose, score_prompt
from .drafting import Drafting
from .placement import Limits, Placement
from .sequence import NO_SLOT, Sequence
from .single import SingleStep

FEW_ROWS = 16  # of one sequence that are run like those of decoding
PATIENCE_SECONDS = 0.05  # that a paused sequence keeps its slot while others wait for one


class Scheduler:
    """Runs sequences on one machine. All methods but `submit` and `cancel` are for one thread at a time."""

    def __init__(
        self,
        machine: Machine,
        table: PageTable,
        limits: Limits,
        states: States | None,
        drafter: Drafter | None = None,
    ) -> None:
        self.machine = machine
        self.table = table
        self.limits = limits
        self.lock = threading.Lock()  # of `waiting` and `running`; not held while the machine computes
        self.waiting: list[Sequence] = []  # in order
        self.running: list[Sequence] = []  # in order
        self.groups: list[BeamGroup] = []  # beam searches, whose beams are in the lists above
        companion = drafter.companion if drafter is not None else None
        self.placement = Placement(machine, table, limits, states, companion)
        self._arrivals = 0
        self._cancelled: list[Sequence] = []
        self.times = StepTimes()
        self.timeline = Timeline()
        self._drafting = Drafting(machine, table, limits, states, drafter)
        self._single = SingleStep(machine, table, limits)

    # ---- from any thread

    def submit(self, sequence: Sequence) -> None:
        """Put a new sequence into the queue."""
        with self.lock:
            self._arrivals += 1
            sequence.arrival = self._arrivals
            insort(self.waiting, sequence, key=lambda s: s.order)
            if sequence.group is not None:
                self.groups.append(sequence.group)

    def cancel(self, sequence: Sequence) -> None:
        """Let a sequence end; its pages are free at the latest behind the step that is running."""
        sequence.cancelled = True
        sequence.finish("interrupted")
        self._cancelled.append(sequence)

    # ---- steps

    @property
    def has_cancelled(self) -> bool:
        """Whether sequences were cancelled that still have their places."""
        return bool(self._cancelled)

    def step(self) -> bool:
        """Run a step; False if there is nothing that can run now.

        Raises what the machine raises, and then every sequence of the step has ended with that error; an
        interrupt (KeyboardInterrupt) ends none.
        """
        if self._cancelled or self.groups or self.waiting:
            with self.lock:
                self.drop_cancelled()
                self._settle_groups()
                self._admit()
        self._drafting.prepare(self.running)
        if len(self.running) == 1 and self._step_single(self.running[0]):
            return True
        with self.lock:
            plan = self._plan()
        if not plan:
            return False
        start = perf_counter()
        try:
            self._drafting.keep_states(plan)
            for rows in plan:
                if rows.chooses and rows.sequence.constrained is not None:
                    rows.sequence.constrained.prepare(rows.drafted)
            results = run_step(self.machine, self.table, plan, self.limits.n_tokens)
        except BaseException as error:
            self._roll_back(plan, error)
            raise
        self._commit(plan, results, start)
        return True

    def _step_single(self, sequence: Sequence) -> bool:
        """Run the step of the only running sequence, if it decodes without drafts, by fewer calls than a step
        that has to be planned: what runs between two steps finds cold caches, so that each call takes about a
        microsecond. False if nothing was run."""
        if self.placement.states or self.timeline.watching or self._drafting.takes_part(sequence):
            return False
        if (k := self._single.top_k(sequence)) == 0:
            return False
        start = perf_counter()
        try:
            top = self._single.run(sequence, k)
        except BaseException as error:
            self._roll_back([self._single.rows(sequence)], error)
            raise
        self._single.choose(sequence, top)
        seconds = perf_counter() - start
        with self.lock:
            if sequence.slot != NO_SLOT:  # it was not cancelled meanwhile
                self._single.count(sequence, seconds)
                if sequence.finished:
                    self._end(sequence)
        self.times.measure(1, 0, seconds)
        sequence.tell()
        return True

    def drop_cancelled(self) -> None:
        """Take cancelled sequences out of queue and slots; the lock is held."""
        while self._cancelled:
            sequence = self._cancelled.pop()
            for member in sequence.members:
                member.finish("interrupted")
                self._end(member)

    def _settle_groups(self) -> None:
        """Let beam searches go on whose beams have all come as far; the lock is held."""
        if self.groups:
            self.groups = [group for group in self.groups if group.settle(self)]

    def ensure(self, sequence: Sequence) -> None:
        """Queue a sequence that an interrupt has taken out of both lists; the lock is held."""
        if sequence.group is not None:
            self._settle_groups()
        elif not sequence.finished and sequence not in self.waiting and sequence not in self.running:
            sequence.slot, sequence.n_cached = NO_SLOT, 0
            insort(self.waiting, sequence, key=lambda s: s.order)

    def _end(self, sequence: Sequence) -> None:
        """Take a sequence out of queue and slot; what it has computed stays in the cache."""
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)
        if sequence.slot != NO_SLOT:
            self.placement.vacate(sequence)

    # ---- admission

    def _admit(self) -> None:
        """Give slots and the pages of known beginnings to those that wait, in order, while there is room."""
        for sequence in list(self.waiting):
            if self._ends_by_context(sequence):
                continue
            if sequence.candidates is not None or self.placement.shares_with(sequence, self.running):
                continue
            while not self.placement.place(sequence, self.running):
                if not self._give_way(sequence):
                    return
            insort(self.running, sequence, key=lambda s: s.order)
            self.waiting.remove(sequence)

    def _give_way(self, to: Sequence) -> bool:
        """Take slot and pages from a paused sequence that cannot go on, or has not for a while; False if
        there is none. A beam that waits for its siblings only gives way to those that come before it."""
        here, now = threading.get_ident(), monotonic()
        for sequence in reversed(self.running):
            if sequence.candidates is not None:
                stuck = to.order <= sequence.order
            else:
                stuck = sequence.reader == here or now - sequence.changed_at > PATIENCE_SECONDS
            if sequence.paused and stuck:
                self._set_back(sequence)
                return True
        return False

    def _set_back(self, sequence: Sequence) -> None:
        """Take slot and pages from a running sequence; it waits for others, in its old place."""
        self._end(sequence)
        insort(self.waiting, sequence, key=lambda s: s.order)

    # ---- the rows of a step

    def _plan(self) -> list[Rows]:
        """The rows of the next step, with room in the cache for all of them."""
        self._repair()
        if self.limits.alone:
            return self._plan_alone()
        plan: list[Rows] = []
        ready = [sequence for sequence in self.running if not sequence.paused]
        most = max(1, min(FEW_ROWS, self.machine.max_rows // max(1, len(ready))))
        decoding: list[Sequence] = []
        for sequence in ready:
            if len(sequence.ids) - sequence.n_cached > most:
                sequence.n_prefill = len(sequence.ids)  # many ids were forced
            if not sequence.prefilling:
                decoding.append(sequence)
        most_logits = min(self.machine.max_rows, self.machine.max_logits)
        for sequence in next_in_turn(decoding, most_logits - (len(ready) > len(decoding))):
            if not self._ends_by_context(sequence) and sequence in self.running:
                rows = self._decode_rows(sequence, len(decoding))
                if self._make_room(sequence, rows.n, plan):
                    plan.append(rows)
        if len(ready) > len(decoding):
            self._plan_prefill(ready, plan)
        return [rows for rows in plan if rows.sequence.slot != NO_SLOT]

    def _plan_prefill(self, ready: list[Sequence], plan: list[Rows]) -> None:
        """Add chunks of prompts to the decode rows of a step, as far as there is room for them."""
        budget = min(self.limits.chunk, self.machine.max_rows)
        n_logits = sum(rows.n_logits for rows in plan)
        if plan:
            budget = min(budget - sum(rows.n for rows in plan), self.times.mixed_rows)
        for sequence in ready:
            if budget <= 0 or not sequence.prefilling or sequence not in self.running:
                continue
            prefill = prefill_rows(sequence, self.placement, budget, self.machine.max_logits - n_logits)
            if prefill is None or not self._make_room(sequence, prefill.n, plan):
                continue
            plan.append(prefill)
            n_logits += prefill.n_logits
            budget -= prefill.n

    def _ends_by_context(self, sequence: Sequence) -> bool:
        """Whether a sequence has as many ids as the context holds, and one that was not fed; it ends then."""
        if len(sequence.ids) <= self.limits.context:
            return False
        sequence.finish("context")
        self._end(sequence)
        sequence.tell()
        return True

    def _plan_alone(self) -> list[Rows]:
        """The next step of one sequence, which is the same whatever else there is, also for one that was set
        back: a chunk of its prompt, or one id behind that. Sequences take turns."""
        for sequence in by_turn([sequence for sequence in self.running if not sequence.paused]):
            if self._ends_by_context(sequence):
                continue
            rows: Rows | None = row_alone(sequence)
            if sequence.prefilling:
                rows = prefill_rows(sequence, self.placement, self.limits.chunk, self.machine.max_logits)
            if rows is not None and self._make_room(sequence, rows.n, []):
                return [rows]
        return []

    def _decode_rows(self, sequence: Sequence, n_decoding: int) -> Rows:
        """The rows of a sequence that decodes, in a step of `n_decoding` such sequences: its last id and what
        may follow it. (There are more ids where some were forced, or an interrupt has cut a step off.)"""
        n, drafted = len(sequence.ids) - sequence.n_cached, self._drafting.take(sequence, n_decoding)
        if drafted and sequence.constrained is not None:
            drafted = sequence.constrained.allowed(drafted)
        kind = sequence.drafts.kind if drafted and sequence.drafts else ""
        n_rows = n + len(drafted)
        return Rows(sequence, sequence.n_cached, n_rows, 1 + len(drafted), True, tuple(drafted), kind)

    def _repair(self) -> None:
        """Bring sequences in order that an interrupt left in the middle of a change."""
        for sequence in list(self.running):
            most = len(sequence.ids) - (sequence.candidates is None)
            sequence.n_cached = min(sequence.n_cached, most)
            if sequence.constrained is not None:
                sequence.constrained.follow(sequence.ids, sequence.n_prompt)
            if not self.placement.is_in_order(sequence):
                self._set_back(sequence)

    def _make_room(self, sequence: Sequence, n: int, plan: list[Rows]) -> bool:
        """Extend a sequence by `n` tokens; if pages are missing, the youngest others are set back. False if
        the sequence itself was."""
        needed = self.table.pages_needed(sequence.slot, n)
        while needed and not self.placement.find_pages(needed):
            planned = {id(rows.sequence) for rows in plan}
            others = [s for s in self.running if s is not sequence and id(s) not in planned]
            youngest = max(others, key=lambda s: s.order, default=None)
            if youngest is None or youngest.order < sequence.order:
                self._set_back(sequence)
                return False
            self._set_back(youngest)
        self.table.extend(sequence.slot, n)
        return True

    # ---- running a step

    def _roll_back(self, plan: list[Rows], error: BaseException) -> None:
        """After a step that failed or was interrupted: sequences are as before it, or have ended."""
        with self.lock:
            for rows in plan:
                sequence = rows.sequence
                if isinstance(error, Exception):
                    sequence.error = error
                    sequence.finish("interrupted")
                    self._end(sequence)
                    sequence.tell()
                elif sequence.slot != NO_SLOT:
                    self.table.truncate(sequence.slot, sequence.n_cached)
            self._settle_groups()

    def _commit(self, plan: list[Rows], results: List[np.ndarray | TopK], start: float) -> None:
        """Choose tokens, and note what the machine has seen."""
        end = 0
        right: list[int] = []
        for rows in plan:
            those = results[end : end + rows.n_logits]
            end += rows.n_logits
            if rows.sequence.scores_prompt:
                score_prompt(rows, those)
            right.append(0)
            if rows.chooses and rows.sequence.group is not None:
                rows.sequence.group.receive(rows.sequence, those[-1])
            elif rows.chooses:
                right[-1] = choose(rows, those[-1 - len(rows.drafted) :], self.limits.context + 1)
        self._drafting.observe(plan, right)
        seconds = perf_counter() - start
        if self.timeline.watching:
            counts = len(self.running), len(self.waiting), self.table.free_pages
            self.timeline.note(start, seconds, parts_of(plan, right, self.table.page_size), *counts)
        n_prefill = 0
        with self.lock:
            for rows, n_right in zip(plan, right, strict=True):
                n_prefill += rows.n if rows.sequence.prefilling else 0
                self._advance(rows, n_right, seconds)
            self._settle_groups()
        self.times.measure(sum(rows.n for rows in plan), n_prefill, seconds)
        for rows in plan:
            if rows.sequence.readable:
                rows.sequence.tell()

    def _advance(self, rows: Rows, n_right: int, seconds: float) -> None:
        """Note that the rows are in the cache, of drafted ones `n_right`, and whether the sequence ends with
        them; the lock is held."""
        sequence, stats = rows.sequence, rows.sequence.stats
        if sequence.slot == NO_SLOT:  # cancelled meanwhile
            return
        count_step(rows, n_right, seconds, self._drafting.seconds)
        sequence.n_cached = self._drafting.settle(rows, n_right)
        if max(sequence.n_prefill, sequence.n_cached) <= self.limits.original_context:
            sequence.n_original = sequence.n_cached
        self.placement.save_state(sequence)
        if sequence.error is not None:
            sequence.finish("interrupted")
        elif not sequence.prefilling and stats.new_tokens == sequence.sampler.params.max_tokens:
            sequence.finish("length")
        elif len(sequence.ids) > self.limits.context:
            sequence.finish("context")
        if sequence.finished:
            self._end(sequence)
        elif rows.first < sequence.n_prefill and self.table.max_sequences > 1:
            self.placement.share(sequence)

    def stop(self) -> None:
        """End all sequences; the lock is held."""
        self.drop_cancelled()
        for sequence in [*self.waiting, *self.running]:
            sequence.error = ModelClosed("this model is closed; load it again")
            sequence.finish("interrupted")
            self._end(sequence)
            sequence.tell()
        self.waiting.clear()
        self._settle_groups()

    def empty(self) -> None:
        """Set all running sequences back, and forget what the cache holds; the lock is held."""
        for sequence in list(self.running):
            self._set_back(sequence)
        self.placement.clear()
