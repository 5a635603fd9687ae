"""Ops of a program that compiled machines run as one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...quant.block import QTensor
from . import GatedActivation, MatMul, Op
from .buffer import Buffer

GATED_OPS = 3  # that a GatedMatMul stands for


@dataclass(frozen=True, eq=False)
class GatedMatMul:
    """Two products and their activation in one: out = f(x @ gateᵀ) · (x @ upᵀ)."""

    x: Buffer
    out: Buffer
    gate: QTensor
    up: QTensor
    kind: str


def gated(ops: Sequence[Op], kinds: Collection[str]) -> GatedMatMul | None:
    """What the first GATED_OPS ops are as one, if they are gate, up and an activation of these kinds, of
    block-quantised matrices of one format."""
    match ops[:GATED_OPS]:
        case [
            MatMul(x=x, out=gate, weight=a, bias=None, accumulate=False),
            MatMul(x=x2, out=up, weight=b, bias=None, accumulate=False),
            GatedActivation(gate=g, up=u, out=result, kind=kind, scale=1.0, up_start=0),
        ] if (x, gate, up) == (x2, g, u) and kind in kinds and a.format is b.format and a.shape == b.shape:
            if not a.format.is_float:
                return GatedMatMul(x, result, a, b, kind)
    return None
