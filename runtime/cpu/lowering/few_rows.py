"""Lowering for steps of 2 to FEW_ROWS rows: several sequences' next tokens, speculation, short prompts.

As for prefill every buffer is a matrix that all threads share. But rows are quantised one by one and
multiplied by the skinny gemm, which is limited by memory as a decode step is; threads partition single rows
instead of tiles; and the context of attention is split, since few rows make few tiles of queries.
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER, ROWS
from ..abi.records import ATTENTION, MATMUL, QUANTIZE
from ..arena import Region
from ..kernels import MERGE_ROWS, PREFILL_ATTENTIONS, QUANTIZE_ROWS, SKINNY_GEMMS
from .prefill import PrefillLowering


class SkinnyLowering(PrefillLowering):
    """What lowering for few rows and for prompts on matrix tiles, of which few rows have logits, share."""

    row_tile = 1

    def _skinny_matmul(
        self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any], max_rows: int = 0
    ) -> None:
        """Append out = x · Wᵀ for at most FEW_ROWS rows.

        A step of more than `max_rows` rows skips it, unless that is 0.
        """
        source, target = self._quantized_rows(x, max_rows), self._shared(out)
        scratch = self._arena.per_thread("skinny gemm", sizes.skinny_scratch_bytes())
        self._list.append(
            SKINNY_GEMMS[kind],
            MATMUL,
            [source, target] if values.get("accumulate") else [source],
            [target],
            OTHER,
            x=source.address,
            x_stride=source.stride,
            out=target.address,
            out_stride=target.stride,
            on_logits_rows=out.logits_rows,
            n_rows_address=self._n_rows_address(out),
            max_rows=max_rows,
            scratch=scratch.address,
            scratch_stride=scratch.thread_stride,
            **values,
        )

    def _quantized_rows(self, x: ops.Buffer, max_rows: int) -> Region:
        """The present contents of a buffer in 8 bits, row by row; made once for all readers."""
        most = min(sizes.FEW_ROWS * self._copies(x), self._max_rows(x))
        region = self._arena.rows(f"{x.name} in 8 bits", most, sizes.row_bytes(x.width))
        if x.name not in self._quantized:
            source = self._shared(x)
            self._list.append(
                QUANTIZE_ROWS,
                QUANTIZE,
                [source],
                [region],
                self._partition(x),
                x=source.address,
                x_stride=source.stride,
                out=region.address,
                out_stride=region.stride,
                width=x.width,
                on_logits_rows=x.logits_rows,
                n_rows_address=self._n_rows_address(x),
                max_rows=max_rows,
            )
            self._quantized.add(x.name)
        return region


class FewRowsLowering(SkinnyLowering):
    """Lowers a program for steps of up to FEW_ROWS rows."""

    expert_tile = 1

    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None:
        if kind not in SKINNY_GEMMS:
            super()._matmul(x, out, kind, values)
            return
        self._skinny_matmul(x, out, kind, values)
        self._output(out)

    def _attend_to_cache(
        self, op: ops.Attend, reads: list[Region], out: Region, fields: dict[str, Any]
    ) -> None:
        config = self._config
        row_bytes = sizes.partials_bytes(op.heads, op.head_dim, config.n_pages * config.page_size)
        name = f"splits of rows {op.heads} {op.head_dim}"
        partials = self._arena.rows(name, min(sizes.FEW_ROWS, config.max_rows), row_bytes)
        fields = fields | {"partials": partials.address, "partials_stride": partials.stride}
        kernel = PREFILL_ATTENTIONS[config.cache_type]
        self._list.append(kernel, ATTENTION, reads, [partials], OTHER, **fields)
        self._list.append(MERGE_ROWS, ATTENTION, [partials], [out], ROWS, **fields)
