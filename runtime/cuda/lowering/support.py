"""Checks that the CUDA machine can run a program, and lists the matrices that must be uploaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....quant.block import QTensor
from ....quant.errors import UnsupportedModel
from ... import ops
from ...ops.fused import GatedMatMul
from ..weights.packing import PARTS, packed_bytes
from .fusing import CudaOp, JoinedMatMul, stream_groups


def unsupported(op: object) -> UnsupportedModel:
    """The exception for an op without a CUDA kernel."""
    return UnsupportedModel(f"the CUDA machine cannot run this model: it has no {type(op).__name__} yet")


def device_bytes(weight: QTensor) -> int:
    """Bytes that a matrix takes in GPU memory: some formats grow."""
    return packed_bytes(weight)


def matrices(op: CudaOp) -> list[tuple[QTensor, ...]]:
    """The matrices that an op reads, in groups that must be contiguous in memory."""
    match op:
        case JoinedMatMul():
            return [op.weights]
        case GatedMatMul():
            return [(op.gate, op.up)]
        case ops.MatMul():
            return [(op.weight,)]
        case ops.HeadMatMul():
            return [op.weights]
        case ops.MoE():
            lows = [group for low in op.lows for group in (low.down, low.up)]
            return [group for group in (op.gate, op.up, op.down, *lows) if group]
        case ops.Embed() | ops.AddPositions():
            return [(op.table,)]
        case _:
            return []


def check_supported(program: ops.Program) -> None:
    """Raises UnsupportedModel, with the reason, for a program that the CUDA machine cannot run."""
    refused = "the CUDA machine cannot run this model: "
    for op in program.ops:
        for group in matrices(op):
            first = group[0]
            if not first.format.is_float and first.format.name not in PARTS:
                raise UnsupportedModel(f"{refused}it has no {first.format.name} yet")
            if any(w.format is not first.format or w.shape != first.shape for w in group):
                raise UnsupportedModel(f"{refused}matrices of experts are not all alike")
        if isinstance(op, ops.Attend) and op.value_dim != op.head_dim and op.v != op.k:
            raise UnsupportedModel(f"{refused}values are not as long as keys")
    streams = stream_groups(program.ops)
    if len({b for group in streams for b in group}) < sum(len(group) for group in streams):
        raise UnsupportedModel(f"{refused}residual streams are grouped in different ways")


def weight_groups(cuda_ops: Sequence[CudaOp], hosted: Collection[int] = ()) -> list[tuple[QTensor, ...]]:
    """The matrices of all ops but the `hosted` ones (by `id`), each once, in groups that must be contiguous
    in memory."""
    groups: list[tuple[QTensor, ...]] = []
    seen: set[int] = set()
    for op in cuda_ops:
        for group in matrices(op) if id(op) not in hosted else ():
            if not any(id(w) in seen for w in group):
                groups.append(group)
                seen |= {id(w) for w in group}
    return groups
