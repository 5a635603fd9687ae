"""Layer split: a program on two machines, the first layers on one, the rest on the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np

from ...quant.block import QTensor
from ..ops import Attend, Buffer, CausalConv, DeltaRule, LowRankExperts, Op, Program, StateScan
from ..ops.buffer import buffers_of
from .cache import NO_LOGITS, Batch, PageTable
from .machine import Machine
from .observing import Observed, Tap
from .sampling.top_k import TopK
from .state import UNKNOWN, SavedState, States


class Front(Machine, Protocol):
    """The machine of the first layers."""

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """The `boundary_out` buffers after a step of `n_rows` rows, float32 [n_rows, width] each.

        They are valid until the next step.
        """
        ...

    def close(self) -> None: ...


class Back(Machine, Protocol):
    """The machine of the other layers."""

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Set the `boundary_in` buffers for the next step, float32 [rows, width] each."""
        ...

    def close(self) -> None: ...


def cuts(program: Program) -> list[int]:
    """The layers that the second part of a program may begin with: both parts have their own cache layers."""
    used = [_cache_layers(program.ops[a:b]) for a, b in zip(program.layers, program.layers[1:], strict=False)]
    return [i for i in range(1, len(used)) if not set().union(*used[:i]) & set().union(*used[i:])]


def split(program: Program, layer: int) -> tuple[Program, Program]:
    """The program of the layers in front of `layer`, one of `cuts`, and that of the other layers.

    The residual buffers at the cut are `boundary_out` of the first part and `boundary_in` of the second. The
    first part computes no logits; its `logits` is the first residual buffer. Parts can be split again.
    """
    at, residual = program.layers[layer], program.residual
    first = _part(program, program.ops[:at], program.layers[: layer + 1])
    second = _part(program, program.ops[at:], tuple(start - at for start in program.layers[layer:]))
    return (
        replace(first, logits=residual[0], boundary_in=program.boundary_in, boundary_out=residual),
        replace(second, boundary_in=residual, boundary_out=program.boundary_out),
    )


def split_at(program: Program, layers: Sequence[int]) -> list[Program]:
    """The parts of a program that begin at its first layer and at these, some of `cuts`, in order."""
    parts, rest, done = [], program, 0
    for layer in layers:
        first, rest = split(rest, layer - done)
        parts.append(first)
        done = layer
    return [*parts, rest]


def balanced_cuts(costs: Sequence[float], possible: Sequence[int], n: int) -> tuple[int, ...]:
    """The n - 1 of the `possible` cuts for which the costliest of n parts costs least, and among those the
    ones with the most even parts. `costs` are those of the layers. All cuts if there are not enough.
    """
    before, end = [0.0, *accumulate(costs)], len(costs)

    def extended(part: _Cuts, last: int, upto: int) -> _Cuts:
        cost = before[upto] - before[last]
        return _Cuts(max(part.most, cost), part.squares + cost * cost, (*part.cuts, last))

    # The best cuts of the layers in front of each cut, into one part, then two, …
    best = {cut: _Cuts(before[cut], before[cut] ** 2) for cut in possible}
    found: tuple[int, ...] = ()
    for _ in range(1, n):
        following: dict[int, _Cuts] = {}
        for upto in [*possible, end]:
            parts = [extended(part, last, upto) for last, part in best.items() if last < upto]
            if parts:
                following[upto] = min(parts)
        found = following.pop(end).cuts if end in following else found
        best = following
    return found


class _Cuts(NamedTuple):
    """Cuts, and the cost of the costliest part and the squares of all costs."""

    most: float
    squares: float
    cuts: tuple[int, ...] = ()


def _part(program: Program, ops: Sequence[Op], layers: tuple[int, ...]) -> Program:
    """The program of `ops`, with the cache and state layers that they use."""
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
    """The cache layers that `ops` use, in ascending order."""
    return sorted({op.layer for op in ops if isinstance(op, Attend)})


def _state_layers(ops: Sequence[Op]) -> list[int]:
    """The state layers that `ops` use, in ascending order."""
    return sorted({op.state for op in ops if isinstance(op, CausalConv | DeltaRule | StateScan)})


def _renumbered(op: Op, caches: list[int], states: list[int]) -> Op:
    if isinstance(op, Attend):
        return replace(op, layer=caches.index(op.layer))
    if isinstance(op, CausalConv | DeltaRule | StateScan):
        return replace(op, state=states.index(op.state))
    return op


def joined(first: Program, second: Program) -> Program:
    """The program that `split` gave as these two parts."""
    n, caches, states = len(first.ops), len(first.cache_layers), len(first.state_layers)

    def renumbered(op: Op) -> Op:
        if isinstance(op, Attend):
            return replace(op, layer=op.layer + caches)
        if isinstance(op, CausalConv | DeltaRule | StateScan):
            return replace(op, state=op.state + states)
        return op

    ops = (*first.ops, *map(renumbered, second.ops))
    return replace(
        second,
        ops=ops,
        buffers=buffers_of(ops),
        cache_layers=(*first.cache_layers, *second.cache_layers),
        state_layers=(*first.state_layers, *second.state_layers),
        layers=(*first.layers[:-1], *(n + start for start in second.layers)),
        boundary_in=first.boundary_in,
    )


