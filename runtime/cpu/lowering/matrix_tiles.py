"""Lowering for prefill steps on CPUs with matrix tiles (level `amx`)."""

from __future__ import annotations

from typing import Any

from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import ATTENTION, MATMUL, QUANTIZE
from ..abi.tile_scratch import tile_attention_bytes
from ..arena import Region
from ..kernels import TILE_ATTENTIONS, TILE_GEMMS, TILE_ROWS
from ..simd.amx_sizes import ROWS
from ..simd.tile_sizes import GROUP
from .few_rows import SkinnyLowering

FEW_LOGITS = 16  # rows whose logits are computed, up to which unpacking weights for tiles does not pay


FEW_QUERIES = 32  # of the same keys, from which on it pays to unpack these for tiles


class TilePrefillLowering(SkinnyLowering):
    """Lowers a program for steps of any number of rows: TILE_GEMMS multiply, and so do TILE_ATTENTIONS.

    What has float32 weights is computed in float32: such matrices, a mixture's router among them, and the
    attention of a model that has no others.

    The rows whose logits are computed, of which a prompt has one, but a text to be evaluated many, go through
    the skinny gemm if they are few.
    """

    expert_tile = ROWS

    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None:
        if kind not in TILE_GEMMS or x.width % GROUP:  # only float weights can have such a width
            super()._matmul(x, out, kind, values)
            return
        may_be_few = x.logits_rows and x.name not in self._permutations
        if may_be_few and kind in sizes.FLOAT_BYTES:
            super()._matmul(x, out, kind, values | {"max_rows": FEW_LOGITS})
        elif may_be_few:
            self._skinny_matmul(x, out, kind, values, FEW_LOGITS)
        if not may_be_few or self._max_rows(x) > FEW_LOGITS:
            self._tile_matmul(x, out, kind, values, FEW_LOGITS + 1 if may_be_few else 0)
        self._output(out)

    def _tile_matmul(
        self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any], min_rows: int
    ) -> None:
        """Append a product in matrix tiles, which a step of less than `min_rows` rows skips."""
        source, rest = self._rounded(x, min_rows, kind in sizes.FLOAT_BYTES)
        target = self._shared(out)
        scratch = self._arena.per_thread("tile gemm", sizes.tile_gemm_scratch_bytes())
        self._list.append(
            TILE_GEMMS[kind],
            MATMUL,
            [source, target] if values.get("accumulate") else [source],
            [target],
            OTHER,
            x=source.address,
            x_rest=rest,
            tickets=self._arena.rows(f"tickets {len(self._list.names)}", 1, 64).address,
            out=target.address,
            out_stride=target.stride,
            on_logits_rows=out.logits_rows,
            n_rows_address=self._n_rows_address(out),
            min_rows=min_rows,
            scratch=scratch.address,
            scratch_stride=scratch.thread_stride,
            **values,
        )

    def _attend_to_cache(
        self, op: ops.Attend, reads: list[Region], out: Region, fields: dict[str, Any]
    ) -> None:
        """Append the attention of the rows to the cache, in tiles where a sequence has enough rows."""
        if all(matrix.format.name == "F32" for matrix in self._matrices.values()):
            super()._attend_to_cache(op, reads, out, fields)
            return
        fields = fields | {"tile_rows": max(1, FEW_QUERIES * op.kv_heads // op.heads)}
        super()._attend_to_cache(op, reads, out, fields)
        cache_type = self._config.cache_type
        n_bytes = tile_attention_bytes(cache_type, op.head_dim)
        scratch = self._arena.per_thread(f"tile attention {op.head_dim}", n_bytes)
        fields = fields | {"scratch": scratch.address, "scratch_stride": scratch.thread_stride}
        self._list.append(TILE_ATTENTIONS[cache_type], ATTENTION, reads, [out], OTHER, **fields)

    def _output(self, buffer: ops.Buffer) -> Region:
        self._quantized -= {_tiles_name(buffer, split) for split in (False, True)}
        return super()._output(buffer)

    def _rounded(self, x: ops.Buffer, min_rows: int, split: bool) -> tuple[Region, int]:
        """The present contents of a buffer in tiles of bfloat16, rounded, or split in two matrices, and the
        distance of these in bytes; made once for all readers."""
        name, n_bytes = _tiles_name(x, split), sizes.matrix_tile_bytes(x.width, self._max_rows(x))
        region, rest = self._arena.rows(name, 1 + split, n_bytes), n_bytes if split else 0
        if name not in self._quantized:
            source = self._shared(x)
            self._list.append(
                TILE_ROWS,
                QUANTIZE,
                [source],
                [region],
                self._partition(x),
                x=source.address,
                x_stride=source.stride,
                width=x.width,
                out=region.address,
                on_logits_rows=x.logits_rows,
                n_rows_address=self._n_rows_address(x),
                min_rows=min_rows,
                rest=rest,
            )
            self._quantized.add(name)
        return region, rest


def _tiles_name(buffer: ops.Buffer, split: bool) -> str:
    return f"{buffer.name} in matrix tiles{', split' if split else ''}"
