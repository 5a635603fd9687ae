"""A program in two parts on two machines: the first layers on one, the others and the logits on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Protocol

import numpy as np

from ...quant.block import QTensor
from ..ops import Attend, CausalConv, DeltaRule, Op, Program, StateScan
from ..ops.buffer import buffers_of
from .cache import Batch, PageTable
from .engine import NONE, Machine
from .state import UNKNOWN, SavedState, States
from .top_k import TopK


class Front(Machine, Protocol):
    """What runs the first layers."""

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """What the latest step, of so many rows, left in `boundary_out`, float32 [n_rows, width] each, until
        the next step."""
        ...

    def close(self) -> None: ...


class Back(Machine, Protocol):
    """What runs the others."""

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Contents of the program's `boundary_in` for the next step, float32 [rows, width] each."""
        ...

    def close(self) -> None: ...


def cuts(program: Program) -> list[int]:
    """The layers that the second part of a program may begin with: none of the first part attends to what
    one of the second keeps, nor the other way round."""
    kept = [_cache_layers(program.ops[a:b]) for a, b in zip(program.layers, program.layers[1:], strict=False)]
    return [i for i in range(1, len(kept)) if not set().union(*kept[:i]) & set().union(*kept[i:])]


def split(program: Program, layer: int) -> tuple[Program, Program]:
    """The layers in front of `layer`, one of `cuts`, and the others.

    The residual buffers at the cut are `boundary_out` of the first part and `boundary_in` of the second. The
    first part has no logits; the first residual buffer stands in for them.
    """
    at, residual = program.layers[layer], program.residual
    first = _part(program, program.ops[:at], program.layers[: layer + 1])
    second = _part(program, program.ops[at:], tuple(start - at for start in program.layers[layer:]))
    return replace(first, logits=residual[0], boundary_out=residual), replace(second, boundary_in=residual)


def _part(program: Program, ops: Sequence[Op], layers: tuple[int, ...]) -> Program:
    caches, states = _cache_layers(ops), _state_layers(ops)
    return Program(
        tuple(_renumbered(op, caches, states) for op in ops),
        buffers_of(ops),
        tuple(program.cache_layers[i] for i in caches),
        program.logits,
        tuple(program.state_layers[i] for i in states),
        layers,
        program.residual,
    )


def _cache_layers(ops: Sequence[Op]) -> list[int]:
    return sorted({op.layer for op in ops if isinstance(op, Attend)})


def _state_layers(ops: Sequence[Op]) -> list[int]:
    return sorted({op.state for op in ops if isinstance(op, CausalConv | DeltaRule | StateScan)})


def _renumbered(op: Op, caches: list[int], states: list[int]) -> Op:
    if isinstance(op, Attend):
        return replace(op, layer=caches.index(op.layer))
    if isinstance(op, CausalConv | DeltaRule | StateScan):
        return replace(op, state=states.index(op.state))
    return op


class SplitMachine:
    """Two machines for the two parts of a program; calls and results as of one machine.

    Each has the cache and the states of its own layers. Once a step what layers carry goes from one to the
    other. Not for use from two threads at once.
    """

    def __init__(self, front: Front, back: Back) -> None:
        self.front, self.back = front, back
        self.max_rows = min(front.max_rows, back.max_rows)
        self.max_logits = min(self.max_rows, back.max_logits)
        self.states = JoinedStates(front.states, back.states)

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step.

        Raises as the machines do.
        """
        self._begin(batch, table)
        return self.back.step(batch, table)

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """The same step; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        self._begin(batch, table)
        return self.back.top_k(batch, table, k, n_tokens)

    def _begin(self, batch: Batch, table: PageTable) -> None:
        self.front.step(replace(batch, logits_indices=NONE), table)
        self.back.write_boundary(self.front.read_boundary(len(batch.tokens)))

    def close(self) -> None:
        """Close both machines."""
        self.front.close()
        self.back.close()


class JoinedStates:
    """The recurrent states of two machines as those of one."""

    def __init__(self, front: States, back: States) -> None:
        self._front, self._back = front, back
        self.layers = (*front.layers, *back.layers)

    @property
    def lengths(self) -> np.ndarray:
        """As of one machine; where a step came to its end on the first only, nothing is known."""
        used = [states.lengths for states in (self._front, self._back) if states.layers]
        if not used:
            return self._front.lengths
        return np.where(used[0] == used[-1], used[0], UNKNOWN)

    def save(self, sequence: int) -> SavedState:
        parts = [states.save(sequence) for states in (self._front, self._back) if states.layers]
        length = parts[0].length if parts else 0
        return SavedState(length, tuple(array for part in parts for array in part.arrays))

    def restore(self, sequence: int, saved: SavedState) -> None:
        n = len(self._front.layers)
        for states, arrays in ((self._front, saved.arrays[:n]), (self._back, saved.arrays[n:])):
            if states.layers:
                states.restore(sequence, SavedState(saved.length, arrays))


def weight_bytes(program: Program) -> int:
    """Bytes of all matrices of a program, each once."""
    found: dict[int, int] = {}
    for op in program.ops:
        for field in fields(op):
            value = getattr(op, field.name)
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, QTensor):
                    found[id(tensor)] = tensor.n_bytes
    return sum(found.values())
