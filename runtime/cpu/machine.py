"""The CPU machine: a program's instructions run by a standing team of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...quant.block import QTensor
from .. import ops
from ..engine.cache import PAGE_SIZE, Batch, PageTable
from ..engine.state import SequenceStates
from ..engine.top_k import TopK, top_k_of
from .abi.records import STEP
from .abi.sizes import CACHE_TYPES, KEYS
from .lowering.lower import Lowering
from .lowering.weight_panels import Layout, matrices_of
from .processors import default_threads
from .team import Team

LOGITS_BYTES = 64 << 20  # of logits that a step may give; touched only when so many are asked for


class CpuMachine:
    """Runs a Program with Numba kernels; same calls and results as ReferenceMachine, up to rounding.

    Weights are repacked when it is made; `release` is called with tensors, or parts of them, whose bytes
    in the file are not needed any more, and `progress` with what is being done, how much of it, of how
    much. `kv_type` is "f16", "f32", "q8_0", "q4_0" or "auto": f32 if all weights are floats, so that a
    float model is run as it is; else q8_0, or f16 for models whose keys 8 bits do not suit. `states` are
    those of recurrent ops, for `max_sequences` sequences. Not for use from two threads at once.
    """

    def __init__(
        self,
        program: ops.Program,
        n_pages: int,
        page_size: int = PAGE_SIZE,
        threads: int | None = None,
        kv_type: str = "auto",
        max_rows: int = 512,
        release: Callable[[QTensor], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        max_sequences: int = 1,
    ) -> None:
        if page_size % KEYS:
            raise ValueError(f"the CPU machine needs pages of a multiple of {KEYS} tokens, not {page_size}")
        self.program = program
        self.page_size = page_size
        self._n_pages = n_pages
        self.max_rows = max_rows
        self.max_logits = max(1, min(max_rows, LOGITS_BYTES // (4 * program.logits.width)))
        self.n_threads = threads or default_threads()
        self.states = SequenceStates(program.state_layers, max_sequences)
        self.kv_type = cache_type(program, kv_type).lower()
        layout = Layout(
            n_pages,
            page_size,
            self.n_threads,
            self.max_rows,
            self.max_logits,
            self.kv_type.upper(),
            tuple(self.states.arrays),
        )
        self._lowered = Lowering(program, layout, release, progress).lower()
        self._logits = self._lowered.memory.floats(program.logits.name)[:, : program.logits.width]
        self._team = Team(self.n_threads)
        self._step = np.zeros(1, STEP)
        self._step["n_threads"], self._step["page_size"] = self.n_threads, page_size

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step.

        The rows' positions must have room in `table` already; ValueError if they, the tokens or the
        number of rows are out of range.
        """
        n = len(batch.tokens)
        if table.page_size != self.page_size:
            raise ValueError(f"pages of {table.page_size} tokens, the machine has {self.page_size}")
        batch.check(
            table,
            self._n_pages,
            self.program.n_tokens,
            self.max_rows,
            self.max_logits,
            self.program.n_positions,
        )
        if self._team.closed:
            raise RuntimeError("the machine is closed")
        if n == 0:
            return self._logits[:0]
        self.states.begin(batch)
        tokens, sequences, positions, logits_indices = (
            np.ascontiguousarray(a, np.int32)
            for a in (batch.tokens, batch.sequences, batch.positions, batch.logits_indices)
        )
        for embed, target in self._lowered.lookups:
            # Looked up in the file: a handful of rows, not worth a second layout.
            rows = embed.table.rows(np.where(tokens < embed.table.shape[0], tokens, 0))
            np.multiply(rows, np.float32(embed.scale), out=target[:n, : rows.shape[1]])
        if self._lowered.by_length:
            lengths = batch.sequence_lengths()
            for op, frequencies in self._lowered.by_length:
                frequencies[:n, : len(op.inv_freq)] = op.frequencies(lengths)
        instructions = self._lowered.one if n == 1 else self._lowered.many
        step = self._step
        step["instructions"], step["n_instructions"] = instructions.ctypes.data, len(instructions)
        step["n_rows"], step["n_logits"] = n, len(logits_indices)
        step["tokens"], step["sequences"] = tokens.ctypes.data, sequences.ctypes.data
        step["positions"], step["logits_indices"] = positions.ctypes.data, logits_indices.ctypes.data
        step["blocks"], step["blocks_stride"] = table.blocks.ctypes.data, table.blocks.strides[0]
        self._team.run(step)
        self.states.end(batch)
        return self._logits[: len(logits_indices)]

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """The same step; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        return top_k_of(self.step(batch, table)[:, :n_tokens], k)

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """What a step of so many rows left in the `boundary_out` buffers, float32 [rows, width] each, until
        the next step.
        """
        regions = self._lowered.boundary_out[n_rows == 1]
        return [
            region.floats(n_rows)[:, : b.width]
            for b, region in zip(self.program.boundary_out, regions, strict=True)
        ]

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Contents of the `boundary_in` buffers for the next step, float32 [rows, width] each."""
        for b, rows in zip(self.program.boundary_in, values, strict=True):
            self._lowered.memory.floats(b.name)[: len(rows), : b.width] = rows

    def close(self) -> None:
        """End the worker threads and let the memory go; a later step raises RuntimeError."""
        if not self._team.closed:
            self._team.close()
            del self._lowered, self._logits


def cache_type(program: ops.Program, kv_type: str) -> str:
    """The cache's element type, one of `CACHE_TYPES`; ValueError for an unknown `kv_type`."""
    if kv_type == "auto":
        if all(weight.format.is_float for _, weight in matrices_of(program)):
            return "F32"
        return "F16" if _uneven_keys(program) else "Q8_0"
    if kv_type.upper() not in CACHE_TYPES:
        names = ", ".join(name.lower() for name in CACHE_TYPES)
        raise ValueError(f"the CPU machine keeps its cache as one of {names}, not {kv_type}")
    return kv_type.upper()


def _uneven_keys(program: ops.Program) -> bool:
    """Whether keys have a bias or a norm with weights: some of their dimensions are then far larger than
    others, and 8 bits shared with those are too few for the rest (docs/performance.md)."""
    keys = {op.k.name for op in program.ops if isinstance(op, ops.Attend)}
    return any(
        (isinstance(op, ops.RMSNorm) or (isinstance(op, ops.MatMul) and op.bias is not None))
        and op.out.name in keys
        for op in program.ops
    )
