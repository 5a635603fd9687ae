"""Fuses ops that one kernel computes together, once for a program, before it is lowered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ....quant.block import QTensor
from ... import ops
from ...ops.fused import GATED_OPS, GatedMatMul, gated
from ..kernels.common.common import GELU_TANH, SILU
from ..weights.packing import TILE

GATES = {"silu": SILU, "gelu_tanh": GELU_TANH}


@dataclass(frozen=True, eq=False)
class JoinedMatMul:
    """Products of the same rows with matrices of one format, contiguous in memory: outs[i] = x @ weights[i]ᵀ
    + biases[i].

    `biases` has one bias for each matrix, or is empty. With `accumulate` the result is added to the output.
    """

    x: ops.Buffer
    outs: tuple[ops.Buffer, ...]
    weights: tuple[QTensor, ...]
    biases: tuple[np.ndarray, ...]
    accumulate: bool = False


@dataclass(frozen=True, eq=False)
class PreparedAttend:
    """Attend, with the RMSNorm of each head of q and k and the RoPE of both in front of it."""

    attend: ops.Attend
    q_norm: ops.RMSNorm | None
    k_norm: ops.RMSNorm | None
    rope: ops.RoPE | None


CudaOp = ops.Op | GatedMatMul | JoinedMatMul | PreparedAttend


def fuse(program: ops.Program) -> list[CudaOp]:
    """The program's ops, fused; every matrix product is a `JoinedMatMul` or a `GatedMatMul`."""
    out: list[CudaOp] = []
    rest = list(program.ops)
    joinable = _joinable(program)
    while rest:
        if product := gated(rest, GATES):
            out.append(product)
            del rest[:GATED_OPS]
            continue
        if prepared := _prepared(rest):
            out.append(prepared[0])
            del rest[: prepared[1]]
            continue
        op = rest.pop(0)
        if isinstance(op, ops.MatMul):
            for group in _split_unless_joinable(_take_run(op, rest), joinable):
                biases = tuple(m.bias for m in group if m.bias is not None)
                outs, weights = tuple(m.out for m in group), tuple(m.weight for m in group)
                out.append(JoinedMatMul(op.x, outs, weights, biases, op.accumulate))
        else:
            out.append(op)
    return out


def _take_run(first: ops.MatMul, rest: list[ops.Op]) -> list[ops.MatMul]:
    """`first` and the following products that can be joined with it, which are removed from `rest`."""
    run = [first]
    while rest:
        following = rest[0]
        if not isinstance(following, ops.MatMul) or not _joins(run, following):
            break
        run.append(following)
        del rest[0]
    return run


def _joins(run: Sequence[ops.MatMul], op: ops.MatMul) -> bool:
    """Whether a product can be computed in one launch with the products of `run`."""
    first = run[0]
    return (
        op.x == first.x
        and op.weight.format is first.weight.format
        and (op.bias is None) == (first.bias is None)
        and not (op.accumulate or first.accumulate)
        and op.out != op.x
        and op.out.logits_rows == first.out.logits_rows
        and op.out not in [m.out for m in run]
        and (op.weight.format.is_float or run[-1].weight.shape[0] % TILE == 0)
    )


def _runs(program: ops.Program) -> Iterator[list[ops.MatMul]]:
    """The maximal runs of products that can be joined."""
    rest = list(program.ops)
    while rest:
        if gated(rest, GATES):
            del rest[:GATED_OPS]
            continue
        op = rest.pop(0)
        if isinstance(op, ops.MatMul):
            yield _take_run(op, rest)


def _joinable(program: ops.Program) -> set[tuple[str, ...]]:
    """The outputs (their names) of the runs that are joined wherever they are written.

    The outputs of joined products are columns of one matrix, so that a buffer belongs to one group of outputs
    only: the longest run with it. A run is joined if its outputs are neighbours in a group, as those of q and
    k are in the layers of a mixture of formats whose v has a format of its own.
    """
    runs = {tuple(m.out.name for m in run) for run in _runs(program)}
    streams = {b.name for group in stream_groups(program.ops) for b in group}
    group_of: dict[str, tuple[str, ...]] = {}
    joinable: set[tuple[str, ...]] = set()
    for names in sorted(runs, key=lambda names: (-len(names), names)):
        if len(names) < 2 or not streams.isdisjoint(names):
            continue
        if not any(name in group_of for name in names):
            group_of |= dict.fromkeys(names, names)
        group = group_of.get(names[0], ())
        at = group.index(names[0]) if group else 0
        if group[at : at + len(names)] == names:
            joinable.add(names)
    return joinable


def stream_groups(cuda_ops: Sequence[CudaOp]) -> list[tuple[ops.Buffer, ...]]:
    """The groups of residual streams of AltUp: those of a group are columns of one matrix."""
    streams = (op.streams for op in cuda_ops if isinstance(op, ops.AltUpPredict | ops.AltUpCorrect))
    return list(dict.fromkeys(streams))


def _split_unless_joinable(run: list[ops.MatMul], joinable: set[tuple[str, ...]]) -> list[list[ops.MatMul]]:
    """The run as it is if its outputs are joinable, else each product by itself."""
    return [run] if tuple(m.out.name for m in run) in joinable else [[m] for m in run]


