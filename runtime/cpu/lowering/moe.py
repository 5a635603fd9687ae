"""The instructions of mixtures of experts: copies of many rows are dealt out to them, or one row chooses."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ....quant.jit.kernel import CpuKernel
from ... import ops
from ..abi import sizes
from ..abi.instructions import LOGITS_ROWS, OTHER, ROWS
from ..abi.records import CLIPPED, DEAL, MATMUL, ROUTE
from ..arena import Region
from ..kernels import COPY_DEALT, DEAL_ROWS, GATE, GATHER_DEALT, GELU_GATE, MATVECS, ROUTE_ROWS
from .altup import StreamsLowering
from .recurrent import RecurrentLowering
from .weight_panels import ACTIVATIONS, GATES, Experts


def activation(op: ops.MoE) -> dict[str, Any]:
    """What records say of an op's activation."""
    if op.limit:
        return {"gate": CLIPPED, "limit": op.limit, "alpha": op.alpha}
    return {"gate": ACTIVATIONS.get(op.kind, 0)}


def gate_kernel(op: ops.MoE) -> CpuKernel:
    return GATE if op.limit or op.kind in ACTIVATIONS else GELU_GATE


class ExpertsLowering(RecurrentLowering, StreamsLowering):
    """What both kinds of lists have in common; with it, all ops that are lowered alike for both."""

    def _lower_rest(self, op: ops.Op) -> None:
        """An op that needs no other treatment in one list than in the other."""
        match op:
            case ops.Route():
                self._route(op)
            case ops.MoE():
                self._mix(op)
            case ops.AltUpPredict() | ops.AltUpCorrect():
                self._stream(op)
            case ops.HeadMatMul():
                self._multiply_heads(op)
            case ops.CausalConv() | ops.DeltaRule() | ops.StateScan():
                self._recur(op)
            case _:
                self._lower_pointwise(op)

    @abstractmethod
    def _route(self, op: ops.Route) -> None: ...

    @abstractmethod
    def _mix(self, op: ops.MoE) -> None: ...

    def _route_fields(self, op: ops.Route) -> dict[str, Any]:
        scratch = self._memory.private(f"route {op.scores.width}", sizes.route_scratch_bytes(op.scores.width))
        return {
            "n": op.scores.width,
            "top": op.experts.width,
            "bias": 0 if op.bias is None else self._memory.vector(op.bias),
            "sigmoid": op.scoring == "sigmoid",
            "normalised": op.normalised,
            "groups": op.groups,
            "top_groups": op.top_groups,
            "group_best": op.group_best,
            "expert_scales": 0 if op.expert_scales is None else self._memory.vector(op.expert_scales),
            "scale": op.scale,
            "scratch": scratch.address,
            "scratch_stride": scratch.private,
        }

    def _gate_and_up(self, op: ops.MoE) -> dict[str, Any] | None:
        """What `MATMUL` says of gate, up and activation in one; None if they must be done one by one."""
        if not op.gate or not (op.limit or op.kind in GATES):
            return None
        gate, up = self._experts(op.gate), self._experts(op.up)
        if not gate.fits(up):
            return None
        (bias, stride), (other, _) = self._expert_biases(op.gate_bias), self._expert_biases(op.up_bias)
        return {**gate.paired(up), **activation(op), "bias": bias, "other_bias": other, "bias_stride": stride}

    def _product(self, experts: Experts, biases: Any) -> dict[str, Any]:
        """What `MATMUL` says of experts' products with something."""
        bias, stride = self._expert_biases(biases)
        return {**experts.fields(), "bias": bias, "bias_stride": stride}

    def _activate(self, op: ops.MoE, inner: ops.Buffer, up: ops.Buffer) -> None:
        """inner = act(inner, up); f(up) if there is no gate."""
        if op.gate:
            self._pointwise(gate_kernel(op), inner, inner, up, number=1.0, **activation(op))
        else:
            ones = Region("ones", self._memory.vector(self._ones(up.width)), 0)
            self._pointwise(gate_kernel(op), inner, up, ones, number=1.0, **activation(op))


