"""Which ops the card runs as one: found once for a program, before anything is lowered."""

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
    """Products of the same rows with matrices of one format: outs[i] = x @ weights[i]ᵀ + biases[i].

    `biases` are those of all, or none.
    """

    x: ops.Buffer
    outs: tuple[ops.Buffer, ...]
    weights: tuple[QTensor, ...]
    biases: tuple[np.ndarray, ...]
    accumulate: bool = False


@dataclass(frozen=True, eq=False)
class PreparedAttend:
    """Attend, after norms of each head of q and k, and after turning both."""

    attend: ops.Attend
    q_norm: ops.RMSNorm | None
    k_norm: ops.RMSNorm | None
    rope: ops.RoPE | None


FusedOp = ops.Op | GatedMatMul | JoinedMatMul | PreparedAttend


def fused(program: ops.Program) -> list[FusedOp]:
    """The program's ops, matrix products all as `JoinedMatMul` or `GatedMatMul`."""
    out: list[FusedOp] = []
    rest = list(program.ops)
    together = _joinable(program)
    while rest:
        if both := gated(rest, GATES):
            out.append(both)
            del rest[:GATED_OPS]
            continue
        if found := _prepared(rest):
            out.append(found[0])
            del rest[: found[1]]
            continue
        op = rest.pop(0)
        if isinstance(op, ops.MatMul):
            for group in _by_names(_take_run(op, rest), together):
                biases = tuple(m.bias for m in group if m.bias is not None)
                outs, weights = tuple(m.out for m in group), tuple(m.weight for m in group)
                out.append(JoinedMatMul(op.x, outs, weights, biases, op.accumulate))
        else:
            out.append(op)
    return out


def _take_run(first: ops.MatMul, rest: list[ops.Op]) -> list[ops.MatMul]:
    """`first` and the products behind it that can be made with it, taken from the beginning of `rest`."""
    run = [first]
    while rest:
        following = rest[0]
        if not isinstance(following, ops.MatMul) or not _joins(run, following):
            break
        run.append(following)
        del rest[0]
    return run


def _joins(run: Sequence[ops.MatMul], op: ops.MatMul) -> bool:
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
    rest = list(program.ops)
    while rest:
        if gated(rest, GATES):
            del rest[:GATED_OPS]
            continue
        op = rest.pop(0)
        if isinstance(op, ops.MatMul):
            yield _take_run(op, rest)


def _joinable(program: ops.Program) -> set[tuple[str, ...]]:
    """The names of buffers that are always written together: each can be a part of one wide matrix only."""
    seen: dict[str, set[tuple[str, ...]]] = {}
    for run in _runs(program):
        names = tuple(m.out.name for m in run)
        for name in names:
            seen.setdefault(name, set()).add(names)
    runs = {names for groups in seen.values() for names in groups if len(names) > 1}
    streams = {b.name for group in stream_groups(program.ops) for b in group}
    return {names for names in runs if all(seen[name] == {names} and name not in streams for name in names)}


def stream_groups(found: Sequence[FusedOp]) -> list[tuple[ops.Buffer, ...]]:
    """The residual streams that ops work on together: they lie side by side."""
    streams = (op.streams for op in found if isinstance(op, ops.AltUpPredict | ops.AltUpCorrect))
    return list(dict.fromkeys(streams))


def _by_names(run: list[ops.MatMul], together: set[tuple[str, ...]]) -> list[list[ops.MatMul]]:
    return [run] if tuple(m.out.name for m in run) in together else [[m] for m in run]


def joined_buffers(found: Sequence[FusedOp]) -> set[tuple[ops.Buffer, ...]]:
    """The buffers that are parts of one wide matrix."""
    return {op.outs for op in found if isinstance(op, JoinedMatMul) and len(op.outs) > 1}


def _prepared(rest: Sequence[ops.Op]) -> tuple[PreparedAttend, int] | None:
    """Norms and rotations in front of an attention, if they are what `prepare_qk` does."""
    n = next((i for i, op in enumerate(rest) if not isinstance(op, ops.RMSNorm | ops.RoPE)), len(rest))
    if n == len(rest) or not isinstance(attend := rest[n], ops.Attend):
        return None
    if not attend.append or attend.value_dim != attend.head_dim:
        return None
    norms: dict[ops.Buffer, ops.RMSNorm] = {}
    turns: dict[ops.Buffer, ops.RoPE] = {}
    heads = {attend.q: attend.heads, attend.k: attend.kv_heads}
    for op in rest[:n]:
        if not isinstance(op, ops.RMSNorm | ops.RoPE) or op.x not in heads:
            return None
        if isinstance(op, ops.RoPE):
            if op.x in turns or op.start or op.heads != heads[op.x]:
                return None
            turns[op.x] = op
        elif (
            isinstance(op, ops.RMSNorm)
            and op.out == op.x
            and op.x not in norms
            and op.x not in turns
            and op.groups == heads[op.x]
            and len(op.weight) in (attend.head_dim, op.x.width)
        ):
            norms[op.x] = op
        else:
            return None
    if len(turns) == 1 or (turns and not same_turn(turns[attend.q], turns[attend.k])):
        return None
    if len({norm.eps for norm in norms.values()}) > 1:
        return None
    return PreparedAttend(attend, norms.get(attend.q), norms.get(attend.k), turns.get(attend.q)), n + 1


def turn_key(op: ops.RoPE) -> tuple[object, ...]:
    """What rotations depend on."""
    return (
        op.inv_freq.tobytes(),
        op.attention_factor,
        op.original_context,
        id(getattr(op.long_inv_freq, "__self__", None)),
    )


def same_turn(a: ops.RoPE, b: ops.RoPE) -> bool:
    return a.interleaved == b.interleaved and turn_key(a) == turn_key(b)


def reads(op: FusedOp) -> list[ops.Buffer]:
    """The buffers whose contents an op looks at."""
    if isinstance(op, PreparedAttend):
        return [op.attend.q, op.attend.k, op.attend.v]
    if isinstance(op, JoinedMatMul):
        return [op.x, *(op.outs if op.accumulate else ())]
    found = []
    for field in fields(op):
        value = getattr(op, field.name)
        for b in value if isinstance(value, tuple) else (value,):
            if isinstance(b, ops.Buffer) and (field.name != "out" or isinstance(op, ops.Add)):
                found.append(b)
    return found


def writes(op: FusedOp) -> list[ops.Buffer]:
    """The buffers that an op changes."""
    match op:
        case PreparedAttend():
            return [op.attend.q, op.attend.k, op.attend.out]
        case JoinedMatMul():
            return list(op.outs)
        case ops.RoPE() | ops.SoftCap() | ops.SigmoidGate() | ops.AddPositions() | ops.Sparsify():
            return [op.x]
        case ops.MatchMagnitude():
            return [op.x]
        case ops.GrowQueries():
            return [op.q]
        case ops.Route():
            return [op.experts, op.routing_weights]
        case ops.AltUpCorrect():
            return [op.x, *op.streams]
        case ops.AltUpPredict():
            return [op.out, *op.streams]
        case _:
            return [op.out]


def readers(found: Sequence[FusedOp], after: int, buffer: ops.Buffer) -> list[FusedOp]:
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
