"""The recurrent state of sequences: it has a fixed size, and unlike the KV cache it cannot be truncated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..ops import StateLayer
from .cache import Batch

UNKNOWN = -1  # length of a state after a step that was interrupted


@dataclass(frozen=True)
class SavedState:
    """A sequence's state after its first `length` positions."""

    length: int
    arrays: tuple[np.ndarray, ...]


class States(Protocol):
    """The recurrent states of a machine, as an engine uses them; see SequenceStates."""

    @property
    def layers(self) -> tuple[StateLayer, ...]: ...

    @property
    def lengths(self) -> np.ndarray: ...

    def save(self, sequence: int) -> SavedState: ...

    def restore(self, sequence: int, saved: SavedState) -> None: ...


class SequenceStates:
    """The states of up to `max_sequences` sequences of a model with these `layers`; there may be none.

    `arrays[i]`, float32 [max_sequences, *layers[i].shape], is read and written by the machine's kernels.
    `lengths`, int [max_sequences], is the number of positions that each sequence's state has seen, or UNKNOWN
    after a step that was interrupted. A subclass whose arrays are in another memory passes `allocate` = False
    and overrides `clear`, `read` and `write`.
    """

    def __init__(self, layers: Sequence[StateLayer], max_sequences: int = 1, allocate: bool = True) -> None:
        self.layers = tuple(layers)
        self.arrays = [np.zeros((max_sequences, *layer.shape), np.float32) for layer in layers if allocate]
        self.lengths = np.zeros(max_sequences, np.int64)

    def begin(self, batch: Batch) -> None:
        """Call before a step. The state of a sequence whose first row is at position 0 is cleared.

        Raises ValueError if the rows of another sequence do not continue where its state ends.
        """
        if not self.layers or not len(batch.tokens):
            return
        if int(batch.sequences.max()) >= len(self.lengths):
            raise ValueError(f"the machine has states for {len(self.lengths)} sequences, and no more")
        for sequence in np.unique(batch.sequences):
            positions = batch.positions[batch.sequences == sequence]
            first, length = int(positions[0]), int(self.lengths[sequence])
            if (np.diff(positions) != 1).any():
                raise ValueError(f"positions of sequence {sequence} are not consecutive")
            if first not in (0, length):
                raise ValueError(
                    f"sequence {sequence} goes on at {first}, but its state is of {length} positions"
                )
            if not first:
                self.clear(sequence)
        self.lengths[batch.sequences] = UNKNOWN

    def end(self, batch: Batch) -> None:
        """Call after a complete step."""
        if self.layers:
            np.maximum.at(self.lengths, batch.sequences, batch.positions + 1)

    def save(self, sequence: int) -> SavedState:
        """A copy of a sequence's state. Raises ValueError after an interrupted step."""
        length = int(self.lengths[sequence])
        if length == UNKNOWN:
            raise ValueError(f"the state of sequence {sequence} is not known")
        return SavedState(length, self.read(sequence))

    def restore(self, sequence: int, saved: SavedState) -> None:
        """Set a sequence's state to `saved`."""
        self.lengths[sequence] = UNKNOWN  # in case Ctrl-C interrupts the copy
        self.write(sequence, saved.arrays)
        self.lengths[sequence] = saved.length

    def clear(self, sequence: int) -> None:
        """Set a sequence's state to zero."""
        for array in self.arrays:
            array[sequence] = 0

    def read(self, sequence: int) -> tuple[np.ndarray, ...]:
        """Copies of a sequence's arrays, one a layer."""
        return tuple(array[sequence].copy() for array in self.arrays)

    def write(self, sequence: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy `arrays`, one a layer, to a sequence's state."""
        for array, saved in zip(self.arrays, arrays, strict=True):
            array[sequence] = saved


def state_bytes(layers: Sequence[StateLayer]) -> int:
    """The size in bytes of the state of one sequence."""
    return sum(4 * int(np.prod(layer.shape, dtype=np.int64)) for layer in layers)
