"""Lowering for steps of 2 to FEW_ROWS rows: several sequences' next tokens, speculation, short prompts.

As for prefill every buffer is a matrix that all threads share, but rows are quantised one by one and multiplied
by the skinny gemm, which is limited by memory as a decode step is, and threads partition single rows instead of
tiles. Mixtures of experts and products of float weights are as in prefill.
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import MATMUL, QUANTIZE
from ..arena import Region
from ..kernels import QUANTIZE_ROWS, SKINNY_GEMMS
from .prefill import PrefillLowering


class FewRowsLowering(PrefillLowering):
    """Lowers a program for steps of up to FEW_ROWS rows."""

    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None:
        if kind not in SKINNY_GEMMS or self._is_permuted(x):
            super()._matmul(x, out, kind, values)
            return
        source, target = self._quantized_rows(x), self._shared(out)
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
            scratch=scratch.address,
            scratch_stride=scratch.thread_stride,
            **values,
        )
        self._output(out)

    def _quantized_rows(self, x: ops.Buffer) -> Region:
        """The present contents of a buffer in 8 bits, row by row; made once for all readers."""
        region = self._arena.rows(f"{x.name} in 8 bits", sizes.FEW_ROWS, sizes.row_bytes(x.width))
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
            )
            self._quantized.add(x.name)
        return region
