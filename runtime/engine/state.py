"""The recurrent state of sequences, beside the paged cache: of one size a sequence, and not to be rewound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..ops.recurrent import StateLayer
from .cache import Batch

UNKNOWN = -1


@dataclass(frozen=True)
class SavedState:
    """A sequence's state after its first `length` positions."""

    length: int
    arrays: tuple[np.ndarray, ...]


class States(Protocol):
    """What an engine does with the states of a machine: see SequenceStates."""

    @property
    def layers(self) -> tuple[StateLayer, ...]: ...

    @property
    def lengths(self) -> np.ndarray: ...

    def save(self, sequence: int) -> SavedState: ...

    def restore(self, sequence: int, saved: SavedState) -> None: ...


class SequenceStates:
    """The states of up to `max_sequences` sequences of a model with these `layers`; there may be none.

    `arrays[i]`, float32 [max_sequences, *layers[i].shape], belongs to the machine's kernels. `lengths`,
    int [max_sequences]: after how many positions each sequence's state is the one that stands there;
    UNKNOWN (-1) after a step that did not come to its end. Unless `held`, the arrays lie elsewhere, and
    `clear`, `read` and `write` are another class's.
    """

    def __init__(self, layers: Sequence[StateLayer], max_sequences: int = 1, held: bool = True) -> None:
        self.layers = tuple(layers)
        self.arrays = [np.zeros((max_sequences, *layer.shape), np.float32) for layer in layers if held]
        self.lengths = np.zeros(max_sequences, np.int64)

    def begin(self, batch: Batch) -> None:
        """Before a step: sequences whose first row is position 0 start from zeros.

        Raises ValueError if another sequence's rows do not go on where its state stopped.
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
        """After a step that came to its end."""
        if self.layers:
            np.maximum.at(self.lengths, batch.sequences, batch.positions + 1)

    def save(self, sequence: int) -> SavedState:
        """A copy of a sequence's state. Raises ValueError if it is not known."""
        length = int(self.lengths[sequence])
        if length == UNKNOWN:
            raise ValueError(f"the state of sequence {sequence} is not known")
        return SavedState(length, self.read(sequence))

    def restore(self, sequence: int, saved: SavedState) -> None:
        """Make `saved` a sequence's state."""
        self.lengths[sequence] = UNKNOWN  # Ctrl-C may come in between
        self.write(sequence, saved.arrays)
        self.lengths[sequence] = saved.length

    def clear(self, sequence: int) -> None:
        """Zeros for a sequence."""
        for array in self.arrays:
            array[sequence] = 0

    def read(self, sequence: int) -> tuple[np.ndarray, ...]:
        """Copies of a sequence's arrays."""
        return tuple(array[sequence].copy() for array in self.arrays)

    def write(self, sequence: int, arrays: Sequence[np.ndarray]) -> None:
        """Make copies of these a sequence's arrays."""
        for array, kept in zip(self.arrays, arrays, strict=True):
            array[sequence] = kept


def state_bytes(layers: Sequence[StateLayer]) -> int:
    """Bytes of the state of one sequence."""
    return sum(4 * int(np.prod(layer.shape, dtype=np.int64)) for layer in layers)
