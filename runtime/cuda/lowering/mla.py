"""Launches of latent attention: one key-value head, whose values are the beginnings of its keys."""

from __future__ import annotations

from dataclasses import dataclass

from ... import ops
from ..kernels.attention import mla
from .attention import SPANS, AttentionLowering, exchanged, greatest_divisor

MERGE_THREADS = 512  # of a block that merges spans


@dataclass(frozen=True)
class Shape:
    """A block of `kernels/latent_attention.py`: 16 heads so many times, tokens of a tile, warps, and how much
    of the queries stays in registers, 16 dimensions each: what there is room for."""

    sixteens: int
    tokens: int
    warps: int
    kept: int

    def shared(self, dims: int) -> int:
        """Bytes of shared memory: two tiles, queries, probabilities, the highest scores of warps."""
        return 4 * self.tokens * dims + 32 * self.sixteens * (dims + self.tokens) + 64 * self.warps


# The first one that fits is taken.
SHAPES = [Shape(*s) for s in ((2, 64, 8, 28), (2, 32, 8, 30), (1, 64, 8, 36), (1, 32, 4, 32))]


class LatentLowering(AttentionLowering):
    def _attend(self, i: int, op: ops.Attend) -> None:
        shape = self._latent_shape(op)
        if shape:
            self._attend_latent(op, shape)
        else:
            super()._attend(i, op)

    def _latent_shape(self, op: ops.Attend) -> Shape | None:
        """How blocks of `kernels/latent_attention.py` do this; None if they cannot."""
        dims, value_dims, group = op.head_dim, op.value_dim, op.heads
        halves = self.capacity.cache_bits <= 16
        fits = dims % 16 == 0 and value_dims % 16 == 0 and value_dims <= 1024
        if op.v != op.k or op.kv_heads > 1 or not halves or not fits or self.capacity.page_size != 64:
            return None
        fitting = (s for s in SHAPES if s.shared(dims) <= self._shared_limit)
        return next((s for s in fitting if self._one_prompt or group > 16 or s.sixteens == 1), None)

    def _attend_latent(self, op: ops.Attend, shape: Shape) -> None:
        """Rows of a prompt together; of others each by itself, parts of its context by a second launch."""
        n, prompt = self._n_rows[False], self._one_prompt
        together = 16 * shape.sixteens if prompt else greatest_divisor(op.heads, 16 * shape.sixteens)
        blocks = op.heads // together
        most = 1 if prompt else max(1, self.device.multiprocessors // blocks)  # spans of all rows
        spans = max(1, min(SPANS, most // n))
        said, arguments = self._scores(op)
        constants = said | self._latent_constants(op, shape)
        constants |= {"G": together, "DIRECT": int(spans == 1), "PROMPT": int(prompt), "ALONE": int(n == 1)}
        what = self._kernel(mla.attend_latent, 32 * shape.warps, **constants)
        partials = 0
        if spans > 1:
            padded_rows = 4 * op.heads * most * (op.value_dim + 4)
            partials = self.memory.rows(f"latent spans {op.heads} {op.value_dim}", 1, padded_rows).address
        *_, window, sinks = arguments
        out = [*self._at(op.out)]
        arguments += [partials, *out, op.heads, n]
        grid = (-(-n * op.heads // together), 1, 1) if prompt else (blocks, spans, n)
        self._emit(what, grid, arguments, shape.shared(op.head_dim))
        self._invalidate(op.out)
        if spans > 1:
            merging = {name: constants[name] for name in ("VP", "T", "WINDOW", "SINKS")}
            merging["THREADS"] = MERGE_THREADS
            what = self._kernel(mla.merge_spans, MERGE_THREADS, **merging)
            given = [partials, self.inputs.positions, window, sinks, *out, op.heads, spans]
            self._emit(what, (op.heads, n), given, 256 + 16 * MERGE_THREADS)

    def _latent_constants(self, op: ops.Attend, shape: Shape) -> dict[str, int]:
        """What follows from the sizes of heads and of blocks."""
        dims, units = op.head_dim, op.value_dim // 16
        return {
            "HD": dims,
            "VP": op.value_dim,
            "TURN": exchanged(dims),
            "MT": shape.sixteens,
            "T": shape.tokens,
            "NT": shape.tokens * shape.sixteens // (8 * shape.warps),
            "WARPS": shape.warps,
            "GROUPS": shape.warps // shape.sixteens,
            "KEPT": min(shape.kept, dims // 16),
            "UNITS": units,
            "UW": -(-units // shape.warps),
        }
