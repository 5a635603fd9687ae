"""From a Program to the instructions of the CPU machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

import numpy as np

from ....quant.block import QTensor
from ....quant.jit.levels import LANES
from ....quant.jit.precompile import compile_kernels
from ... import ops
from ..abi.instructions import Progress
from ..arena import Memory, Region
from ..kernels import TEAM_KERNELS
from ..simd.panels import aligned_empty, repack, repacked_bytes
from .decode import OneRow
from .prefill import ManyRows
from .weight_panels import Layout, Matrix, for_kernels, matrices_of

REPACK_BYTES = 2 << 20  # of a weight at once


@dataclass
class Lowered:
    """The finished lists, and everything that their addresses point into."""

    many: np.ndarray  # INSTRUCTION [n], for steps of any number of rows
    one: np.ndarray  # INSTRUCTION [n], for steps of one row
    names: tuple[list[str], list[str]]  # of the instructions in either list, for people
    memory: Memory
    lookups: list[tuple[ops.Embed, np.ndarray]]  # from tables that stay in the file, done before each step
    by_length: list[tuple[ops.RoPE, np.ndarray]]  # float32 [rows, pairs], filled before each step
    boundary_out: tuple[list[Region], list[Region]]  # where either list leaves `Program.boundary_out`


@dataclass
class Lowering:
    """Translates one program; `lower()` does it."""

    program: ops.Program
    layout: Layout
    release: Callable[[QTensor], None] | None = None
    progress: Progress | None = None
    _stopped: bool = field(default=False, init=False)

    def lower(self) -> Lowered:
        """Lower every op. Weights are repacked on all threads while kernels are compiled."""
        memory = Memory(self.layout.n_threads)
        for buffer in self.program.buffers:
            memory.rows(buffer.name, self.layout.rows(buffer), 4 * buffer.width)
        weights = {id(weight): for_kernels(op, weight) for op, weight in matrices_of(self.program)}
        panels = self._panels(memory, weights.values())
        pool = ThreadPoolExecutor(self.layout.n_threads)
        try:
            repacking = {pool.submit(self._repack, w, panels[k]): w.n_bytes for k, w in weights.items()}
            matrices = {k: Matrix(weight, panels[k].ctypes.data) for k, weight in weights.items()}
            rows = [kind(self.program, self.layout, memory, matrices) for kind in (ManyRows, OneRow)]
            many, one = (r.instructions() for r in rows)
            by_length = rows[0].by_length | rows[1].by_length
            kernels = [*one.kernels, *many.kernels, *TEAM_KERNELS]
            compile_kernels(kernels, lambda i, n: self._report("compiling kernels (only once)", i, n))
            done = 0
            for future in as_completed(repacking):
                future.result()
                done += repacking[future]
                self._report("repacking weights", done, sum(repacking.values()))
        finally:
            self._stopped = True
            pool.shutdown(cancel_futures=True)
        embeds = [op for op in self.program.ops if isinstance(op, ops.Embed) and id(op.table) not in matrices]
        return Lowered(
            many.table(),
            one.table(),
            (many.names, one.names),
            memory,
            [(op, memory.floats(op.out.name)) for op in embeds],
            [(op, memory.floats(name)) for name, op in by_length.items()],
            (rows[0].boundary_out, rows[1].boundary_out),
        )

    def _report(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)

    def _panels(self, memory: Memory, weights: Iterable[QTensor]) -> dict[int, np.ndarray]:
        """Memory for every weight's panels in one piece, which the system can back by huge pages."""
        sizes = [(w, repacked_bytes(w, LANES)) for w in weights]
        arena = memory.keep(aligned_empty(sum(-(-size // 64) * 64 for _, size in sizes)))
        panels = {}
        for weight, size in sizes:
            panels[id(weight)], arena = arena[:size], arena[-(-size // 64) * 64 :]
        return panels

    def _repack(self, weight: QTensor, panels: np.ndarray) -> None:
        """Fill the weight's panels part by part, so that file and panels are never both whole in memory."""
        n_rows, row_bytes = weight.data.shape
        rows = max(1, REPACK_BYTES // (LANES * row_bytes)) * LANES
        for first in range(0, n_rows, rows):
            data = weight.data[first : first + rows]
            part = replace(weight, shape=(len(data), weight.shape[1]), data=data)
            start = first * row_bytes
            repack(part, LANES, panels[start : start + repacked_bytes(part, LANES)])
            if self.release is not None:
                self.release(part)
            if self._stopped:  # interrupted: nobody waits for the rest
                return
