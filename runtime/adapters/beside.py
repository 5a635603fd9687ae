"""Low-rank products beside the matrices of a program: out = x @ Wᵀ + (x @ downᵀ) @ upᵀ.

The weights stay as they are, quantised or not. The products are ops like any others, so that every machine
runs them, and a program without adapters has none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ...quant.block import QTensor
from ..ops import Add, Buffer, Embed, HeadMatMul, LayerNorm, LowRankExperts, MatMul, MoE, Op, Program
from ..ops.buffer import buffers_of


@dataclass(frozen=True, eq=False)
class Beside:
    """What is computed beside a matrix: `down` (rank, inputs), `up` (outputs, rank), float32 `bias` or None.

    Beside an embedding table `down` is a table too, (tokens, rank). `name` names the buffer between them.
    """

    name: str
    down: QTensor
    up: QTensor
    bias: np.ndarray | None = None

    def buffer(self, out: Buffer) -> Buffer:
        """The product with `down`, [rows, rank], for a product that is added to `out`."""
        rank = self.up.shape[1]
        name = f"{self.name}, rank {rank}"
        return Buffer(f"last {name}" if out.logits_rows else name, rank, out.logits_rows)

    def add(self, out: Buffer) -> MatMul:
        """out += the product with `up`."""
        return MatMul(self.buffer(out), out, self.up, self.bias, accumulate=True)


@dataclass(frozen=True)
class Additions:
    """What is added to a program.

    `products` are beside matrix products by the `id` of their weight, `embeddings` by that of their table.
    `experts` are beside a projection of experts, and `heads` in place of the matrices of heads (HeadMatMul),
    both by the `id` of the tuple of matrices. `tables` are embeddings and `outputs` output matrices in place
    of those of the model, by their `id`. `directions`, float32 [hidden] by layer, are added to the
    `streams` behind it.
    """

    products: dict[int, Beside] = field(default_factory=dict)
    embeddings: dict[int, Beside] = field(default_factory=dict)
    experts: dict[int, LowRankExperts] = field(default_factory=dict)
    heads: dict[int, tuple[QTensor, ...]] = field(default_factory=dict)
    tables: dict[int, QTensor] = field(default_factory=dict)
    outputs: dict[int, QTensor] = field(default_factory=dict)
    directions: dict[int, np.ndarray] = field(default_factory=dict)
    streams: tuple[Buffer, ...] = ()

    @property
    def n_bytes(self) -> int:
        """The size of all matrices."""
        besides = (*self.products.values(), *self.embeddings.values())
        matrices = [matrix for beside in besides for matrix in (beside.down, beside.up)]
        matrices += (m for low in self.experts.values() for m in (*low.down, *low.up))
        matrices += (matrix for heads in self.heads.values() for matrix in heads)
        matrices += (*self.tables.values(), *self.outputs.values())
        return sum(matrix.n_bytes for matrix in matrices)

    def to(self, program: Program) -> Program:
        """The program with everything that is added."""
        ops: list[Op] = []
        moved: dict[int, int] = {}  # index of an op at which a layer begins → its new index
        for start, end in pairwise(sorted({0, *program.layers, len(program.ops)})):
            moved[start] = len(ops)
            ops += self._added(program.ops[start:end])
            if start in program.layers[:-1]:
                layer = program.layers.index(start)
                if layer in self.directions:
                    ops += self._directed(self.directions[layer], is_last=end == program.layers[-1])
        moved[len(program.ops)] = len(ops)
        layers = tuple(moved[start] for start in program.layers)
        return replace(program, ops=tuple(ops), buffers=buffers_of(ops), layers=layers)

    def unused(self, program: Program) -> set[str]:
        """The names of additions beside which `program` has no product."""
        products = {id(op.weight) for op in program.ops if isinstance(op, MatMul)}
        tables = {id(op.table) for op in program.ops if isinstance(op, Embed)}
        unused = [b.name for key, b in self.products.items() if key not in products]
        return {*unused, *(b.name for key, b in self.embeddings.items() if key not in tables)}

    def _added(self, ops: Sequence[Op]) -> Iterator[Op]:
        for run in _runs(ops):
            match run:
                case [Embed() as op]:
                    table = self.tables.get(id(op.table))
                    yield replace(op, table=table) if table else op
                    if beside := self.embeddings.get(id(op.table)):
                        yield Embed(beside.buffer(op.out), beside.down, op.scale)
                        yield beside.add(op.out)
                case [MoE() as op]:
                    gate, up, down = (self.experts.get(id(group)) for group in (op.gate, op.up, op.down))
                    yield replace(op, gate_low=gate, up_low=up, down_low=down) if gate or up or down else op
                case [HeadMatMul() as op]:
                    heads = self.heads.get(id(op.weights))
                    yield replace(op, weights=heads) if heads else op
                case [MatMul(), *_]:
                    yield from self._beside_products([op for op in run if isinstance(op, MatMul)])
                case _:
                    yield from run

    def _directed(self, direction: np.ndarray, is_last: bool) -> Iterator[Op]:
        """The residual streams plus a direction. Behind the last layer they have the rows of the logits.

        A LayerNorm with a weight of zeros gives its bias, whatever it reads.
        """
        streams = [Buffer(f"last {s.name}", s.width, True) if is_last else s for s in self.streams]
        first, zeros = streams[0], np.zeros_like(direction)
        added = replace(first, name="last direction" if is_last else "direction")
        yield LayerNorm(first, added, zeros, direction, 1.0)
        for stream in streams:
            yield Add(added, stream)

    def _beside_products(self, run: list[MatMul]) -> Iterator[Op]:
        """Products of the same input with what is beside them: first all `down`, which compiled machines may
        compute as one, and last all `up`."""
        adapted = [(op, self.products[id(op.weight)]) for op in run if id(op.weight) in self.products]
        downs = {beside.buffer(op.out).name: (op, beside) for op, beside in adapted}
        for op, beside in downs.values():
            yield MatMul(op.x, beside.buffer(op.out), beside.down)
        for op in run:
            output = self.outputs.get(id(op.weight))
            yield replace(op, weight=output) if output else op
        for op, beside in adapted:
            yield beside.add(op.out)


def _runs(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Neighbouring products of the same unchanged input together, and every other op by itself."""
    run: list[Op] = []
    for op in ops:
        if run:
            last = run[-1]
            joins = isinstance(op, MatMul) and isinstance(last, MatMul) and op.x == last.x != last.out
            if not joins:
                yield run
                run = []
        run.append(op)
    if run:
        yield run
