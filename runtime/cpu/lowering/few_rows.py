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
from ..abi.records import ATTENTION
from ..arena import Region
from ..kernels import MERGE_ROWS, PREFILL_ATTENTIONS, SKINNY_GEMMS
from .skinny import SkinnyLowering


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
