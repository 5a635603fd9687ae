"""The inputs of a step, as its STEP record has them.

A decode step of a small model takes a few milliseconds, and what is done between two of them runs out of cold
caches, since the weights went through these. So the record is written as a flat list of numbers, and one row
has memory of its own, whose addresses are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.cache import Batch, PageTable
from .abi.records import STEP
from .lowering.lower import StepList

_NAMES = STEP.names or ()
_INSTRUCTIONS, _ROWS, _TILES, _BLOCKS = map(_NAMES.index, ("instructions", "n_rows", "row_tile", "blocks"))


class StepInputs:
    """Writes the batch and the instructions of a step into a STEP record, `step` [1]."""

    def __init__(self, step: np.ndarray) -> None:
        self._words = step.view(np.int64).data
        row = np.zeros(4, np.int32)  # token, sequence, position and index of logits of the only row
        self._held = (row,)
        self._row = row.data
        self._row_addresses = [row.ctypes.data + 4 * i for i in range(4)]
        self._instructions: np.ndarray | None = None  # those whose addresses the record has
        self._blocks: np.ndarray | None = None
        self._single: StepList | None = None  # whose step of one row with logits the record has

    def set_instructions(self, instructions: np.ndarray) -> None:
        """Let the step run `instructions`, INSTRUCTION [n]."""
        if instructions is not self._instructions:
            self._words[_INSTRUCTIONS] = instructions.ctypes.data
            self._words[_INSTRUCTIONS + 1] = len(instructions)
            self._instructions = instructions

    def forget(self) -> None:
        """Call where something else writes rows into the record."""
        self._single = None

    def fill(self, batch: Batch, table: PageTable, run: StepList) -> Sequence[np.ndarray]:
        """Set the rows of the step, which are valid. What is returned must live until it has run."""
        n, n_logits = len(batch.tokens), len(batch.logits_indices)
        held: Sequence[np.ndarray]
        single = run if n == n_logits == 1 else None
        if n == 1 and n_logits <= 1:
            row, held, addresses = self._row, self._held, self._row_addresses
            row[0], row[1], row[2] = batch.tokens.item(), batch.sequences.item(), batch.positions.item()
            if single is not None and single is self._single and table.blocks is self._blocks:
                return held  # the rest is as it was
        else:
            inputs = (batch.tokens, batch.sequences, batch.positions, batch.logits_indices)
            held = [np.ascontiguousarray(a, np.int32) for a in inputs]
            addresses = [a.ctypes.data for a in held]
        words, self._single = self._words, single
        words[_ROWS], words[_ROWS + 1] = n, n_logits
        for i, address in enumerate(addresses, _ROWS + 2):
            words[i] = address
        words[_TILES], words[_TILES + 1] = run.row_tile, run.expert_tile
        if table.blocks is not self._blocks:
            words[_BLOCKS], words[_BLOCKS + 1] = table.blocks.ctypes.data, table.blocks.strides[0]
            self._blocks = table.blocks
        return held
