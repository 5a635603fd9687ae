"""A CUDA machine whose mixtures of experts, or some of them, the host computes from its own memory.

A large mixture of experts has most of its weights in experts, and a token reads few of these: attention and
all that every token passes are on the GPU, and experts where there is room for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import ops
from .driver.launch import Graph, Launch
from .lowering.base import HostMixture
from .machine import CudaMachine, StepPlan, StepShape, copy_rows
from .top_k import TopKPlan


class Host(Protocol):
    """What computes mixtures of experts on the host, such as runtime/cpu/experts.py."""

    def __contains__(self, mixture: ops.MoE) -> bool: ...

    def run(self, mixture: ops.MoE, x: np.ndarray, experts: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The op's output, float32 [rows, outputs], valid until it is run again."""
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
    """A CudaMachine without the experts that `host` has, which it closes with itself. A step is enqueued in
    pieces, and the host computes between them.
    """

    def __init__(self, program: ops.Program, n_pages: int, host: Host, **more: Any) -> None:
        self.host = host
        self.hosted = frozenset(id(op) for op in program.ops if isinstance(op, ops.MoE) and op in host)
        self._pinned: dict[tuple[int, int], np.ndarray] = {}  # by address on the GPU and width
        super().__init__(program, n_pages, **more)

    def _capture(self, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> Graph:
        pieces, graphs = _pieces_of(plan), list[Graph]()
        for piece in pieces:
            with self.device.capture() as graph:
                self._enqueue_piece(piece, plan, shape, top_k)
            graphs.append(graph)
        return _PiecesGraph(pieces, graphs)

    def _run(self, graph: Graph) -> None:
        assert isinstance(graph, _PiecesGraph)
        for piece, each in zip(graph.pieces, graph.graphs, strict=True):
            self.device.run(each)
            self._compute(piece.behind)

    def _enqueue(self, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> None:
        for piece in _pieces_of(plan):
            self._enqueue_piece(piece, plan, shape, top_k)
            self._compute(piece.behind)

    def _enqueue_piece(self, piece: _Piece, plan: StepPlan, shape: StepShape, top_k: TopKPlan | None) -> None:
        if piece.before is None:
            self._enqueue_inputs(shape)
        else:
            copy_rows(self.device.upload, piece.before.out, self._result(piece.before))
        for launch in piece.launches:
            self.device.launch(launch)
        if piece.behind is None:
            self._enqueue_results(plan, shape, top_k)
        else:
            self._fetch(piece.behind)

    def _fetch(self, mixture: HostMixture) -> None:
        """Enqueue copies of what a mixture reads."""
        for region, rows in zip(mixture.reads, self._read(mixture), strict=True):
            copy_rows(lambda address, rows: self.device.download(rows, address), region, rows)

    def _read(self, mixture: HostMixture) -> list[np.ndarray]:
        """Pinned memory for what a mixture reads: x, the experts, their weights."""
        op = mixture.op
        buffers = zip((op.x, op.experts, op.routing_weights), mixture.reads, strict=True)
        return [self._rows(region.address, buffer, mixture.n_rows) for buffer, region in buffers]

    def _compute(self, mixture: HostMixture | None) -> None:
        """When what a mixture reads is there, let the host compute it, into pinned memory."""
        if mixture is not None:
            self.device.wait()
            self._result(mixture)[:] = self.host.run(mixture.op, *self._read(mixture))

    def _result(self, mixture: HostMixture) -> np.ndarray:
        """Pinned memory for a mixture's output."""
        return self._rows(mixture.out.address, mixture.op.out, mixture.n_rows)

    def _rows(self, address: int, buffer: ops.Buffer, n_rows: int) -> np.ndarray:
        """Pinned memory for rows of a buffer that is at `address` on the GPU: float32 [n_rows, width]."""
        key = address, buffer.width
        if key not in self._pinned:
            rows = self.device.pinned(4 * self.max_rows * buffer.width).view(np.float32)
            self._pinned[key] = rows.reshape(self.max_rows, buffer.width)
        return self._pinned[key][:n_rows]

    def _launch_alone(self, launches: Sequence[Launch], i: int) -> None:
        for mixture in self.lowering.mixtures:
            if mixture.n_launches == i and mixture.n_rows:
                self._fetch(mixture)
                self._compute(mixture)
                copy_rows(self.device.upload, mixture.out, self._result(mixture))
        super()._launch_alone(launches, i)

    def close(self) -> None:
        """Free all memory, the host's experts with it."""
        if not self._closed:
            self.host.close()
            self._pinned.clear()
        super().close()


def _pieces_of(plan: StepPlan) -> list[_Piece]:
    mixtures = [m for m in plan.mixtures if m.n_rows]
    ends = pairwise([0, *(m.n_launches for m in mixtures), len(plan.launches)])
    around = zip([None, *mixtures], [*mixtures, None], strict=True)
    return [_Piece(plan.launches[a:b], *pair) for (a, b), pair in zip(ends, around, strict=True)]
