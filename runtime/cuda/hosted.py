"""A CUDA machine whose mixtures of experts, or some of them, the host computes from its own memory.

A large mixture of experts has most of its weights in experts, and a token reads few of these: attention and
all that every token passes are on the GPU, and experts where there is room for them.

A step of few rows is one graph. Its launches write what a mixture reads into pinned memory, and wait there
for the output; the host's threads wait for the rows. So neither starts or ends anything between two layers
(`kernels/experts/exchange.py`). A step of many rows is enqueued in pieces.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import ops
from .abi.arguments import Region
from .copies import copy_rows
from .driver.errors import CudaError
from .driver.launch import Graph, Launch
from .lowering.base import DECODE_ROWS, HostMixture, HostRows
from .machine import CudaMachine
from .step import Step, StepPlan, StepShape
from .top_k import TopKPlan

LAST_NUMBER = 1 << 30  # of an exchange, before numbers begin again


class Host(Protocol):
    """What computes mixtures of experts on the host, such as runtime/cpu/experts.py: there is more about each
    member. `asked`, `answered`, `report` and the rows are in pinned memory."""

    asked: np.ndarray
    answered: np.ndarray
    report: np.ndarray

    def __contains__(self, mixture: ops.MoE) -> bool: ...

    def rows(self, mixture: ops.MoE) -> Sequence[np.ndarray]:
        """The memory of x, experts, their weights and the output, float32 [rows, width] each."""
        ...

    def run(self, mixture: ops.MoE, n_rows: int) -> None:
        """Compute the output of so many rows."""
        ...

    def exchange(self, first: int, n_rows: int, n_logits: int) -> bool:
        """Compute all mixtures, each when the card has asked, and answer; False if it has not."""
        ...

    def let_go(self, last: int) -> None:
        """Let the card wait for no exchange up to this number."""
        ...

    def close(self) -> None: ...


class _Piece(NamedTuple):
    """Launches of a step, and the mixtures that the host computes before them and behind them."""

    launches: list[Launch]
    before: HostMixture | None
    behind: HostMixture | None


class _PiecesGraph(Graph):
    """The pieces of a step, a graph each."""

    def __init__(self, pieces: list[_Piece], graphs: list[Graph]) -> None:
        self.pieces, self.graphs = pieces, graphs

    def close(self) -> None:
        """Destroy the graphs."""
        for graph in self.graphs:
            graph.close()


class HostedCudaMachine(CudaMachine):
    """A CudaMachine without the experts that `host` has, which it closes with itself."""

    def __init__(self, program: ops.Program, n_pages: int, host: Host, **more: Any) -> None:
        self.host = host
        mixtures = [op for op in program.ops if isinstance(op, ops.MoE) and op in host]
        self.hosted = {id(op): _host_rows(host, op) for op in mixtures}
        # Windows may start launches only when something waits for their end.
        self.host_report = 0 if sys.platform == "win32" else host.report.ctypes.data
        self._next = 1  # the number of the next exchange
        super().__init__(program, n_pages, **more)

    def start(self, step: Step) -> None:
        """Enqueue a prepared step, and compute what the host has to."""
        if step.shape.n_rows > DECODE_ROWS or not self.host_report:
            super().start(step)
            return
        if self._next > LAST_NUMBER:
            self.host.asked[0] = self.host.answered[0] = 0
            self._next = 1
        first, self._next = self._next, self._next + len(self.hosted)
        self.number_sums(first)
        try:
            super().start(step)
            answered = self.host.exchange(first, step.shape.n_rows, step.shape.n_logits)
        except BaseException:
            self.host.let_go(self._next - 1)  # or the card would wait for what nobody computes
            raise
        if not answered:
            self.device.wait()  # raises what has happened to the card
            self._take_report()
            raise CudaError(f"the {self.device.name} has not come to the experts of a layer in a long time")

    def complete(self, step: Step) -> None:
        """Wait until a step has ended."""
        super().complete(step)
        if self._take_report():
            raise CudaError(f"the {self.device.name} has waited too long for the experts of a layer")

    def _take_report(self) -> bool:
        """Whether the card has waited in vain; it is forgotten then."""
        if not self.host.report[0]:
            return False
        self.host.report[0] = 0
        self.device.clear(self.lowering.exchange_errors().address, 4)
        self.device.wait()
        return True

    def _capture(self, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> Graph:
        if not plan.mixtures:
            return super()._capture(plan, shape, top_k)
        pieces, graphs = _pieces_of(plan), list[Graph]()
        for piece in pieces:
            with self.device.capture() as graph:
                self._enqueue_piece(piece, plan, shape, top_k)
            graphs.append(graph)
        return _PiecesGraph(pieces, graphs)

    def _run(self, graph: Graph) -> None:
        if not isinstance(graph, _PiecesGraph):
            super()._run(graph)
            return
        for piece, each in zip(graph.pieces, graph.graphs, strict=True):
            self.device.run(each)
            self._compute(piece.behind)

    def _enqueue(self, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> None:
        if not plan.mixtures:
            super()._enqueue(plan, shape, top_k)
            return
        for piece in _pieces_of(plan):
            self._enqueue_piece(piece, plan, shape, top_k)
            self._compute(piece.behind)

    def _enqueue_piece(self, piece: _Piece, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> None:
        if piece.before is None:
            self._enqueue_inputs(shape)
        else:
            self._send(piece.before)
        for launch in piece.launches:
            self.device.launch(launch)
        if piece.behind is None:
            self._enqueue_results(plan, shape, top_k)
        else:
            self._fetch(piece.behind)

    def _fetch(self, mixture: HostMixture) -> None:
        """Enqueue copies of what a mixture reads."""
        buffers = mixture.op.x, mixture.op.experts, mixture.op.routing_weights
        for buffer, region, rows in zip(buffers, mixture.reads, self.host.rows(mixture.op), strict=False):
            columns = rows[: mixture.n_rows, : buffer.width]
            copy_rows(lambda address, rows: self.device.download(rows, address), region, columns)

    def _compute(self, mixture: HostMixture | None) -> None:
        """When what a mixture reads is there, let the host compute it."""
        if mixture is not None:
            self.device.wait()
            self.host.run(mixture.op, mixture.n_rows)

    def _send(self, mixture: HostMixture) -> None:
        """Enqueue the copy of a mixture's output."""
        out = self.host.rows(mixture.op)[-1]
        copy_rows(self.device.upload, mixture.out, out[: mixture.n_rows, : mixture.op.out.width])

    def _launch_alone(self, launches: Sequence[Launch], i: int) -> None:
        for mixture in self.lowering.mixtures:
            if mixture.n_launches == i and mixture.n_rows:
                self._fetch(mixture)
                self._compute(mixture)
                self._send(mixture)
        super()._launch_alone(launches, i)

    def close(self) -> None:
        """Free all memory, the host's experts with it."""
        if not self._closed:
            self.host.close()
        super().close()


def _host_rows(host: Host, mixture: ops.MoE) -> HostRows:
    x, experts, weights, out = (Region(rows.ctypes.data, rows.strides[0]) for rows in host.rows(mixture))
    return HostRows(x, experts, weights, out, host.asked.ctypes.data, host.answered.ctypes.data)


def _pieces_of(plan: StepPlan) -> list[_Piece]:
    mixtures = [m for m in plan.mixtures if m.n_rows]
    ends = pairwise([0, *(m.n_launches for m in mixtures), len(plan.launches)])
    around = zip([None, *mixtures], [*mixtures, None], strict=True)
    return [_Piece(plan.launches[a:b], *pair) for (a, b), pair in zip(ends, around, strict=True)]
