"""The NumPy machine: every op once, in the obvious way, in float32.

It is the specification that the fast machines are tested against, and slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...quant.block import QTensor
from .. import ops
from ..engine.cache import PAGE_SIZE, Batch, PageTable
from ..engine.state import SequenceStates
from ..engine.top_k import TopK, top_k_of
from ..ops.buffer import Buffer
from .activations import ACTIVATIONS, sigmoid
from .altup import correct_streams, match_magnitude, predict_streams, sparsify
from .moe import moe, route
from .recurrent import causal_conv, delta_rule, state_scan

_CHUNK_WEIGHTS = 1 << 24  # weights of a matrix dequantised at once, where they are not kept
_LOGITS_BYTES = 1 << 26  # of logits a step


class ReferenceMachine:
    """Runs a Program in NumPy float32.

    `buffers` maps the names of the program's buffers to their contents after the latest op; `keys`
    and `values` hold each cache layer as float32 [n_pages, page_size, kv_heads, head_dim or value_dim].
    `states` are those of recurrent ops, for `max_sequences` sequences. Dequantised matrices are kept up to
    `keep_bytes`, first come first kept; beyond that each use makes them anew, in blocks.
    """

    def __init__(
        self,
        program: ops.Program,
        n_pages: int,
        page_size: int = PAGE_SIZE,
        keep_bytes: int = 3 << 30,
        max_sequences: int = 1,
    ) -> None:
        self.program = program
        self.page_size = page_size
        self._n_pages = n_pages
        self.max_rows = 512
        self.max_logits = max(1, min(self.max_rows, _LOGITS_BYTES // (4 * program.logits.width)))
        self.buffers: dict[str, np.ndarray] = {}
        pages = (n_pages, page_size)
        layers = program.cache_layers
        self.keys = [np.zeros((*pages, at.kv_heads, at.head_dim), np.float32) for at in layers]
        self.values = [
            np.zeros((*pages, at.kv_heads, at.width // at.kv_heads - at.head_dim), np.float32)
            for at in layers
        ]
        self.states = SequenceStates(program.state_layers, max_sequences)
        self._kept: dict[int, np.ndarray] = {}
        self._keep_bytes = keep_bytes

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(batch.logits_indices), vocab].

        The rows' positions must have room in `table` already. Raises ValueError for a batch that does
        not fit the machine or the table.
        """
        with np.errstate(all="ignore"):  # NaN and infinity reach the logits, as on the other machines
            for _ in self.trace(batch, table):
                pass
        return self.buffers[self.program.logits.name]

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """The same step; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        return top_k_of(self.step(batch, table)[:, :n_tokens], k)

    def trace(self, batch: Batch, table: PageTable) -> Iterator[ops.Op]:
        """Like `step`, but yields every op once it has run, for a look at `buffers`."""
        if table.page_size != self.page_size:
            raise ValueError(f"pages of {table.page_size} tokens, the machine has {self.page_size}")
        n_tokens, n_positions = self.program.n_tokens, self.program.n_positions
        batch.check(table, self._n_pages, n_tokens, self.max_rows, self.max_logits, n_positions)
        self.states.begin(batch)
        self._batch, self._table = batch, table
        for op in self.program.ops:
            self._run(op)
            yield op
        self.states.end(batch)

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """What a step of so many rows left in the `boundary_out` buffers, float32 [rows, width] each."""
        return [self.buffers[b.name] for b in self.program.boundary_out]

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Contents of the `boundary_in` buffers for the next step, float32 [rows, width] each."""
        for b, rows in zip(self.program.boundary_in, values, strict=True):
            self.buffers[b.name] = rows.copy()

    def close(self) -> None:
        self.buffers.clear()
        self._kept.clear()

    def _run(self, op: ops.Op) -> None:
        match op:
            case ops.Embed():
                self.embed(op)
            case ops.AddPositions():
                self.add_positions(op)
            case ops.RMSNorm():
                self.rms_norm(op)
            case ops.LayerNorm():
                self.layer_norm(op)
            case ops.MatMul():
                self.matmul(op)
            case ops.HeadMatMul():
                self.head_matmul(op)
            case ops.RoPE():
                self.rope(op)
            case ops.GrowQueries():
                self.grow_queries(op)
            case ops.Attend():
                self.attend(op)
            case ops.GatedActivation():
                self.gated_activation(op)
            case ops.Activation():
                self.activation(op)
            case ops.SigmoidGate():
                self.sigmoid_gate(op)
            case ops.Route():
                route(op, self.buffers)
            case ops.MoE():
                moe(op, self.buffers, self._dequantized, self.expert_reads)
            case ops.Add():
                self.add(op)
            case ops.Sparsify():
                sparsify(op, self.buffers)
            case ops.MatchMagnitude():
                match_magnitude(op, self.buffers)
            case ops.AltUpPredict():
                predict_streams(op, self.buffers)
            case ops.AltUpCorrect():
                correct_streams(op, self.buffers)
            case ops.SelectRows():
                self.select_rows(op)
            case ops.SoftCap():
                self.soft_cap(op)
            case ops.CausalConv():
                self._recur(op, causal_conv, op.x)
            case ops.DeltaRule():
                self._recur(op, delta_rule, op.qkv, op.beta, op.step)
            case ops.StateScan():
                self._recur(op, state_scan, op.xbc, op.step)

    def embed(self, op: ops.Embed) -> None:
        tokens = np.where(self._batch.tokens < op.table.shape[0], self._batch.tokens, 0)
        self.buffers[op.out.name] = op.table.rows(tokens) * np.float32(op.scale)

    def add_positions(self, op: ops.AddPositions) -> None:
        self.buffers[op.x.name] = self.buffers[op.x.name] + op.table.rows(self._batch.positions)

    def rms_norm(self, op: ops.RMSNorm) -> None:
        x = self.buffers[op.x.name]
        each = op.groups * len(op.weight) > op.x.width  # parts have weights of their own
        size = op.x.width // op.groups if each else len(op.weight)
        parts = x[:, : op.groups * size].reshape(len(x), op.groups, size)
        mean_square = np.mean(parts * parts, axis=-1, keepdims=True)
        normed = parts / np.sqrt(mean_square + np.float32(op.eps)) * op.weight.reshape(-1, size)
        rest = x[:, op.groups * size :]
        self.buffers[op.out.name] = np.concatenate([normed.reshape(len(x), op.groups * size), rest], axis=1)

    def layer_norm(self, op: ops.LayerNorm) -> None:
        x = self.buffers[op.x.name]
        parts = x.reshape(len(x), op.groups, -1)
        parts = parts - np.mean(parts, axis=-1, keepdims=True)
        variance = np.mean(parts * parts, axis=-1, keepdims=True)
        normed = (parts / np.sqrt(variance + np.float32(op.eps))).reshape(x.shape) * op.weight
        self.buffers[op.out.name] = normed if op.bias is None else normed + op.bias

    def matmul(self, op: ops.MatMul) -> None:
        x = self.buffers[op.x.name]
        out = np.empty((len(x), op.out.width), np.float32)
        for start, weight in self._dequantized(op.weight):
            out[:, start : start + len(weight)] = x @ weight.T
        if op.bias is not None:
            out += op.bias
        if op.accumulate:
            out += self.buffers[op.out.name]
        self.buffers[op.out.name] = out

    def _dequantized(self, tensor: QTensor) -> Iterator[tuple[int, np.ndarray]]:
        """The matrix in float32, in blocks of rows, each with the number of its first row."""
        kept = self._kept.get(id(tensor))
        size = 4 * math.prod(tensor.shape)
        if kept is None and size <= self._keep_bytes:
            self._keep_bytes -= size
            kept = self._kept[id(tensor)] = tensor.dequantize()
        if kept is not None:
            yield 0, kept
            return
        n_rows, width = tensor.shape
        block = max(1, _CHUNK_WEIGHTS // width)
        for start in range(0, n_rows, block):
            yield start, tensor.rows(np.arange(start, min(start + block, n_rows)))

    def expert_reads(self, matrix: QTensor, x: np.ndarray) -> None:
        """Called before an expert's matrix multiplies `x`, for machines that look at it."""

    def head_matmul(self, op: ops.HeadMatMul) -> None:
        x = self.buffers[op.x.name]
        heads = x.reshape(len(x), len(op.weights), -1)
        parts = []
        for h, tensor in enumerate(op.weights):
            inputs = tensor.shape[1]
            parts += [heads[:, h, :inputs] @ weight.T for _, weight in self._dequantized(tensor)]
            parts.append(heads[:, h, inputs:])
        self.buffers[op.out.name] = np.concatenate(parts, axis=1)

    def rope(self, op: ops.RoPE) -> None:
        x = self.buffers[op.x.name]
        half = len(op.inv_freq)
        heads = x.reshape(len(x), op.heads, -1).copy()
        turned = heads[:, :, op.start : op.start + 2 * half]
        first, second = (
            (slice(0, None, 2), slice(1, None, 2)) if op.interleaved else (slice(half), slice(half, None))
        )
        a, b = turned[:, :, first].copy(), turned[:, :, second].copy()
        angles = (
            self._batch.positions.astype(np.float32)[:, None] * op.frequencies(self._batch.sequence_lengths())
        )[:, None]
        cos = np.cos(angles) * np.float32(op.attention_factor)
        sin = np.sin(angles) * np.float32(op.attention_factor)
        turned[:, :, first] = a * cos - b * sin
        turned[:, :, second] = b * cos + a * sin
        self.buffers[op.x.name] = heads.reshape(x.shape)

    def grow_queries(self, op: ops.GrowQueries) -> None:
        passed = (self._batch.positions // op.length).astype(np.float32)
        growth = 1 + np.float32(op.beta) * np.log(1 + passed)
        self.buffers[op.q.name] = self.buffers[op.q.name] * growth[:, None]

    def attend(self, op: ops.Attend) -> None:
        batch, table, page = self._batch, self._table, self.page_size
        n = len(batch.tokens)
        q = self.buffers[op.q.name].reshape(n, op.kv_heads, -1, op.head_dim)
        keys, values = self.keys[op.layer], self.values[op.layer]
        blocks = table.blocks[batch.sequences, batch.positions // page]
        if op.append:
            keys[blocks, batch.positions % page] = self.buffers[op.k.name].reshape(n, op.kv_heads, -1)
        if op.append and op.v != op.k:
            values[blocks, batch.positions % page] = self.buffers[op.v.name].reshape(n, op.kv_heads, -1)
        if op.v == op.k:
            values = keys[..., : op.value_dim]
        out = np.empty((*q.shape[:-1], op.value_dim), np.float32)
        for sequence in np.unique(batch.sequences):
            rows = np.flatnonzero(batch.sequences == sequence)
            at = batch.positions[rows]
            seen = np.arange(max(0, at.min() - op.window + 1) if op.window else 0, at.max() + 1)
            blocks = table.blocks[sequence, seen // page]
            k, v = keys[blocks, seen % page], values[blocks, seen % page]  # [seen, kv_heads, head_dim]
            # kv heads first, so that they are what the matrix products are stacked by
            scores = (
                q[rows].transpose(1, 2, 0, 3) @ k.transpose(1, 2, 0)[:, None]
            )  # [kv_heads, group, rows, seen]
            scores *= np.float32(op.scale)
            if op.softcap:
                scores = np.float32(op.softcap) * np.tanh(scores / np.float32(op.softcap))
            hidden = seen > at[:, None]
            if op.window:
                hidden |= seen <= at[:, None] - op.window
            scores[:, :, hidden] = -np.inf
            highest = scores.max(axis=-1, keepdims=True)
            if op.sinks is not None:
                sinks = op.sinks.reshape(op.kv_heads, -1, 1, 1)
                highest = np.maximum(highest, sinks)
            weights = np.exp(scores - highest)
            total = weights.sum(axis=-1, keepdims=True)
            weights /= total if op.sinks is None else total + np.exp(sinks - highest)
            out[rows] = (weights @ v.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3)
        self.buffers[op.out.name] = out.reshape(n, -1)

    def gated_activation(self, op: ops.GatedActivation) -> None:
        gate, up = self.buffers[op.gate.name], self.buffers[op.up.name]
        up = up[:, op.up_start : op.up_start + op.gate.width]
        self.buffers[op.out.name] = ACTIVATIONS[op.kind](np.float32(op.scale) * gate) * up

    def activation(self, op: ops.Activation) -> None:
        self.buffers[op.out.name] = ACTIVATIONS[op.kind](self.buffers[op.x.name])

    def sigmoid_gate(self, op: ops.SigmoidGate) -> None:
        self.buffers[op.x.name] = sigmoid(self.buffers[op.gate.name]) * self.buffers[op.x.name]

    def add(self, op: ops.Add) -> None:
        added = self.buffers[op.x.name] * np.float32(op.scale)
        self.buffers[op.out.name] = self.buffers[op.out.name] * np.float32(op.keep) + added

    def select_rows(self, op: ops.SelectRows) -> None:
        self.buffers[op.out.name] = self.buffers[op.x.name][self._batch.logits_indices]

    def soft_cap(self, op: ops.SoftCap) -> None:
        cap = np.float32(op.cap)
        self.buffers[op.x.name] = cap * np.tanh(self.buffers[op.x.name] / cap)

    def _recur(
        self,
        op: ops.CausalConv | ops.DeltaRule | ops.StateScan,
        scan: Callable[..., np.ndarray],
        *inputs: Buffer,
    ) -> None:
        """Run `scan` over the rows of each sequence, with its state."""
        read = [self.buffers[b.name] for b in inputs]
        out = np.empty((len(self._batch.tokens), op.out.width), np.float32)
        for sequence in np.unique(self._batch.sequences):
            rows = self._batch.sequences == sequence
            out[rows] = scan(op, self.states.arrays[op.state][sequence], *(x[rows] for x in read))
        self.buffers[op.out.name] = out
