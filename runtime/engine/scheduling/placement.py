"""Placement: slots of the block table and pages of the cache, and what earlier sequences have left there."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from ..cache import PageTable
from ..machine import Machine
from ..state import SavedState, States
from .known_states import REWIND, KnownStates
from .prefix_tree import Match, PrefixTree, common_length
from .sequence import NO_SLOT, Sequence

LEAST_SHARED = 4  # tokens of a beginning for which a sequence waits until another one has computed them


@dataclass(frozen=True)
class Limits:
    """Sizes that the scheduler keeps to.

    `context`: tokens of a sequence; `n_tokens`: ids that may be generated; `chunk`: rows of a prefill step;
    `original_context`: see `Program.original_context`. With `alone`, a step has rows of one sequence, and no
    sequence begins in pages of another, so that results do not depend on what runs beside it.
    """

    context: int
    n_tokens: int
    chunk: int
    original_context: int = 0
    alone: bool = False


@dataclass(frozen=True)
class Kept:
    """What the cache holds of a beginning: `ids`, and the bytes of their pages.

    `states` are recurrent ones behind all of the ids and behind fewer, the longest last; `long`: the keys are
    those of a sequence beyond the original context (see Limits).
    """

    ids: list[int]
    pages: List[np.ndarray]  # uint8 [bytes of a page] each
    states: tuple[SavedState, ...] = ()
    long: bool = False

    def check(self, page_size: int, page_bytes: int, state_shapes: List[tuple[int, ...]]) -> None:
        """Raises ValueError unless there are as many pages, of so many bytes, as the ids have, and states of
        these shapes.
        """
        if len(self.pages) != -(-len(self.ids) // page_size):
            raise ValueError(f"{len(self.pages)} pages do not hold {len(self.ids)} tokens")
        if any(len(page) != page_bytes for page in self.pages):
            raise ValueError(f"a page of the cache has {page_bytes} bytes")
        for state in self.states:
            shapes = [array.shape for array in state.arrays]
            if shapes != state_shapes or not 0 < state.length <= len(self.ids):
                raise ValueError("a recurrent state is not one of this model")
        if state_shapes and self.ids and not self.states:
            raise ValueError("the recurrent state is missing")


class Placement:
    """Gives sequences slots and pages. What a sequence has computed stays behind it as the beginning of
    others, until its pages are needed."""

    def __init__(
        self,
        machine: Machine,
        table: PageTable,
        limits: Limits,
        states: States | None,
        companion: Machine | None = None,
    ) -> None:
        self._machine = machine
        self._companion = companion  # a machine with further layers for the same pages
        self._table = table
        self._limits = limits
        self.states = KnownStates(states, table.max_sequences) if states and states.layers else None
        self._trees = {long: PrefixTree(table) for long in (False, True)}  # by the kind of their keys

    def place(self, sequence: Sequence, running: List[Sequence]) -> bool:
        """Give a sequence a slot, with the longest beginning that is known; False if there is no slot, or no
        room for the rest of it beside those that are `running`."""
        table, size = self._table, self._table.page_size
        free = self._free_slots(running)
        if not free:
            return False
        tree = self._tree_of(sequence)
        ids = sequence.ids[: sequence.n_reusable]
        match = tree.match(ids)
        needed = -(-len(sequence.ids) // size) - len(match.pages)
        in_use = set(match.pages).union(*(table.pages(other.slot) for other in running))
        if running and needed + len(running) > table.n_pages - len(in_use):
            return False
        slot, n = free[0], len(match.pages) * size + match.n_partial
        if self.states:
            slot, n = self.states.choose(ids, n, free)
        sequence.slot, sequence.saved = slot, False
        sequence.n_prefill = sequence.n_prompt if self._limits.alone else len(sequence.ids)
        sequence.n_cached = self._adopt(tree, slot, match, n)
        sequence.n_original = 0 if self.is_long(len(sequence.ids)) else sequence.n_cached
        if not sequence.n_new:
            sequence.stats.cached_tokens = sequence.n_cached
        return True

    def _free_slots(self, running: List[Sequence]) -> list[int]:
        taken = {other.slot for other in running}
        return [slot for slot in range(self._table.max_sequences) if slot not in taken]

    def fork(self, source: Sequence, sequence: Sequence, running: List[Sequence]) -> bool:
        """Give a sequence a slot of its own with what `source` has in its cache, all but a part of the last
        page in the same pages; False if there is no slot or no page for that. It has the ids of `source`, and
        one more."""
        table, n = self._table, source.n_cached
        free = self._free_slots(running)
        if source.slot == NO_SLOT or not free or (self.states and self.states.seen(source.slot) != n):
            return False
        slot = self.states.copy(source.slot, free) if self.states else free[0]
        pages = table.pages(source.slot)
        whole, part = divmod(n, table.page_size)
        table.truncate(slot, 0)
        table.adopt(slot, pages[:whole])
        if part:
            if not self.find_pages(1):
                table.truncate(slot, 0)
                return False
            table.extend(slot, part)
            self._copy_page(pages[whole], table.pages(slot)[-1])
        sequence.n_prefill, sequence.n_original, sequence.saved = source.n_prefill, source.n_original, True
        sequence.slot, sequence.n_cached = slot, n
        return True

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out of its slot, without keeping what it has computed."""
        slot, sequence.slot = sequence.slot, NO_SLOT
        sequence.n_cached = sequence.n_original = 0
        self._table.truncate(slot, 0)

    def is_long(self, n: int) -> bool:
        """Whether the keys of a sequence of `n` tokens are those of one beyond the original context."""
        return 0 < self._limits.original_context < n

    def _tree_of(self, sequence: Sequence) -> PrefixTree:
        return self._trees[self.is_long(len(sequence.ids))]

    def _adopt(self, tree: PrefixTree, slot: int, match: Match, n: int) -> int:
        """Let the sequence in `slot` begin with the first `n` tokens of `match`. Returns how many it has:
        fewer if there is no page for a copy of a part of one."""
        whole, part = divmod(n, self._table.page_size)
        self._table.truncate(slot, 0)
        self._table.adopt(slot, match.pages[:whole])
        if not part or self._adopt_part(tree, slot, match, whole, part):
            return n
        if self.states:  # the state has seen all of the `n` tokens
            self._table.truncate(slot, 0)
            return 0
        return n - part

    def _adopt_part(self, tree: PrefixTree, slot: int, match: Match, whole: int, part: int) -> bool:
        """Let the sequence in `slot` go on behind the first `part` tokens of page number `whole` of a match:
        in the page itself if nobody else needs it, else in a copy. False if there is no page for that."""
        if whole < len(match.pages):
            source = match.pages[whole]
        else:
            assert match.partial is not None
            if tree.take(match.partial, slot, part):
                return True
            source = match.partial.page
        self._table.retain(source)  # so that it is not evicted
        try:
            if not self.find_pages(1):
                return False
            self._table.extend(slot, part)
            self._copy_page(source, self._table.pages(slot)[-1])
        finally:
            self._table.release(source)
        return True

    def _copy_page(self, source: int, target: int) -> None:
        self._machine.copy_page(source, target)
        if self._companion is not None:
            self._companion.copy_page(source, target)

    def find_pages(self, n: int) -> bool:
        """Make sure that `n` pages are free, if need be by forgetting some that no sequence uses."""
        for tree in self._trees.values():
            if (missing := n - self._table.free_pages) > 0:
                tree.evict(missing)
        return self._table.free_pages >= n

    def shares_with(self, sequence: Sequence, running: List[Sequence]) -> bool:
        """Whether the prefill of another sequence is computing pages that `sequence` can begin with."""
        if self._limits.alone or self.states or sequence.scores_prompt:
            return False
        busy = [other for other in running if other.prefilling and not other.paused]
        if not busy:
            return False
        shared = max(min(common_length(sequence.ids, o.ids), o.n_prefill) for o in busy)
        match = self._tree_of(sequence).match(sequence.ids)
        known = len(match.pages) * self._table.page_size + match.n_partial
        return min(shared, len(sequence.ids) - 1) - known >= LEAST_SHARED

    def vacate(self, sequence: Sequence) -> None:
        """Take a sequence out of its slot, and keep what it has computed."""
        slot, sequence.slot = sequence.slot, NO_SLOT
        known = sequence.ids[: sequence.n_cached]
        self._remember(sequence, slot)
        if self.states:
            self.states.leave(slot, known)
        self._table.truncate(slot, 0)
        sequence.n_cached = sequence.n_original = 0

    def share(self, sequence: Sequence) -> None:
        """Let other sequences begin with what a running one has computed so far."""
        self._remember(sequence, sequence.slot)

    def _remember(self, sequence: Sequence, slot: int) -> None:
        """Enter the pages of a sequence into the prefix tree."""
        if self._limits.alone:
            return
        n, long = sequence.n_cached, False
        if self._limits.original_context:  # keys of both kinds are never mixed
            long = not sequence.n_original
            n = n if long else min(n, sequence.n_original)
        pages = self._table.pages(slot)[: -(-n // self._table.page_size)]
        self._trees[long].insert(sequence.ids[:n], pages)

    def is_in_order(self, sequence: Sequence) -> bool:
        """Whether a running sequence can go on where it stands; room that it did not use is given back.

        Not if a step broke off in the middle, and its recurrent state has seen other tokens than its cache.
        """
        if self.states and sequence.n_cached and self.states.seen(sequence.slot) != sequence.n_cached:
            return False
        self._table.truncate(sequence.slot, sequence.n_cached)
        return True

    def save_state(self, sequence: Sequence) -> None:
        """Save a copy of the recurrent state of a sequence whose prefill has reached the place for that."""
        if self.states and not sequence.saved and sequence.n_cached == self.saves_at(sequence):
            self.states.save(sequence.slot, sequence.ids[: sequence.n_cached])
            sequence.saved = True

    def saves_at(self, sequence: Sequence) -> int:
        """The number of tokens behind which its recurrent state is saved."""
        return sequence.n_prefill - REWIND

    def known(self, ids: List[int]) -> int:
        """How many of `ids` need not be computed, since the longest known beginning has them."""
        match = self._trees[self.is_long(len(ids))].match(ids)
        n = len(match.pages) * self._table.page_size + match.n_partial
        return self.states.known_length(ids, n) if self.states else n

    def take_out(self, ids: List[int], most: int) -> Kept:
        """Copies of the pages, and of recurrent states, that hold the longest known beginning of `ids`, at
        most `most` of them."""
        size, long = self._table.page_size, self.is_long(len(ids))
        match = self._trees[long].match(ids)
        n, states = min(most, len(match.pages) * size + match.n_partial), tuple[SavedState, ...]()
        if self.states:
            states = self.states.known(ids, n)
            n = states[-1].length if states else 0
        pages = [*match.pages, *([match.partial.page] if match.partial else [])][: -(-n // size)]
        return Kept(list(ids[:n]), [self._machine.read_page(page) for page in pages], states, long)

    def put_in(self, kept: Kept, running: List[Sequence]) -> bool:
        """Let other sequences begin with what `take_out` gave, on a machine of the same layout; False if
        there is no room for it beside those that are `running`, or if none may begin in pages of another."""
        free = self._free_slots(running)
        if self._limits.alone or not free or not self.find_pages(len(kept.pages)):
            return False
        slot = free[0]
        self._table.truncate(slot, 0)
        self._table.extend(slot, len(kept.ids))
        pages = self._table.pages(slot)
        for page, content in zip(pages, kept.pages, strict=True):
            self._machine.write_page(page, content)
        self._trees[kept.long].insert(kept.ids, pages)
        self._table.truncate(slot, 0)
        if self.states:
            for state in kept.states:
                self.states.keep(kept.ids[: state.length], state)
        return True

    def clear(self) -> None:
        """Forget everything that is left behind by sequences."""
        for tree in self._trees.values():
            tree.clear()
        if self.states:
            self.states.forget()
