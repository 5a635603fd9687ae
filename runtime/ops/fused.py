"""A fused op: compiled machines run several ops of a program as one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...quant.block import QTensor
from .activations import GatedActivation
from .buffer import Buffer
from .dense import MatMul
from .program import Op

GATED_OPS = 3  # the number of ops that a GatedMatMul replaces


@dataclass(frozen=True, eq=False)
class GatedMatMul:
    """Both input projections of a gated FFN and its activation: out = f(x @ gateᵀ) · (x @ upᵀ)."""

    x: Buffer
    out: Buffer
    gate: QTensor
    up: QTensor
    kind: str


def gated(ops: Sequence[Op], kinds: Collection[str]) -> GatedMatMul | None:
    """The GatedMatMul that the first GATED_OPS ops are equal to, or None.

    They must be gate, up and an activation of one of `kinds`, without biases, and both matrices
    block-quantised in the same format.
    """
    match ops[:GATED_OPS]:
        case [
            MatMul(x=x, out=gate, weight=a, bias=None, accumulate=False),
            MatMul(x=x2, out=up, weight=b, bias=None, accumulate=False),
            GatedActivation(gate=g, up=u, out=result, kind=kind, scale=1.0, up_start=0),
        ] if (x, gate, up) == (x2, g, u) and kind in kinds and a.format is b.format and a.shape == b.shape:
            if not a.format.is_float:
                return GatedMatMul(x, result, a, b, kind)
    return None