def joined_buffers(cuda_ops: Sequence[CudaOp]) -> set[tuple[ops.Buffer, ...]]:
    """The groups of outputs of joined products: those of a group are columns of one matrix."""
    groups = {op.outs for op in cuda_ops if isinstance(op, JoinedMatMul) and len(op.outs) > 1}
    return {group for group in groups if not any(set(group) < set(other) for other in groups)}


def _prepared(rest: Sequence[ops.Op]) -> tuple[PreparedAttend, int] | None:
    """An Attend and the norms and RoPE in front of it, if the kernel `prepare_qk` can compute them, and the
    number of ops that it replaces.
    """
    n = next((i for i, op in enumerate(rest) if not isinstance(op, ops.RMSNorm | ops.RoPE)), len(rest))
    if n == len(rest) or not isinstance(attend := rest[n], ops.Attend):
        return None
    if not attend.append or attend.value_dim != attend.head_dim:
        return None
    norms: dict[ops.Buffer, ops.RMSNorm] = {}
    rotations: dict[ops.Buffer, ops.RoPE] = {}
    heads = {attend.q: attend.heads, attend.k: attend.kv_heads}
    for op in rest[:n]:
        if not isinstance(op, ops.RMSNorm | ops.RoPE) or op.x not in heads:
            return None
        if isinstance(op, ops.RoPE):
            if op.x in rotations or op.start or op.heads != heads[op.x]:
                return None
            rotations[op.x] = op
        elif (
            isinstance(op, ops.RMSNorm)
            and op.out == op.x
            and op.x not in norms
            and op.x not in rotations
            and op.groups == heads[op.x]
            and len(op.weight) in (attend.head_dim, op.x.width)
        ):
            norms[op.x] = op
        else:
            return None
    if len(rotations) == 1 or (rotations and not same_rotation(rotations[attend.q], rotations[attend.k])):
        return None
    if len({norm.eps for norm in norms.values()}) > 1:
        return None
    return PreparedAttend(attend, norms.get(attend.q), norms.get(attend.k), rotations.get(attend.q)), n + 1


def sources(cuda_ops: Sequence[CudaOp], program: ops.Program) -> list[int]:
    """The number of the first op of the program that each fused op computes, and the number of all ops."""
    starts = [0]
    for op in cuda_ops:
        match op:
            case GatedMatMul():
                n = GATED_OPS
            case JoinedMatMul():
                n = len(op.weights)
            case PreparedAttend():
                n = program.ops.index(op.attend, starts[-1]) - starts[-1] + 1
            case _:
                n = 1
        starts.append(starts[-1] + n)
    return starts


def rotation_key(op: ops.RoPE) -> tuple[object, ...]:
    """What the angles of a RoPE op depend on; ops with equal keys share a table of angles."""
    return (
        op.inv_freq.tobytes(),
        op.attention_factor,
        op.original_context,
        id(getattr(op.long_inv_freq, "__self__", None)),
    )


def same_rotation(a: ops.RoPE, b: ops.RoPE) -> bool:
    """Whether two RoPE ops rotate by the same angles in the same pairing."""
    return a.interleaved == b.interleaved and rotation_key(a) == rotation_key(b)


def reads(op: CudaOp) -> list[ops.Buffer]:
    """The buffers that an op reads."""
    if isinstance(op, PreparedAttend):
        return [op.attend.q, op.attend.k, op.attend.v]
    if isinstance(op, JoinedMatMul):
        return [op.x, *(op.outs if op.accumulate else ())]
    buffers = []
    for field in fields(op):
        value = getattr(op, field.name)
        for b in value if isinstance(value, tuple) else (value,):
            if isinstance(b, ops.Buffer) and (field.name != "out" or isinstance(op, ops.Add)):
                buffers.append(b)
    return buffers


def writes(op: CudaOp) -> list[ops.Buffer]:
    """The buffers that an op writes."""
    match op:
        case PreparedAttend():
            return [op.attend.q, op.attend.k, op.attend.out]
        case JoinedMatMul():
            return list(op.outs)
        case ops.RoPE() | ops.SoftCap() | ops.SigmoidGate() | ops.AddPositions() | ops.GaussianTopK():
            return [op.x]
        case ops.MatchMagnitude() | ops.AllReduce():
            return [op.x]
        case ops.ScaleQueries():
            return [op.q]
        case ops.Route():
            return [op.experts, op.routing_weights]
        case ops.AltUpCorrect():
            return [op.x, *op.streams]
        case ops.AltUpPredict():
            return [op.out, *op.streams]
        case _:
            return [op.out]


def readers(found: Sequence[CudaOp], after: int, buffer: ops.Buffer) -> list[CudaOp]:
    """The ops that see what `buffer` holds behind op number `after`."""
    out = []
    for op in found[after + 1 :]:
        if buffer in reads(op):
            out.append(op)
        if buffer in writes(op):
            partly = isinstance(op, JoinedMatMul) and op.accumulate
            if not partly and buffer not in reads(op):
                break
    return out
