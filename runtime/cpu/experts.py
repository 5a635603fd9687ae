"""Mixtures of experts on the CPU, for a program whose other ops run on another machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...quant.block import QTensor
from ..ops import Buffer, MoE, Program
from ..ops.buffer import buffers_of
from .abi.records import EXCHANGE, INSTRUCTION
from .arena import Arena
from .kernels import ANSWER_ROWS, AWAIT_ROWS
from .machine import CpuMachine, default_threads
from .team import Team

IDLE_SECONDS = 2e-3  # that threads spin behind a step, while the other machine ends it and begins the next
PATIENCE = 1 << 26  # reads of a flag, some ten seconds, before a thread gives the other machine up


class MixtureRows(NamedTuple):
    """What a mixture reads and writes, float32 [rows, width] each: its input, the numbers and weights of the
    experts that the router has chosen, and its output."""

    x: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    out: np.ndarray


class CpuExperts:
    """The experts of `mixtures`, repacked for the CPU, and a team of threads for all of them.

    `max_rows` is the most rows of a step; `threads`, `release` and `progress` are as for CpuMachine. All
    mixtures have their rows in one memory, which `allocate` gives (uint8 [bytes]), such as memory that a
    GPU reads and writes, too. Not thread-safe.

    Mixtures are run one by one, or all in turn by `exchange`. Then whoever writes their rows tells that by
    `asked`, the number of the last exchange whose rows are there, and is told by `answered`, the number of
    the last exchange whose output is there. `report` is for its errors. All are int64 [1].
    """

    def __init__(
        self,
        mixtures: Sequence[MoE],
        max_rows: int,
        threads: int | None = None,
        release: Callable[[QTensor], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self._max_rows = max_rows
        self._allocate = allocate or (lambda n_bytes: np.zeros(n_bytes, np.uint8))
        self._buffers: dict[tuple[str, int], np.ndarray] = {}  # by what they are for and their width
        self.asked, self.answered, self.report = self._zeros(3, 64).view(np.int64)[:, :1]
        self._first, self._failed = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._team = Team(threads or default_threads(), IDLE_SECONDS)
        self._machines: dict[int, CpuMachine] = {}  # by `id` of the op
        self._arenas: dict[str, Arena] = {}  # mixtures of one shape compute in the same memory
        self._rows = {id(mixture): self._rows_of(mixture) for mixture in mixtures}
        self._exchanges = [self._exchange_of(i, mixture) for i, mixture in enumerate(mixtures)]
        # The instructions of `exchange`, by `id` of those of a mixture.
        self._tables: dict[int, np.ndarray] = {}
        try:
            for mixture in mixtures:
                self._machines[id(mixture)] = CpuMachine(
                    program_of(mixture),
                    1,
                    max_rows=max_rows,
                    release=release,
                    progress=progress,
                    team=self._team,
                    arena=self._arena(mixture),
                )
            self._instructions(1)
        except BaseException:
            self.close()
            raise

    @property
    def n_threads(self) -> int:
        """Threads of the team."""
        return self._team.n_threads

    def __contains__(self, mixture: MoE) -> bool:
        return id(mixture) in self._rows

    def rows(self, mixture: MoE) -> MixtureRows:
        """The memory of the rows that a mixture reads and writes."""
        return self._rows[id(mixture)]

    def run(self, mixture: MoE, n_rows: int) -> None:
        """Compute a mixture's output of the first `n_rows` rows."""
        self._machines[id(mixture)].transform(n_rows, n_rows)

    def exchange(self, first: int, n_rows: int, n_logits: int) -> bool:
        """Compute all mixtures in turn, each as soon as its rows are there, in a step of so many rows.
        Mixture number i has the exchange number `first` + i, more than that of any exchange before it.

        False if rows have not come in a long time; they count as answered then.
        """
        self._first[0], self._failed[0] = first, 0
        machine = next(iter(self._machines.values()))
        machine.transform(n_rows, n_logits, self._instructions(n_rows))
        return not self._failed[0]

    def let_go(self, last: int) -> None:
        """Answer all exchanges up to this number, whatever the output is."""
        self.answered[0] = last

    def close(self) -> None:
        """End the threads and free the memory. A later `run` raises RuntimeError."""
        for machine in self._machines.values():
            machine.close()
        self._team.close()

    def _zeros(self, n_rows: int, row_bytes: int) -> np.ndarray:
        memory = self._allocate(n_rows * row_bytes)
        memory[:] = 0
        return memory.reshape(n_rows, row_bytes)

    def _rows_of(self, mixture: MoE) -> MixtureRows:
        # Kernels read and write whole vectors of 64 bytes of x and the output.
        def shared(name: str, buffer: Buffer, step: int) -> np.ndarray:
            key = name, buffer.width
            if key not in self._buffers:
                row_bytes = -(-4 * buffer.width // step) * step
                self._buffers[key] = self._zeros(self._max_rows, row_bytes).view(np.float32)
            return self._buffers[key]

        x = shared("x", mixture.x, 64)
        out = x if mixture.out is mixture.x else shared("out", mixture.out, 64)
        weights = shared("weights", mixture.routing_weights, 4)
        return MixtureRows(x, shared("experts", mixture.experts, 4), weights, out)

    def _arena(self, mixture: MoE) -> Arena:
        """The arena of mixtures of this one's shape, in which the rows that it shares are."""
        buffers = mixture.x, mixture.experts, mixture.routing_weights, mixture.out
        matrices = [each[0].shape for each in (mixture.gate, mixture.up, mixture.down) if each]
        ranks = [low.down[0].shape for low in mixture.lows]
        shape = repr((buffers, len(mixture.down), matrices, ranks))
        if shape not in self._arenas:
            given = {b.name: rows for b, rows in zip(buffers, self.rows(mixture), strict=True)}
            self._arenas[shape] = Arena(self.n_threads, given)
        return self._arenas[shape]

    def _exchange_of(self, index: int, mixture: MoE) -> np.ndarray:
        """EXCHANGE [1] of the mixture of this number."""
        record = np.zeros(1, EXCHANGE)
        record["asked"], record["answered"] = self.asked.ctypes.data, self.answered.ctypes.data
        record["first"], record["index"] = self._first.ctypes.data, index
        record["failed"], record["patience"] = self._failed.ctypes.data, PATIENCE
        record["on_logits_rows"], record["give_way"] = mixture.x.logits_rows, self._team.give_way
        return record

    def _instructions(self, n_rows: int) -> np.ndarray:
        """INSTRUCTION [n] of all mixtures in a step of so many rows: of each a wait, its own, its answer."""
        steps = [machine.steps_of(n_rows) for machine in self._machines.values()]
        key = id(steps[0].instructions)
        if key not in self._tables:
            parts = []
            for (before, behind), step in zip(map(_ends, self._exchanges), steps, strict=True):
                assert (step.row_tile, step.expert_tile) == (steps[0].row_tile, steps[0].expert_tile)
                parts += [before, step.instructions, behind]
            table = np.concatenate(parts)
            table[-1]["barrier"] = True  # thread 0 returns only when all threads have finished
            self._tables[key] = table
        return self._tables[key]


def _ends(exchange: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """INSTRUCTION [1] in front of a mixture, and behind it."""
    ends = np.zeros((2, 1), INSTRUCTION)
    ends["kernel"] = [[AWAIT_ROWS.address], [ANSWER_ROWS.address]]
    ends["arguments"] = exchange.ctypes.data
    return ends[0], ends[1]


def program_of(mixture: MoE) -> Program:
    """The op by itself: what it reads comes from outside, what it writes stays for outside."""
    return Program(
        (mixture,),
        buffers_of([mixture]),
        cache_layers=(),
        logits=mixture.out,
        layers=(0, 1),
        residual=(mixture.out,),
        boundary_in=(mixture.x, mixture.experts, mixture.routing_weights),
        boundary_out=(mixture.out,),
    )