class SplitMachine:
    """Two machines for the two parts of a program, with the interface of one machine.

    Each machine has the cache and the states of its own layers. Once a step the residual buffers are copied
    from the front to the back. Not thread-safe.
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
        """Run the rows of `batch`; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        self._begin(batch, table)
        return self.back.top_k(batch, table, k, n_tokens)

    @property
    def page_layout(self) -> str:
        """How a page's bytes are to be read: those of the front, then those of the back."""
        return f"{self.front.page_layout} + {self.back.page_layout}"

    def read_page(self, page: int) -> np.ndarray:
        """A copy of the keys and values of a page in all layers, uint8 [bytes of a page]."""
        front, back = self.front.read_page(page), self.back.read_page(page)
        return np.concatenate([front, back])

    def write_page(self, page: int, content: np.ndarray) -> None:
        """Set the keys and values of a page to what `read_page` gave."""
        n = len(self.front.read_page(page))
        self.front.write_page(page, content[:n])
        self.back.write_page(page, content[n:])

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page of the KV cache, in all layers."""
        self.front.copy_page(source, target)
        self.back.copy_page(source, target)

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page's keys and values, for each layer of the cache."""
        return (*self.front.page_bytes, *self.back.page_bytes)

    @property
    def kv_type(self) -> str:
        """The types of the numbers in the KV caches."""
        return " + ".join(dict.fromkeys((self.front.kv_type, self.back.kv_type)))

    @property
    def program(self) -> Program:
        """The whole program."""
        return joined(self.front.program, self.back.program)

    def observe(self, batch: Batch, table: PageTable, taps: Sequence[Tap]) -> Observed:
        """Run a step on both machines, with copies of what the taps ask for."""
        n = len(self.front.program.ops)
        handed = [Tap(n, buffer) for buffer in self.front.program.boundary_out]
        early = [tap for tap in taps if tap.at <= n]
        front = self.front.observe(replace(batch, logits_indices=NO_LOGITS), table, [*handed, *early])
        self.back.write_boundary([front.values[tap] for tap in handed])
        late = {Tap(tap.at - n, tap.buffer): tap for tap in taps if tap.at > n}
        back = self.back.observe(batch, table, list(late))
        values = {tap: front.values[tap] for tap in early}
        return Observed(back.logits, values | {late[tap]: rows for tap, rows in back.values.items()})

    def finish(self, at: int, values: Mapping[Buffer, np.ndarray]) -> np.ndarray:
        """The logits of rows whose buffers hold `values` in front of op number `at`."""
        return self.back.finish(at - len(self.front.program.ops), values)

    def _begin(self, batch: Batch, table: PageTable) -> None:
        self.front.step(replace(batch, logits_indices=NO_LOGITS), table)
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
        """The positions of each sequence's state; UNKNOWN after a step that only the front completed."""
        used = [states.lengths for states in (self._front, self._back) if states.layers]
        if not used:
            return self._front.lengths
        return np.where(used[0] == used[-1], used[0], UNKNOWN)

    def save(self, sequence: int) -> SavedState:
        """A copy of a sequence's state on both machines."""
        parts = [states.save(sequence) for states in (self._front, self._back) if states.layers]
        length = parts[0].length if parts else 0
        return SavedState(length, tuple(array for part in parts for array in part.arrays))

    def restore(self, sequence: int, saved: SavedState) -> None:
        """Set a sequence's state on both machines."""
        n = len(self._front.layers)
        for states, arrays in ((self._front, saved.arrays[:n]), (self._back, saved.arrays[n:])):
            if states.layers:
                states.restore(sequence, SavedState(saved.length, arrays))


def layer_bytes(program: Program) -> list[int]:
    """The bytes of matrices that a step reads for each layer, with those behind the last layer in its sum."""
    starts = [*program.layers[:-1], len(program.ops)]
    return [matrix_bytes(program.ops[a:b]) for a, b in pairwise(starts)]


def weight_bytes(program: Program, size: Callable[[QTensor], int] | None = None) -> int:
    """The size in bytes of all matrices of a program, each counted once: see `matrix_bytes`."""
    return matrix_bytes(program.ops, size)


def matrix_bytes(ops: Sequence[Op], size: Callable[[QTensor], int] | None = None) -> int:
    """The size in bytes of all matrices of some ops, each counted once.

    `size` is what a matrix takes where it is kept, if that is not as much as in a file.
    """
    sizes: dict[int, int] = {}
    for op in ops:
        for field in fields(op):
            value = getattr(op, field.name)
            if isinstance(value, LowRankExperts):
                value = (*value.down, *value.up)
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, QTensor):
                    sizes[id(tensor)] = size(tensor) if size else tensor.n_bytes
    return sum(sizes.values())
