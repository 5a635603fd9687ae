"""Which programs the card can run, and which of their matrices it must hold."""

from __future__ import annotations

from collections.abc import Sequence

from ....quant.block import QTensor
from ... import ops
from ...fields import UnsupportedModel
from ..fusing import FusedOp, GatedMatMul, JoinedMatMul
from ..packing import PARTS

SUPPORTED = (
    ops.Embed,
    ops.RMSNorm,
    ops.LayerNorm,
    ops.MatMul,
    ops.RoPE,
    ops.GrowQueries,
    ops.Attend,
    ops.GatedActivation,
    ops.SigmoidGate,
    ops.Activation,
    ops.Add,
    ops.SelectRows,
    ops.SoftCap,
)


def unsupported(op: object) -> UnsupportedModel:
    return UnsupportedModel(f"the CUDA machine cannot run this model: it has no {type(op).__name__} yet")


def check_supported(program: ops.Program) -> None:
    """Raise UnsupportedModel, naming the op, for a program that the card cannot run yet."""
    for op in program.ops:
        weight = op.weight if isinstance(op, ops.MatMul) else op.table if isinstance(op, ops.Embed) else None
        if weight is not None and not weight.format.is_float and weight.format.name not in PARTS:
            raise UnsupportedModel(
                f"the CUDA machine cannot run this model: it has no {weight.format.name} yet"
            )
    for op in program.ops:
        if not isinstance(op, SUPPORTED):
            raise unsupported(op)
        if isinstance(op, ops.Attend) and op.value_dim != op.head_dim:
            raise UnsupportedModel("the CUDA machine cannot run this model: it has no latent attention yet")


def weight_groups(found: Sequence[FusedOp]) -> list[tuple[QTensor, ...]]:
    """The matrices that products and look-ups read; those of a group must lie one behind the other."""
    groups: list[tuple[QTensor, ...]] = []
    seen: set[int] = set()
    for op in found:
        match op:
            case JoinedMatMul():
                group: tuple[QTensor, ...] = op.weights
            case GatedMatMul():
                group = (op.gate, op.up)
            case ops.Embed():
                group = (op.table,)
            case _:
                continue
        if not any(id(w) in seen for w in group):
            groups.append(group)
            seen |= {id(w) for w in group}
    return groups
