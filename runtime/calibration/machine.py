"""The reference machine run layer by layer over a text, recording the inputs of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from ...quant.block import QTensor
from .. import ops
from ..engine.cache import PAGE_SIZE, Batch, PageTable
from ..ops.buffer import Buffer
from ..reference.machine import ReferenceMachine

_QUERIES = 128  # rows of attention scores computed at a time

# `id` of an expert's matrix → how many rows went into it, and the sum of their squares, float32 [width]
SquareSums = dict[int, tuple[int, np.ndarray]]


Release = Callable[[QTensor], None]


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a layer's matrices in a window.

    `products` are the MatMuls with the same input, and that input, float32 [context, width]; `squares` are
    those of the experts.
    """

    products: list[tuple[list[ops.MatMul], np.ndarray]]
    squares: SquareSums


class CalibrationMachine(ReferenceMachine):
    """Runs parts of a program over windows of `context` tokens; `release` gets tensors that were read."""

    def __init__(self, program: ops.Program, context: int, release: Release = lambda tensor: None) -> None:
        super().__init__(program, -(-context // PAGE_SIZE), keep_bytes=0)
        self._table = PageTable(self._n_pages)
        self._table.extend(0, context)
        self._squares: SquareSums = {}
        self._release = release

    def embed(self, op: ops.Embed) -> None:
        super().embed(op)
        zero_nonfinite(self.buffers[op.out.name])

    def _dequantized(self, tensor: QTensor) -> Iterator[tuple[int, np.ndarray]]:
        for start, rows in super()._dequantized(tensor):
            yield start, rows if id(tensor) in self._kept else zero_nonfinite(rows)
        self._release(tensor)

    def keep(self, weights: dict[int, np.ndarray]) -> None:
        """Use these float32 matrices, by the `id` of their tensors, instead of dequantising the tensors."""
        self._kept = weights

    def begin(
        self, tokens: np.ndarray, live: Mapping[str, np.ndarray], logits_indices: np.ndarray | None = None
    ) -> None:
        """Start a window, int32 [context], with the buffers `live`.

        `logits_indices` are the rows that get logits, int32 [n]; None means all.
        """
        rows = np.arange(len(tokens), dtype=np.int32)
        logits_indices = rows if logits_indices is None else logits_indices
        self._batch = Batch(tokens.astype(np.int32), np.zeros(len(tokens), np.int32), rows, logits_indices)
        self.buffers = dict(live)
        self.states.begin(self._batch)

    def run_layer(
        self, part: Sequence[ops.Op], tokens: np.ndarray, live: Mapping[str, np.ndarray]
    ) -> LayerInputs:
        """Run `part` over a window, int32 [context], with the buffers `live`; logits are not computed."""
        self.begin(tokens, live)
        self._squares = {}
        products: list[tuple[list[ops.MatMul], np.ndarray]] = []
        for op in part:
            if isinstance(op, ops.MatMul):
                x = self.buffers[op.x.name]
                group = next((group for group, other in products if other is x), None)
                if group is None:
                    products.append(([op], x))
                else:
                    group.append(op)
                if op.out.name == self.program.logits.name:
                    break
            self._run(op)
        self.states.end(self._batch)
        return LayerInputs(products, self._squares)

    def expert_reads(self, matrix: QTensor, x: np.ndarray) -> None:
        self._squares[id(matrix)] = len(x), np.einsum("ij,ij->j", x, x)

    def attend(self, op: ops.Attend) -> None:
        """The reference's attention over a sequence from position 0, block of queries by block: faster."""
        if share_caches(self.program) or op.v == op.k or op.sinks is not None:
            super().attend(op)
            return
        n, group = len(self._batch.tokens), op.heads // op.kv_heads
        q = self.buffers[op.q.name].reshape(n, op.kv_heads, group, -1)
        k, v = (self.buffers[b.name].reshape(n, op.kv_heads, -1) for b in (op.k, op.v))
        out = np.empty((n, op.kv_heads, group, op.value_dim), np.float32)
        at = np.arange(n)
        for start in range(0, n, _QUERIES):
            end = min(start + _QUERIES, n)
            first = max(0, start - op.window + 1) if op.window else 0
            mask = _mask(at[start:end], at[first:end], op.window)
            for g in range(op.kv_heads):
                queries = np.ascontiguousarray(q[start:end, g].swapaxes(0, 1)) * np.float32(op.scale)
                keys = np.ascontiguousarray(k[first:end, g])
                scores = (queries.reshape(-1, op.head_dim) @ keys.T).reshape(group, end - start, -1)
                if op.softcap:
                    scores = np.float32(op.softcap) * np.tanh(scores / np.float32(op.softcap))
                scores += mask
                scores -= scores.max(axis=-1, keepdims=True)
                np.exp(scores, out=scores)
                total = scores.sum(axis=-1, keepdims=True)
                values = np.ascontiguousarray(v[first:end, g])
                weighted = (scores.reshape(-1, end - first) @ values).reshape(group, end - start, -1)
                out[start:end, g] = (weighted / total).swapaxes(0, 1)
        self.buffers[op.out.name] = out.reshape(n, -1)


def zero_nonfinite(weights: np.ndarray) -> np.ndarray:
    """Replace NaN and infinite weights by 0, in place."""
    return np.nan_to_num(weights, copy=False, nan=0, posinf=0, neginf=0)


def _mask(queries: np.ndarray, keys: np.ndarray, window: int) -> np.ndarray:
    """The attention mask of positions `queries` and `keys`: float32 [queries, keys], 0 or minus infinity."""
    hidden = keys > queries[:, None]
    if window:
        hidden |= keys <= queries[:, None] - window
    return np.where(hidden, np.float32(-np.inf), np.float32(0))


def share_caches(program: ops.Program) -> bool:
    """Whether some layers attend to the keys and values of others."""
    return any(isinstance(op, ops.Attend) and not op.append for op in program.ops)


def split_layers(program: ops.Program) -> list[tuple[ops.Op, ...]]:
    """The ops of each layer, with the output's last; all in one part if `share_caches`."""
    cuts = [0, *program.layers[1:], len(program.ops)]
    if not program.layers or share_caches(program):
        cuts = [0, len(program.ops)]
    return [program.ops[a:b] for a, b in pairwise(cuts)]


def live_buffers(later: Sequence[ops.Op]) -> set[str]:
    """The names of the buffers that the ops `later` read before they write them."""
    read, written = set[str](), set[str]()
    for op in later:
        accumulates = isinstance(op, ops.Add) or (isinstance(op, ops.MatMul) and op.accumulate)
        used = [(f.name, b) for f in fields(op) for b in _buffers(getattr(op, f.name))]
        read |= {b.name for name, b in used if (name != "out" or accumulates) and b.name not in written}
        written |= {b.name for name, b in used if name == "out"}
    return read


def _buffers(value: object) -> list[Buffer]:
    values = value if isinstance(value, tuple) else (value,)
    return [b for b in values if isinstance(b, Buffer)]
