"""Lowering of mixtures of experts: what prefill and decode share, and decode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....quant.block import QTensor
from ....quant.jit.kernel import CpuKernel
from ....quant.jit.levels import LANES
from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import CHOICES, CLIPPED, ROUTE
from ..arena import Region
from ..kernels import ADD_CHOICES, GATED_ACTIVATION, ROUTE_ROWS
from .altup import AltUpLowering
from .base import activation_kernel
from .fusing import ACTIVATIONS, GATES
from .head_matmul import HeadMatMulLowering
from .recurrent import RecurrentLowering
from .weight_panels import ExpertPanels


class MoELowering(RecurrentLowering, AltUpLowering, HeadMatMulLowering):
    """Lowers Route and MoE by methods of the subclasses, and dispatches all ops that both lower alike."""

    def _lower_common(self, op: ops.Op) -> None:
        """Lower an op whose instructions are the same for prefill and decode, or whose method differs."""
        match op:
            case ops.Route():
                self._route(op)
            case ops.MoE():
                self._moe(op)
            case ops.AltUpPredict() | ops.AltUpCorrect():
                self._altup(op)
            case ops.HeadMatMul():
                self._head_matmul(op)
            case ops.CausalConv() | ops.DeltaRule() | ops.StateScan():
                self._recurrent(op)
            case _:
                self._lower_pointwise(op)

    @abstractmethod
    def _route(self, op: ops.Route) -> None:
        """Append top-k routing."""

    @abstractmethod
    def _moe(self, op: ops.MoE) -> None:
        """Append the products of the chosen experts and their weighted sum."""

    def _route_fields(self, op: ops.Route) -> dict[str, Any]:
        """The ROUTE fields of an op except those of its matrices."""
        n_experts = op.scores.width
        scratch = self._arena.per_thread(f"route {n_experts}", sizes.route_scratch_bytes(n_experts))
        return {
            "n": n_experts,
            "top": op.experts.width,
            "bias": 0 if op.bias is None else self._arena.vector(op.bias),
            "sigmoid": op.scoring == "sigmoid",
            "normalised": op.normalised,
            "groups": op.groups,
            "top_groups": op.top_groups,
            "group_best": op.group_best,
            "expert_scales": 0 if op.expert_scales is None else self._arena.vector(op.expert_scales),
            "scale": op.scale,
            "scratch": scratch.address,
            "scratch_stride": scratch.thread_stride,
        }

    def _experts(self, tensors: tuple[QTensor, ...]) -> ExpertPanels:
        """The panels of a matrix of all experts."""
        return ExpertPanels(tuple(self._matrices[id(tensor)] for tensor in tensors))

    def _expert_biases(self, biases: np.ndarray | None) -> tuple[int, int]:
        """Address and expert stride in bytes of float32 [experts, outputs]; (0, 0) without biases."""
        return (0, 0) if biases is None else self._arena.matrix(biases)

    def _gated_fields(self, op: ops.MoE) -> dict[str, Any] | None:
        """MATMUL fields of gate product, up product and activation in one; None if no kernel fuses them."""
        if not op.gate or not (op.limit or op.kind in GATES) or op.gate_low or op.up_low:
            return None
        gate, up = self._experts(op.gate), self._experts(op.up)
        if not gate.pairs_with(up):
            return None
        (bias, stride), (up_bias, _) = self._expert_biases(op.gate_bias), self._expert_biases(op.up_bias)
        biases = {"bias": bias, "second_bias": up_bias, "bias_stride": stride}
        return {**gate.paired_fields(up), **_activation_fields(op), **biases}

    def _product_fields(self, tensors: tuple[QTensor, ...], biases: np.ndarray | None) -> dict[str, Any]:
        """MATMUL fields of a product with the matrix of an expert."""
        bias, stride = self._expert_biases(biases)
        return {**self._experts(tensors).fields(), "bias": bias, "bias_stride": stride}

    def _activate(self, op: ops.MoE, inner: ops.Buffer, up: ops.Buffer) -> None:
        """inner = f(inner) · up, or f(up) if the experts have no gate."""
        kernel = _activation_kernel(op)
        if op.gate:
            self._pointwise(kernel, inner, inner, up, scalar=1.0, **_activation_fields(op))
        else:
            self._pointwise(kernel, inner, up, self._ones(up.width), scalar=1.0, **_activation_fields(op))


class DecodeMoELowering(MoELowering):
    """Lowers Route and MoE for steps of one row: each of the top-k choices by itself.

    The gemvs read the chosen expert's number from memory.
    """

    @abstractmethod
    def _per_thread(self, buffer: ops.Buffer) -> Region:
        """The region of a buffer with a copy for each thread."""

    @abstractmethod
    def _set_location(self, buffer: ops.Buffer, region: Region) -> None:
        """Note that a region holds the present contents of a buffer."""

    @abstractmethod
    def _multiply(
        self,
        x: ops.Buffer,
        kind: str,
        out: Region,
        values: dict[str, Any],
        partition: str = OTHER,
        only: bool = False,
    ) -> None:
        """Append out = W · x with weights of format `kind`; `values` are MATMUL fields. `only`: no other
        product reads x."""

    def _route(self, op: ops.Route) -> None:
        scores = self._input(op.scores)
        experts, weights = self._per_thread(op.experts), self._per_thread(op.routing_weights)
        self._list.append(
            ROUTE_ROWS,
            ROUTE,
            [scores],
            [experts, weights],
            scores=scores.address,
            scores_thread_stride=scores.thread_stride,
            experts=experts.address,
            routing_weights=weights.address,
            experts_thread_stride=experts.thread_stride,
            replicated=True,
            **self._route_fields(op),
        )
        self._set_location(op.experts, experts)
        self._set_location(op.routing_weights, weights)

    def _moe(self, op: ops.MoE) -> None:
        experts, weights = self._input(op.experts), self._input(op.routing_weights)
        gated = self._gated_fields(op)
        out, common = self._shared(op.out), {"on_logits_rows": op.x.logits_rows}
        down = self._product_fields(op.down, op.down_bias) | common
        choices = [
            {"expert": experts.address + 4 * j, "expert_thread_stride": experts.thread_stride}
            for j in range(op.experts.width)
        ]
        inners = [self._inner(op, j, choice, gated) for j, choice in enumerate(choices)]
        if not op.down_low:
            self._pooled_down(op, inners, down, choices, weights)
            return
        for j, (inner, choice) in enumerate(zip(inners, choices, strict=True)):
            weight = {"routing_weight": weights.address + 4 * j, "accumulate": j > 0}
            # One partition for all choices: each thread accumulates into the panels that it wrote itself.
            self._multiply(inner, op.down[0].format.name, out, down | choice | weight, "same panels")
            self._add_low(inner, op.down_low, out, choice | weight | common, "same panels")
        self._set_location(op.out, out)

    def _pooled_down(
        self,
        op: ops.MoE,
        inners: list[ops.Buffer],
        down: dict[str, Any],
        choices: list[dict[str, int]],
        weights: Region,
    ) -> None:
        """Append the products of all choices with `down`, whose panels threads partition together, and their
        sum."""
        n, width, out = len(choices), down["n_panels"] * LANES, self._shared(op.out)
        parts = self._arena.rows(f"choices of {op.out.name}", n, 4 * width)
        rows = [Region(f"{parts.name} {j}", parts.address + j * parts.stride, parts.stride) for j in range(n)]
        for j, (inner, choice) in enumerate(zip(inners, choices, strict=True)):
            weight = {"routing_weight": weights.address + 4 * j}
            fields = down | choice | weight | _pool(down, j, n)
            self._multiply(inner, op.down[0].format.name, rows[j], fields, only=True)
        self._list.append(
            ADD_CHOICES,
            CHOICES,
            rows,
            [out],
            x=parts.address,
            x_stride=parts.stride,
            n=n,
            out=out.address,
            width=width,
            on_logits_rows=op.x.logits_rows,
        )
        self._set_location(op.out, out)

    def _inner(self, op: ops.MoE, j: int, choice: dict[str, int], gated: dict[str, Any] | None) -> ops.Buffer:
        """The activated inner vector of choice number j, float32 [1, expert width]."""
        width, common = op.up[0].shape[0], choice | {"on_logits_rows": op.x.logits_rows}
        inner, n = ops.Buffer(f"inner of choice {j}", width), op.experts.width
        if gated is not None:
            self._multiply(
                op.x, op.up[0].format.name, self._shared(inner), gated | common | _pool(gated, j, n)
            )
            self._set_location(inner, self._shared(inner))
            return inner
        up = ops.Buffer(f"up of choice {j}", width)
        gate_product = (inner, op.gate, op.gate_bias, op.gate_low)
        for target, tensors, biases, low in (gate_product, (up, op.up, op.up_bias, op.up_low)):
            if tensors:
                fields, region = self._product_fields(tensors, biases), self._shared(target)
                self._multiply(op.x, tensors[0].format.name, region, fields | common | _pool(fields, j, n))
                if low:
                    self._add_low(op.x, low, region, common)
                self._set_location(target, region)
        self._activate(op, inner, up)
        return inner

    def _add_low(
        self,
        x: ops.Buffer,
        low: ops.LowRankExperts,
        out: Region,
        fields: dict[str, Any],
        partition: str = OTHER,
    ) -> None:
        """Append out += (x · downᵀ) · upᵀ, with the matrices of the expert that `fields` choose."""
        rank = low.down[0].shape[0]
        between, chosen = ops.Buffer(f"{x.name}, rank {rank}", rank), {**fields}
        chosen.pop("routing_weight", None)
        down = self._product_fields(low.down, None) | chosen | {"accumulate": False}
        self._multiply(x, low.down[0].format.name, self._shared(between), down)
        self._set_location(between, self._shared(between))
        up = self._product_fields(low.up, None) | fields | {"accumulate": True}
        self._multiply(between, low.up[0].format.name, out, up, partition)


def _pool(fields: Mapping[str, int], j: int, n: int) -> dict[str, int]:
    """The MATMUL fields of choice number `j` that let threads partition the panels of all `n` together."""
    return {"pool": n * fields["n_panels"], "pool_start": j * fields["n_panels"]}


def _activation_fields(op: ops.MoE) -> dict[str, Any]:
    """The fields of MATMUL and of POINTWISE that select the experts' activation."""
    if op.limit:
        return {"gate": CLIPPED, "limit": op.limit, "alpha": op.alpha}
    return {"gate": ACTIVATIONS.get(op.kind, 0)}


def _activation_kernel(op: ops.MoE) -> CpuKernel:
    """The kernel of the experts' activation when no product fuses it."""
    return GATED_ACTIVATION if op.limit else activation_kernel(op.kind)
