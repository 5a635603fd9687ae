"""The CPU machine: runs a program's instructions on a standing team of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from ...quant.block import QTensor
from ...quant.jit.levels import LANES
from .. import ops
from ..engine.cache import PAGE_SIZE, Batch, PageTable
from ..engine.errors import ModelClosed
from ..engine.observing import Observed, Tap
from ..engine.sampling.top_k import TopK, top_k_of
from ..engine.state import SequenceStates
from .abi.records import STEP
from .abi.sizes import CACHE_TYPES, PAGE_MULTIPLE, rotated
from .arena import Arena
from .kept_panels import KeptPanels
from .key_balance import key_balance
from .key_offsets import biased_layers, digest_of, key_offsets
from .lowering.base import MachineConfig
from .lowering.lower import Lowering, StepList
from .lowering.weight_panels import weight_matrices
from .page_pool import PagePool
from .processors import default_threads
from .step_inputs import StepInputs
from .team import Team
from .top_logits import TopLogits

LOGITS_BYTES = 64 << 20  # bytes of the logits of a step at most; pages are touched only when used


class CpuMachine:
    """Runs a Program with Numba kernels; same methods and results as ReferenceMachine, up to rounding.

    The constructor repacks the weights, or maps those that are `kept` on disk. It calls `release` with
    tensors, or parts of them, whose bytes in the file are no longer needed, and `progress` with (stage, done,
    total). `threads` defaults to the physical cores (`default_threads`). `kv_type` is how the KV cache stores
    numbers: "f16", "f32", "q8_0", "q4_0", keys / values ("q8_0/q4_0", "f16/q8_0", "f16/q4_0"), or "auto": f32
    if all weights are floats, so that a float model is not rounded; f16 for models whose keys have biases
    beside attention sinks or a soft cap; otherwise q8_0.
    `states` holds the states of recurrent ops for `max_sequences` sequences. Raises ValueError if `page_size`
    is no multiple of `PAGE_MULTIPLE` or `kv_type` is unknown, and UnsupportedModel if there is no kernel for
    an op. Not for use from two threads at once.
    Machines whose steps never overlap may share a `team`, that of the first; it ends with that machine.
    Such machines may also share an `arena`, if all buffers that have a name in common have one shape.
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
        team: Team | None = None,
        kept: KeptPanels | None = None,
        arena: Arena | None = None,
    ) -> None:
        if page_size % PAGE_MULTIPLE:
            raise ValueError(
                f"the CPU machine needs pages of a multiple of {PAGE_MULTIPLE} tokens, not {page_size}"
            )
        self.program = program
        self.page_size = page_size
        self._n_pages = n_pages
        self.max_rows = max_rows
        self.max_logits = max(1, min(max_rows, LOGITS_BYTES // (4 * program.logits.width)))
        self.n_threads = team.n_threads if team else threads or default_threads()
        self.states = SequenceStates(program.state_layers, max_sequences)
        self.kv_type = cache_type(program, kv_type).lower()
        rotates_keys, _ = rotated(self.kv_type.upper())
        offsets = key_offsets(program) if rotates_keys else {}
        balance = key_balance(program, offsets) if rotates_keys else {}
        self._key_changes = digest_of(offsets, balance)
        config = MachineConfig(
            n_pages=n_pages,
            page_size=page_size,
            n_threads=self.n_threads,
            max_rows=self.max_rows,
            max_logits=self.max_logits,
            cache_type=self.kv_type.upper(),
            key_offsets=offsets,
            key_balance=balance,
            states=tuple(self.states.arrays),
        )
        self._lowered = Lowering(program, config, release, progress, kept, arena).lower()
        heads = {op.layer: op.kv_heads for op in program.ops if isinstance(op, ops.Attend)}
        self._pools = [  # keys and values of each layer
            PagePool(self._lowered.arena.floats(f"{kind} {layer}"), n_pages, heads[layer])
            for layer in sorted(heads)
            for kind in ("keys", "values")
        ]
        self.team = team or Team(self.n_threads)
        self._closed, self._shares_team = False, team is not None
        self._step = np.zeros(1, STEP)
        self._step["n_threads"], self._step["page_size"] = self.n_threads, page_size
        self._step_address = self._step.ctypes.data
        self._inputs = StepInputs(self._step)
        self._top_logits = TopLogits(self.max_logits, program.logits.width)

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step.

        `table` must have pages for the rows' positions already. Raises ValueError if positions, tokens or the
        number of rows are out of range, and RuntimeError if the machine is closed.
        """
        return self._run_step(batch, table)

    def _run_step(self, batch: Batch, table: PageTable, k: int = 0, n_tokens: int = 0) -> np.ndarray:
        """`step`, with what `TopLogits` needs for the top `k` of `n_tokens` logits if there is a k."""
        self._check(batch, table)
        if not len(batch.tokens):
            return np.empty((0, self.program.logits.width), np.float32)
        run = self._lowered.steps_of(len(batch.tokens))
        held = self._begin(batch, table, run)
        self._run(self._top_logits.instructions(run, k, n_tokens) if k else run.instructions)
        del held
        self.states.end(batch)
        return run.result[: len(batch.logits_indices)]

    def observe(self, batch: Batch, table: PageTable, taps: Sequence[Tap]) -> Observed:
        """Run a step in pieces, with copies of what the taps ask for in between; errors as for `step`."""
        self._check(batch, table)
        run = self._lowered.prefill
        held = self._begin(batch, table, run)
        values: dict[Tap, np.ndarray] = {}
        cuts = sorted({0, *(tap.at for tap in taps), len(self.program.ops)})
        for start, end in pairwise([0, *cuts]):
            self._run(run.piece(start, end))
            for tap in taps:
                if tap.at == end and tap not in values:
                    n = len(batch.logits_indices if tap.buffer.logits_rows else batch.tokens)
                    rows = self._lowered.arena.floats(tap.buffer.name)
                    values[tap] = rows[:n, : tap.buffer.width].copy()
        del held
        self.states.end(batch)
        return Observed(run.result[: len(batch.logits_indices)], values)

    def finish(self, at: int, values: Mapping[ops.Buffer, np.ndarray]) -> np.ndarray:
        """The logits of rows whose buffers hold `values` in front of op number `at`."""
        self._check_open()
        n, run = len(next(iter(values.values()))), self._lowered.prefill
        for buffer, content in values.items():
            self._lowered.arena.floats(buffer.name)[:n, : buffer.width] = content
        self._run_alone(run, run.piece(at, len(self.program.ops)), n, n)
        return run.result[:n]

    def steps_of(self, n_rows: int) -> StepList:
        """The instructions of steps of so many rows."""
        self._check_open()
        return self._lowered.steps_of(n_rows)

    def transform(self, n_rows: int, n_logits: int, instructions: np.ndarray | None = None) -> None:
        """Run a program without tokens and without a cache, which finds its `boundary_in` in its buffers and
        leaves its `boundary_out` there; or other `instructions` for such rows."""
        run = self.steps_of(n_rows)
        self._run_alone(run, run.instructions if instructions is None else instructions, n_rows, n_logits)

    def _run_alone(self, run: StepList, instructions: np.ndarray, n: int, n_logits: int) -> None:
        """Run instructions of a list for `n` rows that belong to no sequence."""
        step, rows = self._step, np.arange(n, dtype=np.int32)
        self._inputs.forget()
        step["n_rows"], step["n_logits"] = n, n_logits
        step["row_tile"], step["expert_tile"] = run.row_tile, run.expert_tile
        for name in ("tokens", "sequences", "positions", "logits_indices"):
            step[name] = rows.ctypes.data
        self._run(instructions)

    def _check(self, batch: Batch, table: PageTable) -> None:
        """Raise ValueError for a batch that cannot run, and ModelClosed."""
        if table.page_size != self.page_size:
            raise ValueError(f"pages of {table.page_size} tokens, the machine has {self.page_size}")
        n_tokens, n_positions = self.program.n_tokens, self.program.n_positions
        batch.check(table, self._n_pages, n_tokens, self.max_rows, self.max_logits, n_positions)
        self._check_open()

    def _begin(self, batch: Batch, table: PageTable, run: StepList) -> Sequence[np.ndarray]:
        """Fill the inputs of a step. The arrays that are returned must live until it has run."""
        self.states.begin(batch)
        held = self._inputs.fill(batch, table, run)
        self._fill_inputs(batch)
        return held

    def _run(self, instructions: np.ndarray) -> None:
        """Let the team run instructions of the step whose inputs are filled."""
        if len(instructions):
            self._inputs.set_instructions(instructions)
            self.team.run(self._step_address)

    def _fill_inputs(self, batch: Batch) -> None:
        """Write the inputs of instructions that Python computes: embeddings looked up in the file, since a
        few rows are not worth repacking the table, and frequencies of RoPE that depend on the sequences'
        lengths.
        """
        n = len(batch.tokens)
        for embed, target in self._lowered.file_lookups:
            ids = batch.types_of_rows() if embed.by_type else batch.tokens
            rows = embed.table.rows(np.where(ids < embed.table.shape[0], ids, 0))
            np.multiply(rows, np.float32(embed.scale), out=target[:n, : rows.shape[1]])
        if self._lowered.sequence_ends is not None:
            self._lowered.sequence_ends[:n] = batch.sequence_lengths()
        if self._lowered.length_dependent:
            lengths = batch.sequence_lengths()
            for op, frequencies in self._lowered.length_dependent:
                frequencies[:n, : len(op.inv_freq)] = op.frequencies(lengths)

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """Run a step; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        if not self._top_logits.serves(k, n_tokens):
            return top_k_of(self._run_step(batch, table)[:, :n_tokens], k)
        return self._top_logits.top_k(self._run_step(batch, table, k, n_tokens)[:, :n_tokens], k)

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page's keys and values, for each layer of the cache."""
        sizes = [pool.page_bytes for pool in self._pools]
        return tuple(keys + values for keys, values in zip(sizes[::2], sizes[1::2], strict=True))

    @property
    def page_layout(self) -> str:
        """How a page's bytes are to be read: by the width of vectors, and by what keys are changed by."""
        words = [pool.page_bytes // 4 for pool in self._pools]
        rotates = rotated(self.kv_type.upper())
        how = {(True, True): " rotated", (False, True): " values rotated"}.get(rotates, "")
        how += f" keys {self._key_changes}" if self._key_changes else ""
        return f"cpu {self.kv_type}{how} {LANES} lanes, {self.page_size} tokens {words}"

    def read_page(self, page: int) -> np.ndarray:
        """A copy of the keys and values of a page in all layers, uint8 [bytes of a page]."""
        self._check_open()
        parts = [pool[page].reshape(-1) for pool in self._pools]
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def write_page(self, page: int, content: np.ndarray) -> None:
        """Set the keys and values of a page to what `read_page` gave."""
        self._check_open()
        at = 0
        for pool in self._pools:
            piece = pool[page]
            piece[:] = content[at : at + piece.size].reshape(piece.shape)
            at += piece.size

    def _check_open(self) -> None:
        if self._closed or self.team.closed:
            raise ModelClosed("the machine is closed")

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page of the KV cache, in all layers."""
        self._check_open()
        for pool in self._pools:
            pool[target][:] = pool[source]

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """Contents of the `boundary_out` buffers after a step of `n_rows` rows, float32 [n_rows, width] each.

        Views, valid until the next step.
        """
        regions = self._lowered.steps_of(n_rows).boundary_out
        return [
            region.floats(n_rows)[:, : b.width]
            for b, region in zip(self.program.boundary_out, regions, strict=True)
        ]

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Set the contents of the `boundary_in` buffers for the next step, float32 [rows, width] each."""
        for b, rows in zip(self.program.boundary_in, values, strict=True):
            self._lowered.arena.floats(b.name)[: len(rows), : b.width] = rows

    def close(self) -> None:
        """End the worker threads, unless they are another machine's, and free the memory. A later step raises
        RuntimeError."""
        if not self._closed:
            self._closed = True
            if not self._shares_team:
                self.team.close()
            self._top_logits.close()
            del self._lowered, self._pools


def cache_type(program: ops.Program, kv_type: str) -> str:
    """The type of the KV cache for a `kv_type`, one of `CACHE_TYPES`. ValueError if unknown.

    "auto" takes 8 bits but for keys with a bias that has to stay in them (`key_offsets.py`): some of
    their dimensions are far larger than others, which even rotated is too coarse for the rest.
    """
    if kv_type == "auto":
        if all(weight.format.is_float for _, weight in weight_matrices(program)):
            return "F32"
        return "F16" if biased_layers(program) - key_offsets(program).keys() else "Q8_0"
    if kv_type.upper() not in CACHE_TYPES:
        names = ", ".join(name.lower() for name in CACHE_TYPES)
        raise ValueError(f"the CPU machine keeps its cache as one of {names}, not {kv_type}")
    return kv_type.upper()
