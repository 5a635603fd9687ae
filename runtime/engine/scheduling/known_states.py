"""Which recurrent states are at hand: those in the machine's slots, and copies of others.

A state cannot be truncated, so that a new prompt can go on only from a state of exactly one of its
beginnings. Copies are saved a little before the end of a prompt, where the next prompt may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..state import SavedState, States
from .prefix_tree import common_length

SAVED_STATES = 2  # saved copies of a recurrent state, for each sequence that there is room for
REWIND = 16  # tokens before the end of a prompt where a state is saved: the next prompt may differ there


class KnownStates:
    """The states of a machine with recurrent ops, by the ids that they have seen."""

    def __init__(self, states: States, max_sequences: int) -> None:
        self._states = states
        self._most = SAVED_STATES * max_sequences
        self._live: dict[int, list[int]] = {}  # by slot: the ids that the state of a free slot has seen
        self.saved: list[tuple[list[int], SavedState]] = []  # the newest last

    def choose(self, ids: Sequence[int], most: int, free: Sequence[int]) -> tuple[int, int]:
        """The best of the `free` slots for a sequence of `ids`, and how many of them it can go on behind: at
        most `most`, those that the cache has. The state is then in the slot."""
        fits = [slot for slot in free if self._fits(self._live.get(slot), ids, most)]
        live = max(fits, key=lambda slot: len(self._live[slot]), default=-1)
        length = len(self._live[live]) if live >= 0 else 0
        found = [saved for saved in self.saved if self._fits(saved[0], ids, most)]
        best = max(found, key=lambda saved: len(saved[0]), default=None)
        if best is not None and len(best[0]) > length:
            slot = self._least_useful(free)
            self._live.pop(slot, None)
            self._states.restore(slot, best[1])
            return slot, len(best[0])
        slot = live if live >= 0 else self._least_useful(free)
        self._live.pop(slot, None)
        return slot, length

    def copy(self, source: int, free: Sequence[int]) -> int:
        """The least useful of the `free` slots, with the state that is in the slot `source`."""
        slot = self._least_useful(free)
        self._live.pop(slot, None)
        self._states.restore(slot, self._states.save(source))
        return slot

    def _least_useful(self, free: Sequence[int]) -> int:
        """A free slot whose state is not known, else the one that has been free for the longest."""
        unknown = [slot for slot in free if slot not in self._live]
        return unknown[0] if unknown else next(slot for slot in self._live if slot in free)

    @staticmethod
    def _fits(known: list[int] | None, ids: Sequence[int], most: int) -> bool:
        return known is not None and len(known) <= most and common_length(known, ids) == len(known)

    def save(self, slot: int, ids: list[int]) -> None:
        """Keep a copy of the state of a slot, which has seen `ids`; the oldest copy goes."""
        self.keep(ids, self._states.save(slot))

    def known_length(self, ids: Sequence[int], most: int) -> int:
        """How many of `ids` the best state for them has seen, at most `most`."""
        all_known = [*(known for known, _ in self.saved), *self._live.values()]
        return max((len(known) for known in all_known if self._fits(known, ids, most)), default=0)

    def known(self, ids: Sequence[int], most: int) -> tuple[SavedState, ...]:
        """Copies of the states that have seen the most of `ids`, at most `most` of them; the longest last."""
        found = {len(known): saved for known, saved in self.saved if self._fits(known, ids, most)}
        for slot, known in self._live.items():
            if len(known) not in found and self._fits(known, ids, most):
                found[len(known)] = self._states.save(slot)
        return tuple(found[length] for length in sorted(found)[-SAVED_STATES:])

    def keep(self, ids: list[int], state: SavedState) -> None:
        """Keep a copy of a state that has seen `ids`; the oldest copy goes."""
        del self.saved[: 1 - self._most]
        self.saved.append((ids, state))

    def leave(self, slot: int, ids: list[int]) -> None:
        """Note that a sequence gives its slot back, whose state has seen `ids` unless a step broke off."""
        self._live.pop(slot, None)
        if ids and int(self._states.lengths[slot]) == len(ids):
            self._live[slot] = ids

    def seen(self, slot: int) -> int:
        """The number of tokens that the state in a slot has seen; UNKNOWN after a step that broke off."""
        return int(self._states.lengths[slot])

    def forget(self) -> None:
        """Forget all states."""
        self._live.clear()
        self.saved.clear()
