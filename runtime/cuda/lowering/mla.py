"""Launches of multi-head latent attention: one key-value head, whose values are the first dimensions of its
keys."""

from __future__ import annotations

from dataclasses import dataclass

from ... import ops
from ..kernels.attention.mla import MLAArguments, mla_attention
from ..kernels.attention.mla_merge import MergeArguments, mla_merge_splits
from .attention import MAX_SPLITS, AttentionLowering, greatest_divisor, swizzle

MERGE_THREADS = 512  # of a block that merges splits


@dataclass(frozen=True)
class BlockShape:
    """A block of `mla_attention`: M_TILES, TILE, WARPS, and Q_KEPT at most, which registers have room for."""

    m_tiles: int
    tile: int
    warps: int
    q_kept: int

    def shared(self, dims: int) -> int:
        """Bytes of shared memory: two tiles, queries, probabilities, a maximum for each head and warp."""
        return 4 * self.tile * dims + 32 * self.m_tiles * (dims + self.tile) + 64 * self.warps


# The first shape that fits is taken.
SHAPES = [BlockShape(*s) for s in ((2, 64, 8, 28), (2, 32, 8, 30), (1, 64, 8, 36), (1, 32, 4, 32))]


class MLALowering(AttentionLowering):
    def _attend(self, i: int, op: ops.Attend) -> None:
        shape = self._mla_shape(op)
        if shape:
            self._mla_attention(op, shape)
        else:
            super()._attend(i, op)

    def _mla_shape(self, op: ops.Attend) -> BlockShape | None:
        """The blocks of `mla_attention` for this op; None if it cannot take the op."""
        dims, value_dims = op.head_dim, op.value_dim
        fits = dims % 16 == 0 and value_dims % 16 == 0 and value_dims <= 1024
        cached = self.capacity.cache_bits <= 16 and self.capacity.page_size == 64
        if op.v != op.k or op.kv_heads > 1 or not cached or not fits:
            return None
        fitting = (s for s in SHAPES if s.shared(dims) <= self._shared_limit)
        return next((s for s in fitting if self._one_prompt or op.heads > 16 or s.m_tiles == 1), None)

    def _mla_attention(self, op: ops.Attend, shape: BlockShape) -> None:
        """Blocks take 16 · M_TILES heads of a prompt and the whole context, otherwise heads of one
        row and a split of its context; a second launch merges the splits."""
        n, prompt = self._n_rows[False], self._one_prompt
        heads = 16 * shape.m_tiles if prompt else greatest_divisor(op.heads, 16 * shape.m_tiles)
        blocks = op.heads // heads
        most = 1 if prompt else max(1, self.device.multiprocessors // blocks)  # splits of all rows
        splits = max(1, min(MAX_SPLITS, most // n))
        constants = self._score_constants(op) | self._shape_constants(op, shape)
        constants |= {"G": heads, "ONE_SPLIT": int(splits == 1), "PREFILL": int(prompt)}
        what = self._kernel(mla_attention, 32 * shape.warps, SINGLE_ROW=int(n == 1), **constants)
        partials = 0
        if splits > 1:
            size = 4 * op.heads * most * (op.value_dim + 4)
            partials = self.memory.rows(f"MLA splits {op.heads} {op.value_dim}", 1, size).address
        arguments = MLAArguments(
            q=self._at(op.q),
            cache=self._cached(op),
            scores=self._scores(op),
            partials=partials,
            out=self._at(op.out),
            heads=op.heads,
            rows=n,
        )
        grid = (-(-n * op.heads // heads), 1, 1) if prompt else (blocks, splits, n)
        self._emit(what, grid, arguments, shape.shared(op.head_dim))
        self._invalidate(op.out)
        if splits > 1:
            self._merge_splits(op, constants, arguments, splits)

    def _merge_splits(
        self, op: ops.Attend, constants: dict[str, int], attention: MLAArguments, splits: int
    ) -> None:
        merging = {name: constants[name] for name in ("VP", "TILE", "WINDOW", "SINKS")}
        what = self._kernel(mla_merge_splits, MERGE_THREADS, THREADS=MERGE_THREADS, **merging)
        arguments = MergeArguments(
            partials=attention.partials,
            positions=self.inputs.positions,
            window=attention.scores.window,
            sinks=attention.scores.sinks,
            out=attention.out,
            heads=op.heads,
            splits=splits,
        )
        self._emit(what, (op.heads, self._n_rows[False]), arguments, 256 + 16 * MERGE_THREADS)

    def _shape_constants(self, op: ops.Attend, shape: BlockShape) -> dict[str, int]:
        """The constants of `mla_attention` that follow from the sizes of heads and blocks."""
        dims, v_tiles = op.head_dim, op.value_dim // 16
        return {
            "HD": dims,
            "VP": op.value_dim,
            "SWIZZLE": swizzle(dims),
            "M_TILES": shape.m_tiles,
            "TILE": shape.tile,
            "N_TILES": shape.tile * shape.m_tiles // (8 * shape.warps),
            "WARPS": shape.warps,
            "HEAD_WARPS": shape.warps // shape.m_tiles,
            "Q_KEPT": min(shape.q_kept, dims // 16),
            "V_TILES": v_tiles,
            "WARP_V_TILES": -(-v_tiles // shape.warps),
        }
