"""The CUDA machine: a program's launches, captured in a graph for each number of rows that a step has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from ...quant.block import QTensor
from .. import ops
from ..engine.cache import PAGE_SIZE, Batch, PageTable
from ..engine.top_k import MAX_TOP_K, TopK, top_k_of
from .compile.arguments import Region
from .compile.kernel import Kernels
from .driver.allocator import Memory
from .driver.device import Device
from .driver.launch import Graph, Launch
from .driver.mapped import copy_words
from .lowering.base import FEW, Layout
from .lowering.fusing import fused
from .lowering.program import Lowering
from .lowering.support import check_supported, matrices, weight_groups
from .states import CardStates
from .step_inputs import StepInputs
from .top_k import MOST_ROWS, RUNS, BestOf, BestPlan, decode, run_for
from .weights.upload import upload_weights

LOGITS_BYTES = 64 << 20  # of logits that a step may give
GRAPHS = 32  # kept at most
MAPPED = True  # kernels fetch what a step is told, and write the best tokens, in this machine's memory
MAPPED_LOGITS = 1 << 20  # bytes of logits that a kernel brings back; more are copied
CACHE_BITS = {"f16": 16, "f32": 32, "q8_0": 8, "q4_0": 4}

PlanKey = tuple[int, int, bool, bool]  # what `Lowering.launches` is told
Choice = tuple[int, int]  # how many of the best, one of choosing.RUNS, of so many ids each row is to give


class CudaMachine:
    """Runs a Program on the first NVIDIA card; same calls and results as ReferenceMachine, up to rounding.

    Weights are copied to the card when it is made; `release` and `progress` as for CpuMachine. `kv_type` is
    one of `CACHE_BITS` or "auto": f32 if all weights are floats, else f16. Raises UnsupportedModel for an op
    that the card cannot run yet, CudaUnavailable without a card, CudaOutOfMemory. Not for use from two
    threads at once.
    """

    def __init__(
        self,
        program: ops.Program,
        n_pages: int,
        page_size: int = PAGE_SIZE,
        kv_type: str = "auto",
        max_rows: int = 512,
        release: Callable[[QTensor], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        max_sequences: int = 1,
        device: Device | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        check_supported(program)
        self.program = program
        self.page_size = page_size
        self._n_pages = n_pages
        self.max_rows = max_rows
        self.max_logits = max(1, min(max_rows, LOGITS_BYTES // (4 * program.logits.width)))
        self.kv_type = cache_type(program, kv_type)
        self.device = device or Device()
        try:
            self._prepare(kv_type, max_sequences, kernels, release, progress)
        except BaseException:
            self.device.close()
            raise

    def _prepare(
        self,
        kv_type: str,
        max_sequences: int,
        kernels: Kernels | None,
        release: Callable[[QTensor], None] | None,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        found = fused(self.program)
        memory = Memory(self.device)
        layout = Layout(
            self._n_pages,
            self.page_size,
            self.max_rows,
            self.max_logits,
            max_sequences,
            CACHE_BITS[cache_type(self.program, kv_type)],
        )
        kernels = kernels or Kernels(self.device, progress)
        self._kernels = kernels
        self._inputs = StepInputs(layout, self.device, memory, kernels, MAPPED)
        threads = min(16, os.cpu_count() or 1)
        matrices = upload_weights(self.device, weight_groups(found), threads, release, progress)
        self.lowering = Lowering(
            self.program, found, layout, self.device, kernels, memory, matrices, self._inputs.at
        )
        self.memory = memory
        kept = [self.lowering.state(i, layer) for i, layer in enumerate(self.program.state_layers)]
        self.states = CardStates(self.program.state_layers, max_sequences, self.device, kept)
        self._logits = self.device.pinned(4 * self.max_logits * self.program.logits.width).view(np.float32)
        self._logits = self._logits.reshape(self.max_logits, -1)
        self._boundary_in = [
            self.device.pinned(4 * self.max_rows * b.width).view(np.float32).reshape(self.max_rows, b.width)
            for b in self.program.boundary_in
        ]
        self._best = self.device.pinned(8 * MOST_ROWS * MAX_TOP_K).view(np.int32).reshape(MOST_ROWS, -1)
        self._best_of = BestOf(memory, kernels, self.device.capability)
        if MAPPED:
            self._found = Region(self._best.ctypes.data, self._best.strides[0])
        else:
            self._found = memory.rows("best", MOST_ROWS, self._best.strides[0])
        self._plans: dict[PlanKey, list[Launch]] = {}
        self._graphs: dict[tuple[PlanKey, Choice | None], Graph] = {}
        self._closed = False
        many = min(self.max_rows, 2 * FEW)
        kernels.compile_all(
            lambda: [
                *(self.lowering.launches(n, n, True) for n in (1, 8, FEW) if n <= self.max_logits),
                *(self.lowering.launches(n, 1, False, True) for n in {many, self.max_rows}),
                self._inputs.fetch(),
                *(self._best_plan(1, (k, self.program.logits.width)) for k in RUNS),
            ]
        )
        self.plan(1, 1)

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step.

        The rows' positions must have room in `table` already; ValueError if they, the tokens or the
        number of rows are out of range.
        """
        self._step_with(batch, table, None)
        return self._logits[: len(batch.logits_indices)]

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """The same step; the top k of the first `n_tokens` ids for each row in `logits_indices`, valid until
        the next step.

        Only these come back from the card, up to MAX_TOP_K of up to MOST_ROWS rows.
        """
        n_tokens = min(n_tokens, self.program.logits.width)
        if k > MAX_TOP_K or len(batch.logits_indices) > MOST_ROWS:
            return top_k_of(self.step(batch, table)[:, :n_tokens], k)
        run = run_for(k)
        self._step_with(batch, table, (run, n_tokens))
        return decode(self._best[: len(batch.logits_indices)], run, k, n_tokens)

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Contents of the program's `boundary_in` for the next step, float32 [rows, width] each."""
        for rows, boundary_in in zip(values, self._boundary_in, strict=True):
            boundary_in[: len(rows)] = rows

    def _step_with(self, batch: Batch, table: PageTable, choice: Choice | None) -> None:
        n, m = len(batch.tokens), len(batch.logits_indices)
        if table.page_size != self.page_size:
            raise ValueError(f"pages of {table.page_size} tokens, the machine has {self.page_size}")
        n_tokens, n_positions = self.program.n_tokens, self.program.n_positions
        batch.check(table, self._n_pages, n_tokens, self.max_rows, self.max_logits, n_positions)
        if self._closed:
            raise RuntimeError("the machine is closed")
        if n == 0:
            return
        if len(table.blocks) > len(self.states.lengths):
            raise ValueError(f"the machine has a block table for {len(self.states.lengths)} sequences")
        self.device.use()
        self.states.begin(batch)
        self._inputs.write(batch, table)
        all_logits = m == n and (n == 1 or bool((batch.logits_indices == np.arange(n)).all()))
        self._run((n, m, all_logits, _one_prompt(batch)), choice if m else None, batch)
        self.device.wait()
        self.states.end(batch)

    def _run(self, key: PlanKey, choice: Choice | None, batch: Batch) -> None:
        seen = key in self._plans
        launches = self.plan(*key)
        if self.lowering.by_length:
            self._upload_frequencies(batch)
        graph = self._graphs.get((key, choice))
        if graph is None:
            n, m = key[:2]
            best = self._best_plan(m, choice) if choice else None
            if n > FEW and not seen:
                self._enqueue(launches, n, m, best)
                return
            while len(self._graphs) >= GRAPHS:
                self._graphs.pop(next(iter(self._graphs))).close()
            with self.device.capture() as graph:
                self._enqueue(launches, n, m, best)
            self._graphs[key, choice] = graph
        self.device.run(graph)

    def _upload_frequencies(self, batch: Batch) -> None:
        """Of rotations that depend on how long a sequence is."""
        lengths = batch.sequence_lengths()
        for op, region in self.lowering.by_length.values():
            rows = np.zeros((len(lengths), region.stride // 4), np.float32)
            rows[:, : len(op.inv_freq)] = op.frequencies(lengths)
            self.device.upload(region.address, rows)
            self.device.wait()

    def _best_plan(self, rows: int, choice: Choice) -> BestPlan:
        return self._best_of.plan(self.lowering.region(self.program.logits), rows, *choice, self._found)

    def plan(self, n: int, m: int, all_logits: bool = True, one_prompt: bool = False) -> list[Launch]:
        """The launches of a step of n rows, m of them with logits: see `Lowering.launches`."""
        key = n, m, all_logits, one_prompt
        if key not in self._plans:
            while len(self._plans) >= 2 * GRAPHS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = self.lowering.launches(*key)
            self.device.wait()  # for vectors that were copied
        return self._plans[key]

    def _enqueue(self, launches: list[Launch], n: int, m: int, best: BestPlan | None) -> None:
        self._inputs.send()
        for b, rows in zip(self.program.boundary_in, self._boundary_in, strict=True):
            _copy_rows(self.device.upload, self.lowering.region(b), rows[:n])
        for launch in [*launches, *(best.launches if best else ())]:
            self.device.launch(launch)
        if best and not MAPPED:
            found = self._best[:m, : 2 * best.run]
            _copy_rows(lambda at, row: self.device.download(row, at), self._found, found)
        elif m and not best:
            self._bring(self._logits[:m])

    def _bring(self, rows: np.ndarray) -> None:
        """Copy logits into pinned memory."""

        def launch(at: int, rows: np.ndarray) -> None:
            self.device.launch(copy_words(self._kernels, at, rows.ctypes.data, rows.nbytes))

        def copy(at: int, rows: np.ndarray) -> None:
            self.device.download(rows, at)

        small = rows.nbytes <= MAPPED_LOGITS
        _copy_rows(launch if small else copy, self.lowering.region(self.program.logits), rows)

    def close(self) -> None:
        """Let the card's memory go; a later step raises RuntimeError."""
        if not self._closed:
            self._closed = True
            self._graphs.clear()
            del self._inputs  # pinned memory, as the others
            self._logits = np.empty((0, self.program.logits.width), np.float32)
            self._boundary_in, self._best = [], np.empty((0, 0), np.int32)
            self.device.close()


def _copy_rows(copy: Callable[[int, np.ndarray], None], region: Region, rows: np.ndarray) -> None:
    """Copy between rows of a region and of an array [rows, width], at once where both lie one by one."""
    if rows.flags.c_contiguous and region.stride == rows.strides[0]:
        copy(region.address, rows)
        return
    for i, row in enumerate(rows):
        copy(region.address + i * region.stride, row)


def _one_prompt(batch: Batch) -> bool:
    """Whether many rows are consecutive positions of one sequence."""
    n = len(batch.tokens)
    if n <= FEW:
        return False
    same = bool((batch.sequences == batch.sequences[0]).all())
    return same and bool((np.diff(batch.positions) == 1).all())


def cache_type(program: ops.Program, kv_type: str) -> str:
    """How numbers lie in the cache, of `CACHE_BITS`; ValueError for an unknown `kv_type`."""
    if kv_type == "auto":
        products = [op for op in program.ops if not isinstance(op, ops.Embed | ops.AddPositions)]
        floats = (w.format.is_float for op in products for group in matrices(op) for w in group[:1])
        return "f32" if all(floats) else "f16"
    if kv_type not in CACHE_BITS:
        raise ValueError(f"the CUDA machine keeps its cache as {', '.join(CACHE_BITS)}, not {kv_type}")
    return kv_type
