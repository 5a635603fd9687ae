"""Tensor parallelism: a program for each of several machines that share the work of every layer.

Machine i has some of the attention heads with their part of the KV cache, and some of the columns of each FFN
and of each expert. The matrices that lead there are cut by rows, those that lead back by columns. The product
with the latter is a part of the sum over all columns: an AllReduce in front of the next op that reads it adds
up the parts of all machines. The output matrix is cut by rows, unless it is the embedding table as well: each
machine has the logits of some of the vocabulary. Everything else is computed by every machine.

Shoeybi et al. 2019, "Megatron-LM".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import lcm
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import UnsupportedModel
from ..ops import (
    Activation,
    Add,
    AllReduce,
    Attend,
    Buffer,
    Embed,
    GatedActivation,
    LowRankExperts,
    MatMul,
    MoE,
    Op,
    Program,
    RMSNorm,
    RoPE,
    ScaleQueries,
    SelectRows,
    SigmoidGate,
    SoftCap,
)
from ..ops.buffer import buffers_of

Ends = tuple[int, ...]  # where the columns of each machine begin, and the width

TILE = 16  # rows of a matrix, by which the vocabulary is divided
LEAST_COLUMNS = 4  # by which widths are divided: 16 bytes of float32

WHOLE = ["AddPositions", "Embed", "LayerNorm", "MatchMagnitude", "Route", "SoftCap", "GaussianTopK"]


def tensor_parts(program: Program, n: int) -> list[Program]:
    """The programs of `n` machines. Raises UnsupportedModel, with the reason, if the model cannot be shared
    in this way."""
    ends = column_ends(program, n)
    return [_Part(program, ends, i).program() for i in range(n)]


def column_ends(program: Program, n: int) -> dict[str, Ends]:
    """The columns of each machine, for the buffers, by name, that are divided among them."""
    ends: dict[str, Ends] = {}
    for op in program.ops:
        if isinstance(op, Attend):
            _check_attention(op, program, n)
            for buffer in (op.q, op.k, op.v, op.out):
                ends[buffer.name] = tuple(buffer.width * i // n for i in range(n + 1))
    if not ends:
        raise _cannot("it has no attention heads")
    for op in program.ops:
        if isinstance(op, SigmoidGate) and op.x.name in ends and op.gate.width == op.x.width:
            ends[op.gate.name] = ends[op.x.name]
        if isinstance(op, SelectRows) and op.x.name in ends:
            ends[op.out.name] = ends[op.x.name]
    return ends | _ffn_ends(program, n) | _logits_ends(program, n)


def _logits_ends(program: Program, n: int) -> dict[str, Ends]:
    """The columns of the logits of each machine, if they are divided."""
    logits, tables = program.logits, [op.table for op in program.ops if isinstance(op, Embed)]
    users = [op for op in program.ops if logits in buffers_of([op])]
    outputs = [op for op in users if isinstance(op, MatMul)]
    others = [op for op in users if not isinstance(op, MatMul | SoftCap)]
    if len(outputs) != 1 or others or logits.width < n * TILE:
        return {}
    if any(outputs[0].weight is table for table in tables):
        return {}
    tiles = -(-logits.width // TILE)
    return {logits.name: (*(TILE * round(tiles * i / n) for i in range(n)), logits.width)}


def _check_attention(op: Attend, program: Program, n: int) -> None:
    if op.v == op.k or op.head_dim != op.value_dim or program.cache_layers[op.layer].value_dim is not None:
        raise _cannot("its heads share one compressed key (multi-head latent attention)")
    if op.kv_heads % n:
        raise _cannot(f"its {op.kv_heads} key and value heads cannot be divided by {n}")


def _ffn_ends(program: Program, n: int) -> dict[str, Ends]:
    """The columns of each machine of the FFNs whose activations lie between two matrix products."""
    written = {op.out.name for op in program.ops if isinstance(op, MatMul) and not op.accumulate}
    blocks: dict[str, int] = {}  # of the matrices that read a buffer
    others: set[str] = set()  # read or written by ops of other kinds
    for op in program.ops:
        match op:
            case MatMul():
                blocks[op.x.name] = lcm(blocks.get(op.x.name, LEAST_COLUMNS), op.weight.format.block_size)
            case GatedActivation() | Activation():
                pass
            case SigmoidGate() if op.gate.width == 1:
                pass
            case _:
                others |= {buffer.name for buffer in buffers_of([op])}
    ends: dict[str, Ends] = {}
    for op in program.ops:
        inputs: tuple[Buffer, ...]
        if isinstance(op, GatedActivation):
            inputs = (op.gate, op.up)
        elif isinstance(op, Activation):
            inputs = (op.x,)
        else:
            continue
        names = {buffer.name for buffer in (*inputs, op.out)}
        alike = len({buffer.width for buffer in (*inputs, op.out)}) == 1
        if (
            not alike
            or names & others
            or not {b.name for b in inputs} <= written
            or op.out.name not in blocks
        ):
            continue
        cut = _divided(op.out.width, blocks[op.out.name], n)
        for name in names:
            if ends.setdefault(name, cut) != cut:
                raise _cannot("its FFNs have formats that cannot be cut alike")
    return ends


def _divided(width: int, block: int, n: int) -> Ends:
    """`width` columns in `n` parts of whole blocks, as even as they can be."""
    blocks = width // block
    if width % block or blocks < n:
        raise _cannot(f"{width} columns in blocks of {block} cannot be divided by {n}")
    return tuple(block * round(blocks * i / n) for i in range(n + 1))


def _cannot(why: str) -> UnsupportedModel:
    return UnsupportedModel(f"cards cannot share the layers of this model: {why}")


@dataclass
class _Part:
    """Makes the program of machine number `i`."""

    whole: Program
    ends: dict[str, Ends]
    i: int
    _ops: list[Op] = field(default_factory=list)
    _partial: dict[str, Buffer] = field(default_factory=dict)  # buffers that hold a part of the sum
    _cut: dict[tuple[int, str, int, int], tuple[QTensor, QTensor]] = field(default_factory=dict)

    def program(self) -> Program:
        starts = []
        for op in self.whole.ops:
            starts.append(len(self._ops))
            self._add(op)
        logits = self.whole.logits
        for buffer in (logits, *self.whole.boundary_out):
            self._reduce(buffer)
        starts.append(len(self._ops))
        n = len(next(iter(self.ends.values()))) - 1
        return replace(
            self.whole,
            ops=tuple(self._ops),
            buffers=buffers_of(self._ops),
            logits=self._narrow(logits) if logits.name in self.ends else logits,
            cache_layers=tuple(replace(c, kv_heads=c.kv_heads // n) for c in self.whole.cache_layers),
            layers=tuple(starts[at] for at in self.whole.layers),
        )

    def _add(self, op: Op) -> None:
        """Append this machine's share of an op."""
        match op:
            case MatMul():
                self._matmul(op)
            case MoE():
                self._experts(op)
            case Attend():
                n = len(self.ends[op.q.name]) - 1
                heads, at = op.heads // n, self.i * (op.heads // n)
                sinks = None if op.sinks is None else op.sinks[at : at + heads]
                self._emit(replace(op, heads=heads, kv_heads=op.kv_heads // n, sinks=sinks))
            case RMSNorm() if op.x.name in self.ends:
                self._emit(self._norm_of_heads(op))
            case RoPE():
                n = len(self.ends[op.x.name]) - 1
                self._emit(replace(op, heads=op.heads // n))
            case Activation() | GatedActivation() | ScaleQueries() | SelectRows() | SigmoidGate() | SoftCap():
                self._reduce(*buffers_of([op]))
                self._emit(op)
            case Add():
                self._sum(op)
            case RMSNorm():
                self._reduce(op.x)
                self._emit(op)
            case _ if type(op).__name__ in WHOLE and not self._are_cut(buffers_of([op])):
                self._reduce(*buffers_of([op]))
                self._emit(op)
            case _:
                raise _cannot(f"it has {type(op).__name__}")

    def _emit(self, op: Op) -> None:
        """Append an op with this machine's columns of its buffers."""
        narrow: dict[str, Any] = {
            f.name: self._narrow(value)
            for f in fields(op)
            if isinstance(value := getattr(op, f.name), Buffer) and value.name in self.ends
        }
        self._ops.append(replace(op, **narrow) if narrow else op)

    def _narrow(self, buffer: Buffer) -> Buffer:
        a, b = self._columns(buffer)
        return replace(buffer, width=b - a)

    def _columns(self, buffer: Buffer) -> tuple[int, int]:
        ends = self.ends[buffer.name]
        return ends[self.i], ends[self.i + 1]

    def _are_cut(self, buffers: Iterable[Buffer]) -> bool:
        return any(buffer.name in self.ends for buffer in buffers)

    def _reduce(self, *buffers: Buffer) -> None:
        """Add up the parts that buffers hold."""
        for buffer in buffers:
            if self._partial.pop(buffer.name, None):
                self._ops.append(AllReduce(buffer))

    def _matmul(self, op: MatMul) -> None:
        x_cut, out_cut = op.x.name in self.ends, op.out.name in self.ends
        if x_cut and out_cut:
            raise _cannot(f"a product leads from {op.x.name} to {op.out.name}")
        self._reduce(op.x)
        if out_cut:
            a, b = self._columns(op.out)
            bias = None if op.bias is None else op.bias[a:b]
            self._emit(replace(op, weight=self._rows(op.weight, a, b), bias=bias))
        elif x_cut:
            weight = self._columns_of(op.weight, *self._columns(op.x))
            self._emit_part(replace(op, weight=weight))
        elif op.accumulate and op.out.name in self._partial:
            if self.i == 0:
                self._emit(op)
        else:
            self._partial.pop(op.out.name, None)
            self._emit(op)

    def _emit_part(self, op: MatMul) -> None:
        """A product that gives a part of the sum: the first machine adds the bias and the residual."""
        first = self.i == 0
        add = op.accumulate and (first or op.out.name in self._partial)
        self._emit(replace(op, accumulate=add, bias=op.bias if first else None))
        self._partial[op.out.name] = op.out

    def _experts(self, op: MoE) -> None:
        self._reduce(op.x, op.experts, op.routing_weights)
        width = op.down[0].shape[1]
        blocks = [w.format.block_size for w in op.down[:1]]
        if op.down_low:
            blocks += [w.format.block_size for w in op.down_low.down[:1]]
        n = len(next(iter(self.ends.values()))) - 1
        ends = _divided(width, lcm(LEAST_COLUMNS, *blocks), n)
        a, b = ends[self.i], ends[self.i + 1]

        def rows(matrices: Sequence[QTensor]) -> tuple[QTensor, ...]:
            return tuple(self._rows(w, a, b) for w in matrices)

        def columns(matrices: Sequence[QTensor]) -> tuple[QTensor, ...]:
            return tuple(self._columns_of(w, a, b) for w in matrices)

        def low_rows(low: LowRankExperts | None) -> LowRankExperts | None:
            return low and replace(low, up=rows(low.up))

        down_bias = op.down_bias
        if self.i and down_bias is not None:
            down_bias = np.zeros_like(down_bias)  # the same kernels on all machines
        self._emit(
            replace(
                op,
                gate=rows(op.gate),
                up=rows(op.up),
                down=columns(op.down),
                gate_bias=None if op.gate_bias is None else op.gate_bias[:, a:b],
                up_bias=None if op.up_bias is None else op.up_bias[:, a:b],
                down_bias=down_bias,
                gate_low=low_rows(op.gate_low),
                up_low=low_rows(op.up_low),
                down_low=op.down_low and replace(op.down_low, down=columns(op.down_low.down)),
            )
        )
        self._partial[op.out.name] = op.out

    def _sum(self, op: Add) -> None:
        """A sum of two parts is a part of the sum; anything else needs both in full."""
        if self._are_cut((op.x, op.out)):
            raise _cannot(f"it adds {op.x.name} to {op.out.name}")
        if not {op.x.name, op.out.name} <= self._partial.keys():
            self._reduce(op.x, op.out)
        self._emit(op)

    def _norm_of_heads(self, op: RMSNorm) -> RMSNorm:
        n = len(self.ends[op.x.name]) - 1
        if op.out.name not in self.ends or op.groups % n or op.groups == 1:
            raise _cannot("it has a norm over all heads")
        weight = op.weight
        if len(weight) == op.x.width:
            a, b = self._columns(op.x)
            weight = weight[a:b]
        elif op.groups * len(weight) != op.x.width:
            raise _cannot("it has a norm over some of the heads")
        return replace(op, groups=op.groups // n, weight=weight)

    def _rows(self, tensor: QTensor, start: int, stop: int) -> QTensor:
        return self._part_of(tensor, "rows", start, stop)

    def _columns_of(self, tensor: QTensor, start: int, stop: int) -> QTensor:
        return self._part_of(tensor, "columns", start, stop)

    def _part_of(self, tensor: QTensor, kind: str, start: int, stop: int) -> QTensor:
        """A part of a matrix; the same tensor each time, since machines know matrices by their identity."""
        key = id(tensor), kind, start, stop
        if key not in self._cut:
            cut = tensor.part_of_rows if kind == "rows" else tensor.part_of_columns
            try:
                self._cut[key] = tensor, cut(start, stop)
            except ValueError as problem:
                raise _cannot(str(problem)) from None
        return self._cut[key][1]
