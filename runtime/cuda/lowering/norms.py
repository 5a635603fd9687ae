"""Launches of norms, most of which are parts of the products around them, and of rows in halves."""

from __future__ import annotations

import numpy as np

from ... import ops
from ..compile.arguments import Region
from ..kernels.common import pointwise
from ..kernels.matmul import quantize
from .base import DECODE_ROWS, LaunchBuilder, QuantizedRows

MAX_PARTS, MAX_NORMED_PARTS = 16, 8  # times 1024 columns that `convert_to_f16` holds in registers


class NormLowering(LaunchBuilder):
    def _rms_norm(self, i: int, op: ops.RMSNorm) -> None:
        if self._lazy(i, op):
            attached = self._quantized.get(self._resolve(op.x).name + " normed")
            if attached is None or attached.norm is not op:
                attached = self._quantize_normed(op)
            self._invalidate(op.out)
            self._quantized[self._resolve(op.out).name] = attached
            return
        if self._halved_at_once(i, op):
            self._invalidate(op.out)
            self._convert_to_f16(
                self._at(op.x), op.x.width, self._n_rows[op.x.logits_rows], *self._room(op.out), op
            )
            self._f16_current.add(self._resolve(op.out).name)
            return
        each = op.groups * len(op.weight) > op.x.width
        self._norm(op, None, mean=0, size=op.x.width // op.groups if each else len(op.weight), each=int(each))

    def _lazy(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether a norm's result is only needed in 8 bits, and can be made without looking at the whole
        row.
        """
        return self._n_rows[op.x.logits_rows] <= DECODE_ROWS and self._for_products(i, op)

    def _halved_at_once(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether a norm's result is only needed in halves, and its rows are not too long for registers."""
        held = op.x.width <= 1024 * MAX_NORMED_PARTS
        return self._n_rows[op.x.logits_rows] > DECODE_ROWS and held and self._for_products(i, op)

    def _for_products(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether a norm is one of whole rows, whose result only products with blocks read."""
        whole = op.groups == 1 and len(op.weight) == op.x.width and op.x.width % 32 == 0
        return whole and self._read_only_by_matmuls(i, op.out)

    def _quantize_normed(self, op: ops.RMSNorm) -> QuantizedRows:
        x, coded = self._at(op.x), self._quantized_address(op.out)
        partials = self._partials(op.out)
        blocks, weight = op.x.width // 32, self.memory.vector(op.weight)
        arguments = [x.address, x.stride, blocks, weight, coded, partials]
        what = self._kernel(quantize.quantize, 128, NORMED=1, TOKENS=self._padded_rows(op.x))
        self._emit(what, (-(-blocks // 4), self._n_rows[op.x.logits_rows]), arguments)
        return QuantizedRows(coded, partials, op)

    def _norm(
        self, op: ops.RMSNorm | ops.LayerNorm, bias: np.ndarray | None, mean: int, size: int, each: int
    ) -> None:
        x, out = self._at(op.x), self._at(op.out)
        arguments: list[int | float] = [x.address, x.stride, out.address, out.stride]
        arguments += [
            self.memory.vector(op.weight),
            0 if bias is None else self.memory.vector(bias),
            float(op.eps),
            size,
            1 / size,
            op.x.width,
        ]
        what = self._kernel(
            pointwise.norm,
            256,
            MEAN=mean,
            BIAS=int(bias is not None),
            EACH=each,
            GROUPS=op.groups,
        )
        self._emit(what, (op.groups, self._n_rows[op.x.logits_rows]), arguments, 64)
        self._invalidate(op.out)

    def _as_f16(self, x: ops.Buffer) -> tuple[Region, Region]:
        """A buffer's rows as halves, and their scales: made now, unless they are there already."""
        halves, scales = self._room(x)
        if self._resolve(x).name not in self._f16_current:
            self._convert_to_f16(self._at(x), x.width, self._n_rows[x.logits_rows], halves, scales)
            self._f16_current.add(self._resolve(x).name)
        return halves, scales

    def _room(self, x: ops.Buffer) -> tuple[Region, Region]:
        """For a buffer's rows in halves, and for their scales."""
        name, rows = self._resolve(x).name, self.capacity.rows(self._resolve(x))
        halves = self.memory.rows(f"{name} in halves", rows, 2 * (-(-x.width // 128) * 128))
        return halves, self.memory.rows(f"{name}, scales", 1, 4 * rows)

    def _convert_to_f16(
        self,
        x: Region,
        width: int,
        rows: int,
        halves: Region,
        scales: Region,
        norm: ops.RMSNorm | None = None,
    ) -> None:
        parts = -(-width // 1024)
        constants = {"PARTS": parts if parts <= MAX_PARTS else 0, "NORMED": int(norm is not None)}
        constants["WARPGROUPS"] = int(self.device.warpgroups)
        arguments: list[int | float] = [*x, width, *halves, scales.address]
        arguments += [self.memory.vector(norm.weight) if norm else 0, 1 / width]
        arguments += [float(norm.eps) if norm else 0.0]
        self._emit(self._kernel(quantize.convert_to_f16, 256, **constants), (1, rows), arguments, 64)
