"""Lowering of products with few rows by the skinny gemm."""

from __future__ import annotations

from typing import Any

from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import MATMUL, QUANTIZE
from ..arena import Region
from ..kernels import QUANTIZE_ROWS, SKINNY_GEMMS
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
