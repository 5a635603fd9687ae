"""Lowering for decode steps: the next token of one sequence, one row.

The pointwise work of one row is so little that a barrier costs more than doing it again: every thread keeps
its own copy of the residual stream and of everything pointwise. Threads meet only after matrix products and
attention, whose results they share.
"""

from __future__ import annotations

from typing import Any

from ....quant.jit.kernel import CpuKernel
from ... import ops
from ...ops.fused import GatedMatMul
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import MATMUL, POINTWISE, QUANTIZE
from ..arena import Region
from ..kernels import ADD, GEMVS, QUANTIZE_ROW, ROPE, SOFT_CAP
from .base import rope_fields
from .decode_attention import DecodeAttentionLowering
from .weight_panels import read_first


class DecodeLowering(DecodeAttentionLowering):
    """Lowers a program for steps of one row."""

    _float_products = GEMVS

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._locations: dict[str, Region] = {}  # the region of each buffer's present contents

    def _per_thread(self, buffer: ops.Buffer) -> Region:
        return self._arena.per_thread(buffer.name, 4 * buffer.width)

    def _input(self, buffer: ops.Buffer) -> Region:
        for op in self._deferred.pop(buffer.name, []):
            self._apply(op)
        return self._locations[buffer.name]

    def _boundary_in(self, buffer: ops.Buffer) -> None:
        self._output(buffer)

    def _output(self, buffer: ops.Buffer) -> Region:
        self._set_location(buffer, self._shared(buffer))
        return self._shared(buffer)

    def _pointwise_output(self, buffer: ops.Buffer) -> Region:
        self._set_location(buffer, self._per_thread(buffer))
        return self._per_thread(buffer)

    def _pointwise_partition(self, buffer: ops.Buffer) -> tuple[str, dict[str, Any]]:
        return OTHER, {"replicated": True}

    def _set_location(self, buffer: ops.Buffer, region: Region) -> None:
        self._locations[buffer.name] = region
        self._quantized.discard(buffer.name)

    def _lower(self, op: ops.Op | GatedMatMul) -> None:
        """Append the instructions of one op; in-place norms and RoPE are deferred to the attention."""
        match op:
            case ops.Embed():
                own = self._per_thread(op.out)
                self._set_location(op.out, own if self._embed_into(op, own) else self._shared(op.out))
            case ops.RMSNorm() | ops.RoPE():
                if isinstance(op, ops.RoPE) or op.x is op.out:
                    self._deferred.setdefault(op.x.name, []).append(op)
                else:
                    self._apply(op)
            case ops.MatMul():
                self._matmul(op)
            case GatedMatMul():
                gate, up = self._matrices[id(op.gate)], self._matrices[id(op.up)]
                fields = gate.gated_fields(up, op.kind)
                self._multiply(op.x, op.gate.format.name, self._shared(op.out), fields)
                self._output(op.out)
            case ops.Attend():
                self._attend(op)
            case ops.SelectRows():
                self._locations[op.out.name] = self._input(op.x)
            case ops.SoftCap():
                self._soft_cap(op)
            case _:
                self._lower_common(op)

    def _apply(self, op: ops.RMSNorm | ops.RoPE) -> None:
        """Append a norm or RoPE as an instruction of its own."""
        if isinstance(op, ops.RMSNorm):
            self._lower_pointwise(op)
            return
        cos, sin = self._rope_angles(op)
        self._pointwise(ROPE, op.x, op.x, reads=[cos, sin], **rope_fields(op, cos, sin))

    def _soft_cap(self, op: ops.SoftCap) -> None:
        """Append a soft cap of the logits, which all threads share."""
        region = self._input(op.x)
        self._list.append(
            SOFT_CAP,
            POINTWISE,
            [region],
            [region],
            OTHER,
            x=region.address,
            x_stride=region.stride,
            width=op.x.width,
            on_logits_rows=op.x.logits_rows,
            scalar=op.cap,
        )

    def _pointwise(
        self,
        kernel: CpuKernel,
        out: ops.Buffer,
        x: ops.Buffer,
        y: ops.Buffer | Region | None = None,
        reads: list[Region] | None = None,
        **values: Any,
    ) -> None:
        source = self._input(x)
        other = y if isinstance(y, Region) else self._input(y) if y else source
        target = self._per_thread(out)
        self._list.append(
            kernel,
            POINTWISE,
            [source, other, *(reads or [])],
            [target],
            OTHER,
            **source.fields("x"),
            **other.fields("y"),
            **target.fields("out"),
            width=x.width,
            replicated=True,
            **{"groups": 1} | values,
        )
        self._set_location(out, target)

    def _matmul(self, op: ops.MatMul) -> None:
        """Append a matrix product, and the addition of its result if the op accumulates."""
        values: dict[str, Any] = dict(self._matrices[id(op.weight)].fields())
        if op.bias is not None:
            values["bias"] = self._arena.vector(op.bias)
        kind = op.weight.format.name
        if not op.accumulate:
            values["on_logits_rows"] = op.out.logits_rows
            self._multiply(op.x, kind, self._shared(op.out), values)
            self._output(op.out)
            return
        # Each thread has its own copy of the output, to which it adds the product from a shared row.
        product = ops.Buffer(f"{op.out.name}, added", op.out.width)
        region = self._arena.rows(product.name, 1, 4 * product.width)
        self._multiply(op.x, kind, region, values)
        self._set_location(product, region)
        self._pointwise(ADD, op.out, op.out, product, scalar=1.0, other_scalar=1.0)

    def _multiply(
        self,
        x: ops.Buffer,
        kind: str,
        out: Region,
        values: dict[str, Any],
        partition: str = OTHER,
        only: bool = False,
    ) -> None:
        needed = {name: values[name] for name in ("n_panels", "pool", "pool_start")} if only else {}
        source = self._input(x) if kind in sizes.FLOAT_BYTES else self._quantize(x, needed)
        self._list.append(
            GEMVS[kind],
            MATMUL,
            [source],
            [out],
            partition,
            x=source.address,
            x_thread_stride=source.thread_stride,
            out=out.address,
            out_stride=out.stride,
            **values,
        )
        self._list.read_ahead(read_first(values, self._config.n_threads))

    def _quantize(self, x: ops.Buffer, needed: dict[str, Any]) -> Region:
        """The present contents of a buffer in 8 bits, made once for all readers; `needed` are QUANTIZE fields
        by which threads skip it."""
        source = self._input(x)
        region = self._arena.per_thread(f"{x.name} in 8 bits", sizes.row_bytes(x.width))
        if x.name not in self._quantized:
            self._list.append(
                QUANTIZE_ROW,
                QUANTIZE,
                [source],
                [region],
                x=source.address,
                x_thread_stride=source.thread_stride,
                out=region.address,
                out_thread_stride=region.thread_stride,
                width=x.width,
                **needed,
            )
            self._quantized.add(x.name)
        return region
