"""Lowers a Program for the CPU machine: repacked weights, compiled kernels, and lists of instructions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ....quant.block import QTensor
from ....quant.jit.kernel_cache import kernel_cache
from ....quant.jit.levels import LANES
from ....quant.jit.precompile import compile_kernels
from ....quant.mapped_file import populate
from ... import ops
from ..abi.instructions import Progress
from ..abi.sizes import FEW_ROWS
from ..arena import Arena, Region
from ..kept_panels import KeptPanels, cut_panels, panel_bytes
from ..kernels import FIRST_LOGITS, GROUP_MAXIMA, TEAM_KERNELS
from ..matrix_tiles import usable_tiles
from ..simd.panels import aligned_empty, panel_row_bytes, repack, repacked_bytes
from .attention_record import sequence_ends
from .base import BaseLowering, MachineConfig
from .decode import DecodeLowering
from .few_rows import FewRowsLowering
from .matrix_tiles import TilePrefillLowering
from .prefill import PrefillLowering
from .weight_panels import WeightPanels, in_kernel_format, weight_matrices

REPACK_BYTES = 2 << 20  # bytes of a weight that are repacked at a time


@dataclass(frozen=True)
class StepList:
    """A list of instructions to run in a step."""

    instructions: np.ndarray  # INSTRUCTION [n]
    names: list[str]  # a readable name for each instruction
    boundary_out: list[Region]  # where the step leaves `Program.boundary_out`
    result: np.ndarray  # where it leaves `Program.logits`, float32 [rows, width]
    row_tile: int  # the fields of STEP
    expert_tile: int
    starts: list[int]  # of each op of the program the first instruction, and the number of instructions

    @classmethod
    def of(cls, lowering: BaseLowering) -> StepList:
        """The list that a lowering makes; its kernels are compiled if they are not yet."""
        made = lowering.instructions
        result = lowering.result_rows()
        tiles = lowering.row_tile, lowering.expert_tile
        return cls(made.table(), made.names, lowering.boundary_out, result, *tiles, lowering.starts)

    def piece(self, start: int, end: int) -> np.ndarray:
        """The instructions of ops number `start` to `end` - 1, to be run by themselves.

        Only where ops are lowered in their order, as they are for prefill.
        """
        piece = self.instructions[self.starts[start] : self.starts[end]].copy()
        if len(piece):
            piece[-1]["barrier"] = True  # thread 0 returns only when all threads have finished
        return piece


@dataclass
class Lowered:
    """A lowered program: the lists of instructions, and the memory that they point into."""

    prefill: StepList  # for steps of any number of rows
    decode: StepList  # for steps of one row
    _lower_few_rows: Callable[[], StepList]
    arena: Arena
    file_lookups: list[tuple[ops.Embed, np.ndarray]]  # embeddings that the machine looks up before each step
    length_dependent: list[tuple[ops.RoPE, np.ndarray]]  # float32 [rows, pairs] to fill before each step
    sequence_ends: np.ndarray | None  # int32 [rows] to fill before each step; None: attention is causal

    @cached_property
    def few_rows(self) -> StepList:
        """For steps of up to FEW_ROWS rows. It is made at the first such step, to keep it out of the start of
        a program that reads one prompt and writes one answer."""
        return self._lower_few_rows()

    def steps_of(self, n_rows: int) -> StepList:
        """The list for steps of `n_rows` rows."""
        if n_rows == 1:
            return self.decode
        return self.few_rows if n_rows <= FEW_ROWS else self.prefill


@dataclass
class Lowering:
    """Lowers one program by `lower()`.

    `release` is called with parts of weights whose bytes in the file are no longer needed, `progress` with
    (stage, done, total). `kept` has the panels on disk, or keeps them there. The buffers are in
    `arena`, or in a new one.
    """

    program: ops.Program
    config: MachineConfig
    release: Callable[[QTensor], None] | None = None
    progress: Progress | None = None
    kept: KeptPanels | None = None
    arena: Arena | None = None
    _stopped: bool = field(default=False, init=False)

    def lower(self) -> Lowered:
        """Lower every op. Weights are repacked on all threads while kernels are compiled."""
        arena = self.arena or Arena(self.config.n_threads)
        for buffer in self.program.buffers:
            arena.rows(buffer.name, self.config.rows(buffer), 4 * buffer.width)
        of_prompts = TilePrefillLowering if usable_tiles() else PrefillLowering
        weights = {id(weight): in_kernel_format(op, weight) for op, weight in weight_matrices(self.program)}
        ordered = [*weights.values()]
        found = self.kept.read(ordered) if self.kept else None
        # One allocation, which the operating system can back by huge pages.
        memory = arena.keep(aligned_empty(panel_bytes(ordered)) if found is None else found)
        panels = dict(zip(weights, cut_panels(ordered, memory), strict=True))
        fill = self._repack if found is None else self._map
        pool = ThreadPoolExecutor(self.config.n_threads)
        try:
            repacking = {pool.submit(fill, w, panels[k]): w.n_bytes for k, w in weights.items()}
            matrices = {k: WeightPanels.of(w, panels[k].ctypes.data) for k, w in weights.items()}
            prefill, decode, few_rows = (
                kind(self.program, self.config, arena, matrices)
                for kind in (of_prompts, DecodeLowering, FewRowsLowering)
            )
            self._compile(prefill, decode, few_rows)
            done = 0
            for future in as_completed(repacking):
                future.result()
                done += repacking[future]
                self._report("repacking weights", done, sum(repacking.values()))
        finally:
            self._stopped = True
            pool.shutdown(cancel_futures=True)
        if self.kept and found is None and len(memory):
            self.kept.write(ordered, memory, lambda i, n: self._report("keeping the weights", i, n))
        length_dependent = prefill.length_dependent | decode.length_dependent
        embeds = [op for op in self.program.ops if isinstance(op, ops.Embed) and id(op.table) not in matrices]
        return Lowered(
            StepList.of(prefill),
            StepList.of(decode),
            lambda: StepList.of(few_rows),
            arena,
            [(op, arena.floats(op.out.name)) for op in embeds],
            [(op, arena.floats(name)) for name, op in length_dependent.items()],
            self._sequence_ends(arena),
        )

    def _sequence_ends(self, arena: Arena) -> np.ndarray | None:
        """What `Lowered.sequence_ends` is."""
        if all(op.causal for op in self.program.ops if isinstance(op, ops.Attend)):
            return None
        return arena.floats(sequence_ends(arena, self.config.max_rows).name)[0].view(np.int32)

    def _compile(self, prefill: BaseLowering, decode: BaseLowering, few_rows: BaseLowering) -> None:
        """Compile and load the kernels of prefill and decode.

        If any of them is not in the cache, those of few rows are compiled as well, lest they interrupt a
        conversation later on. Otherwise they are there too, and are loaded when they are needed.
        """
        of_steps = *decode.instructions.kernels, *prefill.instructions.kernels
        kernels = [*of_steps, GROUP_MAXIMA, FIRST_LOGITS, *TEAM_KERNELS]
        if any(not kernel_cache().has(kernel.key) for kernel in kernels):
            kernels += few_rows.instructions.kernels
        compile_kernels(kernels, lambda i, n: self._report("compiling kernels (only once)", i, n))

    def _report(self, stage: str, done: int, total: int) -> None:
        """Call `progress`, if there is one."""
        if self.progress is not None:
            self.progress(stage, done, total)

    def _repack(self, weight: QTensor, panels: np.ndarray) -> None:
        """Fill the panels of a weight part by part, so that memory never holds all of file and panels."""
        n_rows, row_bytes = len(weight.data), panel_row_bytes(weight)
        rows = max(1, REPACK_BYTES // (LANES * row_bytes)) * LANES
        for first in range(0, n_rows, rows):
            data = weight.data[first : first + rows]
            if isinstance(data, np.ndarray):
                populate(data)
            part = replace(weight, shape=(len(data), weight.shape[1]), data=data)
            start = first * row_bytes
            repack(part, LANES, panels[start : start + repacked_bytes(part, LANES)])
            if self.release is not None:
                self.release(part)
            if self._stopped:  # lowering was interrupted or failed
                return

    def _map(self, unused_weight: QTensor, panels: np.ndarray) -> None:
        """Map the panels of a weight that are on disk, part by part."""
        for first in range(0, len(panels), REPACK_BYTES):
            if not self._stopped:
                populate(panels[first : first + REPACK_BYTES])
