"""Launches of norms, most of which are fused with the products around them, and of conversions to float16."""

from __future__ import annotations

import numpy as np

from ... import ops
from ..abi.arguments import Region
from ..kernels.common import pointwise
from ..kernels.common.pointwise import NormArguments
from ..kernels.matmul import quantize
from ..kernels.matmul.quantize import ConvertArguments
from .base import LaunchBuilder, QuantizedRows

MAX_PARTS, MAX_NORMED_PARTS = 16, 8  # times 1024 columns that `convert_to_f16` keeps in registers


class NormLowering(LaunchBuilder):
    """Launches of RMSNorm and LayerNorm."""

    def _rms_norm(self, i: int, op: ops.RMSNorm) -> None:
        if self._deferred(i, op):
            rows = self._quantized.get(self._resolve(op.x).name + " normed")
            if rows is None or rows.norm is not op:
                rows = self._quantize_normed(op)
            self._invalidate(op.out)
            self._quantized[self._resolve(op.out).name] = rows
            return
        if self._normed_to_f16(i, op):
            self._invalidate(op.out)
            to, scales = self._f16_memory(op.out)
            n = self._n_rows[op.x.logits_rows]
            self._convert_to_f16(self._at(op.x), op.x.width, n, to, scales, op)
            self._f16_current[self._resolve(op.out).name] = scales.address
            return
        each = op.groups * len(op.weight) > op.x.width
        self._norm(op, None, mean=0, size=op.x.width // op.groups if each else len(op.weight), each=int(each))

    def _deferred(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether the products that read a norm in a decode step can divide by its root mean square."""
        return self._n_rows[op.x.logits_rows] <= self.decode_rows and self._whole_row_for_matmuls(i, op)

    def _normed_to_f16(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether a norm can be computed in the conversion to float16 of a prefill step."""
        many = self._n_rows[op.x.logits_rows] > self.decode_rows
        return many and op.x.width <= 1024 * MAX_NORMED_PARTS and self._whole_row_for_matmuls(i, op)

    def _whole_row_for_matmuls(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether a norm is one of whole rows that only products with block-quantised weights read."""
        whole = op.groups == 1 and len(op.weight) == op.x.width and op.x.width % 32 == 0
        return whole and self._read_only_by_matmuls(i, op.out)

    def _quantize_normed(self, op: ops.RMSNorm) -> QuantizedRows:
        """Quantise the norm's input times its weight, and store the sums of squares."""
        codes, partials = self._quantized_address(op.out), self._partials(op.out)
        blocks, weight = op.x.width // 32, self.memory.vector(op.weight)
        kernel = self._kernel(quantize.quantize, 128, NORMED=1, TOKENS=self._padded_rows(op.x))
        grid = (-(-blocks // 4), self._n_rows[op.x.logits_rows])
        self._emit(kernel, grid, [*self._at(op.x), blocks, weight, codes, partials])
        return QuantizedRows(codes, partials, op)

    def _norm(
        self, op: ops.RMSNorm | ops.LayerNorm, bias: np.ndarray | None, mean: int, size: int, each: int
    ) -> None:
        """A norm by itself, of each of `op.groups` parts of `size` columns: see
        `kernels.common.pointwise.norm`.
        """
        arguments = NormArguments(
            x=self._at(op.x),
            out=self._at(op.out),
            weight=self.memory.vector(op.weight),
            bias=self._vector(bias),
            eps=op.eps,
            size=size,
            inverse_size=1 / size,
            width=op.x.width,
        )
        constants = {"MEAN": mean, "BIAS": int(bias is not None), "EACH": each, "GROUPS": op.groups}
        kernel = self._kernel(pointwise.norm, 256, **constants)
        self._emit(kernel, (op.groups, self._n_rows[op.x.logits_rows]), arguments, 64)
        self._invalidate(op.out)

    def _as_f16(self, x: ops.Buffer) -> tuple[Region, Region]:
        """A buffer's rows as float16 and their scales; launches the conversion unless they are there
        already.
        """
        rows, scales = self._f16_memory(x)
        name = self._resolve(x).name
        if name not in self._f16_current:
            self._convert_to_f16(self._at(x), x.width, self._n_rows[x.logits_rows], rows, scales)
            self._f16_current[name] = scales.address
        return rows, Region(self._f16_current[name], scales.stride)

    def _convert_to_f16(
        self,
        x: Region,
        width: int,
        rows: int,
        out: Region,
        scales: Region,
        norm: ops.RMSNorm | None = None,
    ) -> None:
        """Convert float32 rows, or their norm, to float16, and store the scales of the rows."""
        parts = 1 << (-(-width // 1024) - 1).bit_length()  # widths share kernels: other columns count as 0
        constants = {"PARTS": parts if parts <= MAX_PARTS else 0, "NORMED": int(norm is not None)}
        constants["WARPGROUPS"] = int(self.device.warpgroups)
        arguments = ConvertArguments(
            x=x,
            width=width,
            out=out,
            scales=scales.address,
            weight=self.memory.vector(norm.weight) if norm else 0,
            inverse_width=1 / width,
            eps=norm.eps if norm else 0.0,
        )
        kernel = self._kernel(quantize.convert_to_f16, 256, **constants)
        self._emit(kernel, (1, rows), arguments, 64)
