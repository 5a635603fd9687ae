"""Lowering of mixtures of experts, as far as prefill and decode share it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ....quant.block import QTensor
from ....quant.jit.kernel import CpuKernel
from ... import ops
from ..abi import sizes
from ..abi.records import CLIPPED
from ..kernels import GATED_ACTIVATION
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


def _activation_fields(op: ops.MoE) -> dict[str, Any]:
    """The fields of MATMUL and of POINTWISE that select the experts' activation."""
    if op.limit:
        return {"gate": CLIPPED, "limit": op.limit, "alpha": op.alpha}
    return {"gate": ACTIVATIONS.get(op.kind, 0)}


def _activation_kernel(op: ops.MoE) -> CpuKernel:
    """The kernel of the experts' activation when no product fuses it."""
    return GATED_ACTIVATION if op.limit else activation_kernel(op.kind)
