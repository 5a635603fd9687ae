"""The NumPy machine: every op once, in the obvious way, in float32.

It is slow, and the specification that the compiled machines are tested against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ...quant.block import QTensor
from .. import ops
from ..engine.cache import PAGE_SIZE, Batch, PageTable
from ..engine.observing import Observed, Tap
from ..engine.sampling.top_k import TopK, top_k_of
from ..engine.state import SequenceStates
from . import activations, altup, attention, dense, moe, norm, pointwise, recurrent

_CHUNK_WEIGHTS = 1 << 24  # weights of a matrix dequantised at once, where they are not kept
_LOGITS_BYTES = 1 << 26  # of logits a step


class ReferenceMachine:
    """Runs a Program in NumPy float32.

    `buffers` maps the names of the program's buffers to their contents after the latest op. `keys` and
    `values` are the cache layers, float32 [n_pages, page_size, kv_heads, head_dim or value_dim]. `states` are
    those of recurrent ops, for `max_sequences` sequences. Dequantised matrices are kept, up to `keep_bytes`
    in the order of first use; other matrices are dequantised at each use, in blocks.
    """

    kv_type = "f32"

    def __init__(
        self,
        program: ops.Program,
        n_pages: int,
        page_size: int = PAGE_SIZE,
        keep_bytes: int = 3 << 30,
        max_sequences: int = 1,
        max_rows: int = 512,
    ) -> None:
        self.program = program
        self.page_size = page_size
        self._n_pages = n_pages
        self.max_rows = max_rows
        self.max_logits = max(1, min(self.max_rows, _LOGITS_BYTES // (4 * program.logits.width)))
        self.buffers: dict[str, np.ndarray] = {}
        pages, layers = (n_pages, page_size), program.cache_layers
        self.keys = [np.zeros((*pages, layer.kv_heads, layer.head_dim), np.float32) for layer in layers]
        self.values = [
            np.zeros((*pages, layer.kv_heads, layer.width // layer.kv_heads - layer.head_dim), np.float32)
            for layer in layers
        ]
        self.states = SequenceStates(program.state_layers, max_sequences)
        self._kept: dict[int, np.ndarray] = {}
        self._keep_bytes = keep_bytes

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(batch.logits_indices), vocab].

        `table` must have room for the rows' positions. Raises ValueError for a batch that does not fit the
        machine or the table.
        """
        with np.errstate(all="ignore"):  # NaN and infinity reach the logits, as on the other machines
            for _ in self.trace(batch, table):
                pass
        return self.buffers[self.program.logits.name]

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """Run the rows of `batch`; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        return top_k_of(self.step(batch, table)[:, :n_tokens], k)

    def trace(self, batch: Batch, table: PageTable) -> Iterator[ops.Op]:
        """Like `step`, but yields every op once it has run, so that the caller can read `buffers`."""
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

    def observe(self, batch: Batch, table: PageTable, taps: Sequence[Tap]) -> Observed:
        """Like `step`, with copies of what the taps ask for."""
        values = {tap: self.buffers[tap.buffer.name].copy() for tap in taps if tap.at == 0}
        with np.errstate(all="ignore"):
            for at, _ in enumerate(self.trace(batch, table), 1):
                values |= {tap: self.buffers[tap.buffer.name].copy() for tap in taps if tap.at == at}
        return Observed(self.buffers[self.program.logits.name], values)

    def finish(self, at: int, values: Mapping[ops.Buffer, np.ndarray]) -> np.ndarray:
        """The logits of rows whose buffers hold `values` in front of op number `at`."""
        rows = np.arange(len(next(iter(values.values()))), dtype=np.int32)
        self._batch = Batch(rows * 0, rows * 0, rows, rows)
        self.buffers |= {buffer.name: rows.copy() for buffer, rows in values.items()}
        with np.errstate(all="ignore"):
            for op in self.program.ops[at:]:
                self._run(op)
        return self.buffers[self.program.logits.name]

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page's keys and values, for each layer of the cache."""
        return tuple(k[0].nbytes + v[0].nbytes for k, v in zip(self.keys, self.values, strict=True))

    @property
    def page_layout(self) -> str:
        """How a page's bytes are to be read."""
        shapes = [pool.shape[1:] for pool in (*self.keys, *self.values)]
        return f"reference float32 {shapes}"

    def read_page(self, page: int) -> np.ndarray:
        """A copy of the keys and values of a page in all layers, uint8 [bytes of a page]."""
        parts = [pool[page].reshape(-1).view(np.uint8) for pool in (*self.keys, *self.values)]
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def write_page(self, page: int, content: np.ndarray) -> None:
        """Set the keys and values of a page to what `read_page` gave."""
        at = 0
        for pool in (*self.keys, *self.values):
            n_bytes = pool[page].nbytes
            pool[page] = content[at : at + n_bytes].view(np.float32).reshape(pool.shape[1:])
            at += n_bytes

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page of the KV cache, in all layers."""
        for pool in (*self.keys, *self.values):
            pool[target] = pool[source]

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """The `boundary_out` buffers after a step of `n_rows` rows, float32 [rows, width] each."""
        return [self.buffers[b.name] for b in self.program.boundary_out]

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Set the `boundary_in` buffers for the next step, float32 [rows, width] each."""
        for b, rows in zip(self.program.boundary_in, values, strict=True):
            self.buffers[b.name] = rows.copy()

    def close(self) -> None:
        """Free the buffers and dequantised matrices."""
        self.buffers.clear()
        self._kept.clear()

    def _run(self, op: ops.Op) -> None:
        buffers, batch = self.buffers, self._batch
        match op:
            case ops.Embed():
                self.embed(op)
            case ops.AddPositions():
                dense.add_positions(op, buffers, batch.positions)
            case ops.RMSNorm():
                norm.rms_norm(op, buffers)
            case ops.LayerNorm():
                norm.layer_norm(op, buffers)
            case ops.MatMul():
                dense.matmul(op, buffers, self._dequantized)
            case ops.HeadMatMul():
                dense.head_matmul(op, buffers, self._dequantized)
            case ops.RoPE():
                attention.rope(op, buffers, batch)
            case ops.ScaleQueries():
                attention.scale_queries(op, buffers, batch)
            case ops.Attend():
                self.attend(op)
            case ops.GatedActivation():
                activations.gated_activation(op, buffers)
            case ops.Activation():
                activations.activation(op, buffers)
            case ops.SigmoidGate():
                activations.sigmoid_gate(op, buffers)
            case ops.GaussianTopK():
                activations.gaussian_top_k(op, buffers)
            case ops.Route():
                moe.route(op, buffers)
            case ops.MoE():
                moe.moe(op, buffers, self._dequantized, self.expert_reads)
            case ops.Add():
                pointwise.add(op, buffers)
            case ops.MatchMagnitude():
                altup.match_magnitude(op, buffers)
            case ops.AltUpPredict():
                altup.altup_predict(op, buffers)
            case ops.AltUpCorrect():
                altup.altup_correct(op, buffers)
            case ops.SelectRows():
                pointwise.select_rows(op, buffers, batch.logits_indices)
            case ops.SoftCap():
                pointwise.soft_cap(op, buffers)
            case ops.CausalConv():
                self._recur(op, recurrent.causal_conv, op.x)
            case ops.DeltaRule():
                self._recur(op, recurrent.delta_rule, op.qkv, op.beta, op.step)
            case ops.StateScan():
                self._recur(op, recurrent.state_scan, op.xbc, op.step)
            case ops.AllReduce():
                pass  # who runs several machines in step, by `trace`, sums their buffers

    def embed(self, op: ops.Embed) -> None:
        """Run an Embed; a method so that other machines can override it."""
        dense.embed(op, self.buffers, self._batch.types_of_rows() if op.by_type else self._batch.tokens)

    def attend(self, op: ops.Attend) -> None:
        """Run an Attend over the cache; a method so that other machines can override it."""
        keys, values = self.keys[op.layer], self.values[op.layer]
        attention.attend(op, self.buffers, self._batch, self._table, keys, values)

    def expert_reads(self, matrix: QTensor, x: np.ndarray) -> None:
        """Called before an expert's matrix is multiplied with `x`, for machines that record inputs."""

    def _dequantized(self, tensor: QTensor) -> Iterator[tuple[int, np.ndarray]]:
        """The matrix in float32, in blocks of rows, each with the index of its first row."""
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

    def _recur(
        self,
        op: ops.CausalConv | ops.DeltaRule | ops.StateScan,
        function: Callable[..., np.ndarray],
        *inputs: ops.Buffer,
    ) -> None:
        """Run a recurrent op over the rows of each sequence, with its state."""
        read = [self.buffers[b.name] for b in inputs]
        out = np.empty((len(self._batch.tokens), op.out.width), np.float32)
        for sequence in np.unique(self._batch.sequences):
            rows = self._batch.sequences == sequence
            out[rows] = function(op, self.states.arrays[op.state][sequence], *(x[rows] for x in read))
        self.buffers[op.out.name] = out
