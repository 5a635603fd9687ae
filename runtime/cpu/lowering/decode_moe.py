"""Lowering of mixtures of experts in decode: gemvs read the chosen expert's number from memory."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ... import ops
from ..abi.instructions import OTHER
from ..abi.records import ROUTE
from ..arena import Region
from ..kernels import ROUTE_ROWS
from .moe import MoELowering


class DecodeMoELowering(MoELowering):
    """Lowers Route and MoE for steps of one row: each of the top-k choices by itself."""

    @abstractmethod
    def _per_thread(self, buffer: ops.Buffer) -> Region:
        """The region of a buffer with a copy for each thread."""

    @abstractmethod
    def _set_location(self, buffer: ops.Buffer, region: Region) -> None:
        """Note that a region holds the present contents of a buffer."""

    @abstractmethod
    def _multiply(
        self, x: ops.Buffer, kind: str, out: Region, values: dict[str, Any], partition: str = OTHER
    ) -> None:
        """Append out = W · x with weights of format `kind`; `values` are MATMUL fields."""

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
        for j, (inner, choice) in enumerate(zip(inners, choices, strict=True)):
            weight = {"routing_weight": weights.address + 4 * j, "accumulate": j > 0}
            # One partition for all choices: each thread accumulates into the panels that it wrote itself.
            self._multiply(inner, op.down[0].format.name, out, down | choice | weight, "same panels")
            if op.down_low:
                self._add_low(inner, op.down_low, out, choice | weight | common, "same panels")
        self._set_location(op.out, out)

    def _inner(self, op: ops.MoE, j: int, choice: dict[str, int], gated: dict[str, Any] | None) -> ops.Buffer:
        """The activated inner vector of choice number j, float32 [1, expert width]."""
        width, common = op.up[0].shape[0], choice | {"on_logits_rows": op.x.logits_rows}
        inner = ops.Buffer(f"inner of choice {j}", width)
        if gated is not None:
            self._multiply(op.x, op.up[0].format.name, self._shared(inner), gated | common)
            self._set_location(inner, self._shared(inner))
            return inner
        up = ops.Buffer(f"up of choice {j}", width)
        gate_product = (inner, op.gate, op.gate_bias, op.gate_low)
        for target, tensors, biases, low in (gate_product, (up, op.up, op.up_bias, op.up_low)):
            if tensors:
                fields, region = self._product_fields(tensors, biases), self._shared(target)
                self._multiply(op.x, tensors[0].format.name, region, fields | common)
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
