"""Lowering for prefill steps on CPUs with matrix tiles: products of many rows are those of TILE_GEMMS.

Mixtures of experts, whose rows are in smaller groups, and rows whose logits are computed, of which a prompt
has one, keep the products of `PrefillLowering`.
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import MATMUL, QUANTIZE
from ..arena import Region
from ..kernels import TILE_GEMMS, TILE_ROWS
from .prefill import PrefillLowering


class TilePrefillLowering(PrefillLowering):
    """Lowers a program for steps of any number of rows."""

    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None:
        if kind not in TILE_GEMMS or x.logits_rows or x.name in self._permutations:
            super()._matmul(x, out, kind, values)
            return
        source, target = self._rounded(x), self._shared(out)
        scratch = self._arena.per_thread("tile gemm", sizes.tile_gemm_scratch_bytes())
        self._list.append(
            TILE_GEMMS[kind],
            MATMUL,
            [source, target] if values.get("accumulate") else [source],
            [target],
            OTHER,
            x=source.address,
            out=target.address,
            out_stride=target.stride,
            scratch=scratch.address,
            scratch_stride=scratch.thread_stride,
            **values,
        )
        self._output(out)

    def _output(self, buffer: ops.Buffer) -> Region:
        self._quantized.discard(_tiles_name(buffer))
        return super()._output(buffer)

    def _rounded(self, x: ops.Buffer) -> Region:
        """The present contents of a buffer in tiles of bfloat16; made once for all readers."""
        name = _tiles_name(x)
        region = self._arena.rows(name, 1, sizes.matrix_tile_bytes(x.width, self._max_rows(x)))
        if name not in self._quantized:
            source = self._shared(x)
            fields = {"x": source.address, "x_stride": source.stride, "width": x.width, "out": region.address}
            self._list.append(TILE_ROWS, QUANTIZE, [source], [region], self._partition(x), **fields)
            self._quantized.add(name)
        return region


def _tiles_name(buffer: ops.Buffer) -> str:
    return f"{buffer.name} in matrix tiles"
