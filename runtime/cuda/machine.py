"""The CUDA machine: runs a program as CUDA graphs, one for each shape of a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from ...quant.block import QTensor
from .. import ops
from ..engine.cache import PAGE_SIZE, Batch, PageTable
from ..engine.errors import ModelClosed
from ..engine.observing import Observed, Tap
from ..engine.sampling.top_k import MAX_TOP_K, TopK, top_k_of
from .boundary import Boundary
from .compile.kernel import Kernels
from .copies import copy_rows
from .driver.allocator import Memory
from .driver.device import Device
from .driver.launch import Graph, Launch
from .first_kernels import compile_first
from .lowering.base import DECODE_ROWS, Capacity, HostRows
from .lowering.cards import CardGroup
from .lowering.fusing import CudaOp, fuse
from .lowering.program import Lowering, TappedRows
from .lowering.support import check_supported, weight_groups
from .padding import allows_padding, padded, usual_steps
from .pages import CACHE_BITS, DevicePages, cache_type
from .states import DeviceStates
from .step import Step, StepPlan, StepShape, TopKRequest, is_one_prompt
from .step_inputs import StepInputs, upload_rare_inputs
from .step_outputs import StepOutputs
from .top_k import MAX_ROWS, TopKPlan, size_for
from .weights.upload import upload_weights

LOGITS_BYTES = 64 << 20  # upper limit of the logits of a step
MAX_GRAPHS = 64  # kept at once


class CudaMachine:
    """Runs a Program on an NVIDIA GPU, with the calls and, up to rounding, the results of
    ReferenceMachine.

    The constructor copies the weights to the GPU and compiles missing kernels; `release` and `progress` are
    as for CpuMachine. `kv_type` is one of `CACHE_BITS` or "auto": f32 if all weights are floats, else f16.
    Raises UnsupportedModel for an op without a CUDA kernel, CudaUnavailable without a GPU, and
    CudaOutOfMemory. Kernels that the first steps do not need are compiled in the `background`, or before the
    constructor returns. With a `group`, the machine is one of several that share a program: see CudaTeam. A
    machine must not be used by two threads at once.
    """

    # Mixtures of experts, by `id` of the op, that the host computes, and the address of its word for errors.
    hosted: Mapping[int, HostRows] = MappingProxyType({})
    host_report = 0

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
        group: CardGroup | None = None,
        background: bool = True,
    ) -> None:
        check_supported(program)
        self.program = program
        self.page_size = page_size
        self._n_pages = n_pages
        self.max_rows = max_rows
        self.max_logits = max(1, min(max_rows, LOGITS_BYTES // (4 * program.logits.width)))
        self.kv_type = cache_type(program, kv_type)
        # Whether other GPUs fill `boundary_in` and read `boundary_out`, and not the host.
        self.takes_on_card = self.leaves_on_card = False
        self.gives_logits = True  # whether the host reads them
        self.device = device or Device()
        self._closed = False
        self._kernels = kernels or Kernels(self.device, progress)
        self._in_background = background
        try:
            cuda_ops, memory = fuse(program), Memory(self.device)
            bits = CACHE_BITS[self.kv_type]
            capacity = Capacity(n_pages, page_size, max_rows, self.max_logits, max_sequences, bits)
            self._prepare(cuda_ops, capacity, memory, group, release, progress)
            if group is None:
                self.make_ready()
        except BaseException:
            self._close_device()
            raise

    def _prepare(
        self,
        cuda_ops: list[CudaOp],
        capacity: Capacity,
        memory: Memory,
        group: CardGroup | None,
        release: Callable[[QTensor], None] | None,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        """Allocate all memory, on the GPU and pinned, and copy the weights."""
        device, program = self.device, self.program
        self._inputs = StepInputs(capacity, device, memory, self._kernels)
        threads = min(16, os.cpu_count() or 1)
        weights = upload_weights(device, weight_groups(cuda_ops, self.hosted), threads, release, progress)
        self.lowering = Lowering(
            program,
            cuda_ops,
            capacity,
            device,
            self._kernels,
            memory,
            weights,
            self._inputs.addresses,
            group=group,
            rank=len(group.members) if group else 0,
            hosted=self.hosted,
            host_report=self.host_report,
        )
        self.memory = memory
        regions = [self.lowering.state(i, layer) for i, layer in enumerate(program.state_layers)]
        self.states = DeviceStates(program.state_layers, capacity.max_sequences, device, regions)
        self._pages = DevicePages(self.kv_type, self.page_size, device, self.lowering)
        self._outputs = StepOutputs(self.max_logits, device, self.lowering, self._kernels)
        self._boundary = Boundary(program, self.max_rows, device, self.lowering)
        self._may_pad = allows_padding(program) and not self.hosted
        self._plans: dict[StepShape, StepPlan] = {}
        self._graphs: dict[tuple[StepShape, TopKRequest | None], Graph] = {}

    def make_ready(self) -> None:
        """Compile kernels, and plan a decode step, or all usual steps if many sequences may run. For machines
        of a group this is done when all of them are made.
        """
        self.device.use()
        top_k, fetch = self._outputs.top_k_plan, self._inputs.fetch
        compile_first(self._kernels, self.lowering, fetch, top_k, self._in_background)
        self.plan(1, 1)
        n_sequences = self.lowering.capacity.max_sequences
        if self._may_pad and n_sequences > DECODE_ROWS:  # a server does without the pauses of plans later on
            for n, m, all_logits in usual_steps(n_sequences, self.max_rows):
                if m <= self.max_logits:
                    self.plan(n, m, all_logits)

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step.

        `table` must have pages for the rows' positions. Raises ValueError if tokens, positions or the number
        of rows are out of range.
        """
        self._step_with(batch, table, None)
        return self.logits(len(batch.logits_indices))

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """Run the rows of `batch`; the top k of the first `n_tokens` logits of each row in `logits_indices`,
        valid until the next step.

        The GPU selects them, and only they are copied to the host, if k is at most MAX_TOP_K and there are at
        most MAX_ROWS rows with logits.
        """
        request = self.top_k_request(len(batch.logits_indices), k, n_tokens)
        if request is None:
            return top_k_of(self.step(batch, table)[:, :n_tokens], k)
        self._step_with(batch, table, request)
        return self.selected(len(batch.logits_indices), k, request)

    def top_k_request(self, n_logits: int, k: int, n_tokens: int) -> TopKRequest | None:
        """What the GPU selects for `top_k`; None if the host selects."""
        if k > MAX_TOP_K or n_logits > MAX_ROWS:
            return None
        return TopKRequest(size_for(k), min(n_tokens, self.program.logits.width))

    def logits(self, n_logits: int) -> np.ndarray:
        """The logits of the completed step, float32 [n_logits, vocab]."""
        return self._outputs.logits(n_logits)

    def selected(self, n_logits: int, k: int, request: TopKRequest) -> list[TopK]:
        """The top `k` of each row of the completed step, which `request` asked for."""
        return self._outputs.top_k(n_logits, k, request)

    @property
    def _open_pages(self) -> DevicePages:
        """The pages of the KV cache. Raises ModelClosed."""
        if self._closed:
            raise ModelClosed("the machine is closed")
        self.device.use()
        return self._pages

    @property
    def page_layout(self) -> str:
        """How a page's bytes are to be read."""
        return self._open_pages.layout

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page's keys and values, for each layer of the cache."""
        return self._pages.n_bytes

    def read_page(self, page: int) -> np.ndarray:
        """A copy of the keys and values of a page in all layers, uint8 [bytes of a page]."""
        return self._open_pages.read(page)

    def write_page(self, page: int, content: np.ndarray) -> None:
        """Set the keys and values of a page to what `read_page` gave."""
        self._open_pages.write(page, content)

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page of the KV cache, in all layers."""
        self._open_pages.copy(source, target)

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Set the contents of the program's `boundary_in` buffers for the next step, float32 [rows,
        width].
        """
        self._boundary.write(values)

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """The `boundary_out` buffers after a step of `n_rows` rows, float32 [n_rows, width] each: of
        its rows with logits only, if a buffer has these. Valid until the next step."""
        return self._boundary.read(n_rows)

    def observe(self, batch: Batch, table: PageTable, taps: Sequence[Tap]) -> Observed:
        """Run a step as single launches, with copies of what the taps ask for in between; errors as for
        `step`."""
        n, m = len(batch.tokens), len(batch.logits_indices)
        if not self._begin(batch, table):
            raise ValueError("there are no rows to observe")
        self._inputs.write(batch, table)
        shape = StepShape.of(batch, is_one_prompt(batch))
        launches, copies = self._kernels.complete(lambda: self.lowering.observed(*shape, taps))
        self.device.wait()  # until the vectors that the lowering uploads are copied
        upload_rare_inputs(self.device, self.lowering, batch)
        self._inputs.send()
        self._boundary.send(n)
        values = self._launch_observed(launches, copies)
        if m:
            self._outputs.fetch_logits(m)
        self.device.wait()
        self.states.end(batch)
        return Observed(self.logits(m), values)

    def finish(self, at: int, values: Mapping[ops.Buffer, np.ndarray]) -> np.ndarray:
        """The logits of rows whose buffers hold `values` in front of op number `at`."""
        if self._closed:
            raise ModelClosed("the machine is closed")
        self.device.use()
        n = len(next(iter(values.values())))
        held = {b: np.ascontiguousarray(rows, np.float32) for b, rows in values.items()}
        for b, rows in held.items():
            copy_rows(self.device.upload, self.lowering.region(b), rows)
        observed = partial(self.lowering.observed, n, n, True, one_prompt=False, first=at)
        launches, _ = self._kernels.complete(observed)
        self.device.wait()
        self._launch_observed(launches, [])
        self._outputs.fetch_logits(n)
        self.device.wait()
        return self.logits(n)

    def _launch_observed(
        self, launches: Sequence[Launch], copies: Sequence[TappedRows]
    ) -> dict[Tap, np.ndarray]:
        """Enqueue launches, and the copies between them. The rows are there when the device has finished."""
        values = {c.tap: np.empty((c.n_rows, c.tap.buffer.width), np.float32) for c in copies}
        for i in range(len(launches) + 1):
            for each in copies:
                if each.n_launches == i and each.n_rows:
                    copy_rows(lambda a, rows: self.device.download(rows, a), each.region, values[each.tap])
            if i < len(launches):
                self._launch_alone(launches, i)
        return values

    def _launch_alone(self, launches: Sequence[Launch], i: int) -> None:
        """Enqueue launch number `i` of a step that is observed."""
        self.device.launch(launches[i])

    def _step_with(self, batch: Batch, table: PageTable, request: TopKRequest | None) -> None:
        step = self.prepare(batch, table, request)
        if step is not None:
            self.start(step)
            self.complete(step)

    def prepare(self, batch: Batch, table: PageTable, request: TopKRequest | None = None) -> Step | None:
        """Check a step, write its inputs, and have ready what it launches; None if it has no rows.

        No earlier step may be running. A step is captured as a graph when its shape first occurs, or for a
        prefill shape at the second time, since many of those occur only once.
        """
        if not self._begin(batch, table):
            return None
        run = padded(batch, self.max_rows, self.max_logits) if self._may_pad else batch
        self._inputs.write(run, table)
        shape = StepShape.of(run, is_one_prompt(batch))
        n, m, all_logits, one_prompt = shape
        request = request if m else None
        occurs_again = n <= DECODE_ROWS or (all_logits and not one_prompt) or shape in self._plans
        plan = self._planned(shape)
        upload_rare_inputs(self.device, self.lowering, run)
        graph = self._graphs.pop((shape, request), None)
        top_k = self._outputs.top_k_plan(m, request) if request and graph is None else None
        if graph is None and (occurs_again or self.lowering.group):
            while len(self._graphs) >= MAX_GRAPHS:
                self._graphs.pop(next(iter(self._graphs))).close()
            graph = self._capture(plan, shape, top_k)
        if graph is not None:
            self._graphs[shape, request] = graph  # behind those that were used before
        return Step(batch, shape, graph, top_k, plan.n_sums)

    def _capture(self, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> Graph:
        """What `_enqueue` enqueues, as a graph."""
        with self.device.capture() as graph:
            self._enqueue(plan, shape, top_k)
        return graph

    def _run(self, graph: Graph) -> None:
        """Enqueue what `_capture` has given."""
        self.device.run(graph)

    def number_sums(self, first: int) -> None:
        """Set the number of the first sum of the step that `prepare` has made ready, the same on all cards of
        the group, and one more than that of the last sum before it.
        """
        self._inputs.number_sums(first)

    def start(self, step: Step) -> None:
        """Enqueue a prepared step."""
        if step.graph is None:
            self._enqueue(self._plans[step.shape], step.shape, step.top_k)
        else:
            self._run(step.graph)

    def wait(self) -> None:
        """Wait until the GPU has nothing left to do."""
        if self._closed:
            raise ModelClosed("the machine is closed")
        self.device.use()
        self.device.wait()

    def take_error(self) -> bool:
        """Whether this GPU has waited in vain for another one of its group; it is forgotten then."""
        report = self.lowering.report
        if not report[0]:
            return False
        report[0] = 0
        self.device.use()
        self.device.clear(self.lowering.errors().address, 4)
        self.device.wait()
        return True

    def complete(self, step: Step) -> None:
        """Wait until a step has ended."""
        self.device.wait()
        self.states.end(step.batch)

    def _begin(self, batch: Batch, table: PageTable) -> bool:
        """Check a step, and begin its states; False if it has no rows."""
        if table.page_size != self.page_size:
            raise ValueError(f"pages of {table.page_size} tokens, the machine has {self.page_size}")
        n_tokens, n_positions = self.program.n_tokens, self.program.n_positions
        batch.check(table, self._n_pages, n_tokens, self.max_rows, self.max_logits, n_positions)
        if self._closed:
            raise ModelClosed("the machine is closed")
        if not len(batch.tokens):
            return False
        if len(table.blocks) > len(self.states.lengths):
            raise ValueError(f"the machine has a block table for {len(self.states.lengths)} sequences")
        self.device.use()
        self.states.begin(batch)
        return True

    def plan(self, n: int, m: int, all_logits: bool = True, one_prompt: bool = False) -> list[Launch]:
        """The launches of a step of n rows, m of them with logits; see `Lowering.launches`."""
        return self._planned(StepShape(n, m, all_logits, one_prompt)).launches

    def _planned(self, shape: StepShape) -> StepPlan:
        """The plan of steps of a shape, made when it first occurs."""
        plan = self._plans.pop(shape, None)
        if plan is None:
            while len(self._plans) >= 2 * MAX_GRAPHS:
                del self._plans[next(iter(self._plans))]
            lowering = self.lowering
            launches = self._kernels.complete(lambda: lowering.launches(*shape))
            plan = StepPlan(launches, lowering.boundary_out(), lowering.n_sums, lowering.mixtures)
            self.device.wait()  # until the vectors that the lowering uploads are copied
        self._plans[shape] = plan  # behind those that were used before
        return plan

    def _enqueue(self, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> None:
        """Enqueue inputs, launches, and what `_enqueue_results` does."""
        self._enqueue_inputs(shape)
        for launch in plan.launches:
            self.device.launch(launch)
        self._enqueue_results(plan, shape, top_k)

    def _enqueue_inputs(self, shape: StepShape) -> None:
        """Enqueue copies of the inputs of a step."""
        self._inputs.send()
        if not self.takes_on_card:
            self._boundary.send(shape.n_rows)

    def _enqueue_results(self, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> None:
        """Enqueue either the selection of the top k or the copy of the logits."""
        for launch in top_k.launches if top_k else ():
            self.device.launch(launch)
        if not self.leaves_on_card:
            self._boundary.fetch(plan.left, shape)
        if shape.n_logits and not top_k and self.gives_logits:
            self._outputs.fetch_logits(shape.n_logits)

    def close(self) -> None:
        """Free all memory. Later steps raise RuntimeError."""
        if not self._closed:
            self._closed = True
            self._graphs.clear()
            del self._inputs, self._outputs, self._boundary  # which refer to pinned memory
            self._close_device()

    def _close_device(self) -> None:
        self._kernels.close()  # whose threads use the device
        self.device.close()