class ManyRowsExperts(ExpertsLowering):
    """Experts of many rows: rows are dealt out, multiplied, and gathered."""

    _dealt: dict[str, tuple[int, Region]]  # buffers of dealt rows: the most rows, and where their number is

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._dealt = {}

    @abstractmethod
    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None: ...

    def _most(self, buffer: ops.Buffer) -> int:
        return self._dealt[buffer.name][0] if buffer.name in self._dealt else super()._most(buffer)

    def _rows_at(self, buffer: ops.Buffer) -> int:
        """Where the number of a buffer's rows is, 0 if it is the step's."""
        return self._dealt[buffer.name][1].address if buffer.name in self._dealt else 0

    def _sharing(self, buffer: ops.Buffer) -> str:
        """How threads share the rows of a buffer."""
        if buffer.name in self._dealt:
            return self._dealt[buffer.name][1].name
        return LOGITS_ROWS if buffer.logits_rows else ROWS

    def _route(self, op: ops.Route) -> None:
        scores, experts, routing_weights = (
            self._shared(b) for b in (op.scores, op.experts, op.routing_weights)
        )
        self._list.emit(
            ROUTE_ROWS,
            ROUTE,
            [scores],
            [experts, routing_weights],
            self._sharing(op.scores),
            scores=scores.address,
            scores_stride=scores.stride,
            experts=experts.address,
            experts_stride=experts.stride,
            routing_weights=routing_weights.address,
            routing_weights_stride=routing_weights.stride,
            on_logits_rows=op.scores.logits_rows,
            **self._route_fields(op),
        )

    def _mix(self, op: ops.MoE) -> None:
        name, n_experts, top = op.x.name, len(op.up), op.experts.width
        most = sizes.most_dealt(self._most(op.x), top, n_experts)
        count = self._memory.rows(f"number of {name} dealt", 1, 64)
        sources = self._memory.rows(f"sources of {name}", 1, 4 * most)
        places = self._memory.rows(f"places of {name}", 1, 4 * top * self._most(op.x))
        tiles = self._memory.rows(f"expert tiles of {name}", 1, 4 * (2 * n_experts + 1))

        def dealt(what: str, width: int) -> ops.Buffer:
            buffer = ops.Buffer(f"{name} {what}", width)
            self._dealt[buffer.name] = most, count
            return buffer

        x, out = dealt("dealt", op.x.width), dealt("mixed", op.out.width)
        width, kind = op.up[0].shape[0], op.up[0].format.name
        inner = dealt("inner", width)
        experts, routing_weights = self._shared(op.experts), self._shared(op.routing_weights)
        where = {
            "experts": experts.address,
            "experts_stride": experts.stride,
            "routing_weights": routing_weights.address,
            "routing_weights_stride": routing_weights.stride,
            "top": top,
            "n_experts": n_experts,
            "sources": sources.address,
            "places": places.address,
            "tiles": tiles.address,
            "rows_at": count.address,
            "on_logits_rows": op.x.logits_rows,
        }

        def move(
            kernel: CpuKernel, source: ops.Buffer, target: ops.Buffer, reads: list[Region], how: str
        ) -> None:
            a, b = self._shared(source), self._output(target)
            fields = {"x": a.address, "x_stride": a.stride, "out": b.address, "out_stride": b.stride}
            self._list.emit(kernel, DEAL, [a, *reads], [b], how, width=source.width, **fields, **where)

        by_expert = {"n_experts": n_experts, "tiles": tiles.address}
        self._list.emit(DEAL_ROWS, DEAL, [experts], [count, sources, places, tiles], OTHER, **where)
        move(COPY_DEALT, op.x, x, [count, sources], count.name)
        together = None if op.up[0].format.is_float else self._gate_and_up(op)
        if together is not None:
            self._matmul(x, inner, kind, together | by_expert)
        else:
            up = dealt("up", width)
            for target, tensors, biases in ((inner, op.gate, op.gate_bias), (up, op.up, op.up_bias)):
                if tensors:
                    fields = self._product(self._experts(tensors), biases)
                    self._matmul(x, target, tensors[0].format.name, fields | by_expert)
            self._activate(op, inner, up)
        down = self._product(self._experts(op.down), op.down_bias)
        self._matmul(inner, out, op.down[0].format.name, down | by_expert)
        move(GATHER_DEALT, out, op.out, [count, places, routing_weights], self._sharing(op.out))


class OneRowExperts(ExpertsLowering):
    """Experts of one row: each choice by itself, whose matrices the products find by its number."""

    @abstractmethod
    def _own(self, buffer: ops.Buffer) -> Region: ...

    @abstractmethod
    def _source(self, buffer: ops.Buffer) -> Region: ...

    @abstractmethod
    def _quantize(self, x: ops.Buffer) -> Region: ...

    @abstractmethod
    def _wrote(self, buffer: ops.Buffer, region: Region) -> None: ...

    def _route(self, op: ops.Route) -> None:
        scores = self._source(op.scores)
        experts, routing_weights = self._own(op.experts), self._own(op.routing_weights)
        self._list.emit(
            ROUTE_ROWS,
            ROUTE,
            [scores],
            [experts, routing_weights],
            scores=scores.address,
            scores_private=scores.private,
            experts=experts.address,
            routing_weights=routing_weights.address,
            private=experts.private,
            every=True,
            **self._route_fields(op),
        )
        self._wrote(op.experts, experts)
        self._wrote(op.routing_weights, routing_weights)

    def _mix(self, op: ops.MoE) -> None:
        choices, routing_weights = self._source(op.experts), self._source(op.routing_weights)
        width, together = op.up[0].shape[0], self._gate_and_up(op)
        down = self._product(self._experts(op.down), op.down_bias)
        target = self._shared(op.out)
        inners = [ops.Buffer(f"inner of choice {j}", width) for j in range(op.experts.width)]

        def multiply(x: ops.Buffer, out: Region, kind: str, j: int, how: str = OTHER, **values: Any) -> None:
            """A product with the matrix of choice j."""
            source = self._source(x) if kind in sizes.FLOAT_BYTES else self._quantize(x)
            choice = {"choice": choices.address + 4 * j, "choice_private": choices.private}
            fields = {"x": source.address, "x_private": source.private, "out": out.address}
            fields |= {"out_stride": out.stride, "on_logits_rows": op.x.logits_rows}
            self._list.emit(MATVECS[kind], MATMUL, [source], [out], how, **fields, **choice, **values)

        for j, inner in enumerate(inners):
            if together is not None:
                multiply(op.x, self._shared(inner), op.up[0].format.name, j, **together)
                self._wrote(inner, self._shared(inner))
                continue
            up = ops.Buffer(f"up of choice {j}", width)
            for b, tensors, biases in ((inner, op.gate, op.gate_bias), (up, op.up, op.up_bias)):
                if tensors:
                    fields = self._product(self._experts(tensors), biases)
                    multiply(op.x, self._shared(b), tensors[0].format.name, j, **fields)
                    self._wrote(b, self._shared(b))
            self._activate(op, inner, up)
        for j, inner in enumerate(inners):
            # Each thread adds to the panels that it wrote itself.
            share = {"share": routing_weights.address + 4 * j, "accumulate": j > 0}
            multiply(inner, target, op.down[0].format.name, j, "same panels", **down, **share)
        self._wrote(op.out, target)
