"""The instructions of a step of many rows: prefill, or several sequences at once.

Threads share the rows of pointwise work, whole tiles of them, and the panels of matrix products. Buffers are
matrices that all threads see; barriers stand where one thread needs what another wrote.
"""

from __future__ import annotations

from typing import Any

from ....quant.jit.kernel import CpuKernel
from ... import ops
from ...ops.fused import GatedMatMul
from ..abi import sizes
from ..abi.instructions import OTHER, ROWS
from ..abi.records import ATTENTION, MATMUL, POINTWISE, QUANTIZE
from ..arena import Region
from ..kernels import (
    ATTENDS,
    FLOAT_MATMULS,
    LIST_SECONDS,
    QUANTIZE_TILES,
    ROPE,
    SELECT_ROWS,
    SOFT_CAP,
    STORES,
    TILED_MATMULS,
)
from .moe import ManyRowsExperts
from .weight_panels import attention_fields, cache


class ManyRows(ManyRowsExperts):
    """Buffers are matrices that all threads see."""

    _float_products = FLOAT_MATMULS

    def _lower(self, op: ops.Op | GatedMatMul) -> None:
        match op:
            case ops.Embed():
                self._embed_into(op, self._shared(op.out))
                self._wrote(op.out)
            case ops.MatMul():
                values = self._matrices[id(op.weight)].fields()
                if op.bias is not None:
                    values["bias"] = self._memory.vector(op.bias)
                self._matmul(op.x, op.out, op.weight.format.name, values | {"accumulate": op.accumulate})
            case GatedMatMul():
                gate, up = self._matrices[id(op.gate)], self._matrices[id(op.up)]
                self._matmul(op.x, op.out, op.gate.format.name, gate.paired(up, op.kind))
            case ops.RoPE():
                self._rope(op)
            case ops.Attend():
                self._attend(op)
            case ops.SelectRows():
                # Reads rows that other threads wrote.
                self._pointwise(SELECT_ROWS, op.out, op.x, sharing=OTHER)
            case ops.SoftCap():
                self._pointwise(SOFT_CAP, op.x, op.x, sharing=OTHER, number=op.cap)
            case _:
                self._lower_rest(op)

    def _boundary_in(self, buffer: ops.Buffer) -> None:
        self._wrote(buffer)

    def _input(self, buffer: ops.Buffer) -> Region:
        return self._shared(buffer)

    def _result(self, buffer: ops.Buffer) -> Region:
        self._wrote(buffer)
        return self._shared(buffer)

    def _how(self, buffer: ops.Buffer) -> tuple[str, dict[str, Any]]:
        return self._sharing(buffer), {"on_logits_rows": buffer.logits_rows}

    def _output(self, buffer: ops.Buffer) -> Region:
        return self._result(buffer)

    def _wrote(self, buffer: ops.Buffer) -> None:
        self._quantized.discard(buffer.name)

    def _pointwise(
        self,
        kernel: CpuKernel,
        out: ops.Buffer,
        x: ops.Buffer,
        y: ops.Buffer | Region | None = None,
        sharing: str | None = None,
        **values: Any,
    ) -> None:
        source, target = self._shared(x), self._shared(out)
        other = y if isinstance(y, Region) else self._shared(y) if y else source
        self._list.emit(
            kernel,
            POINTWISE,
            [source, other],
            [target],
            sharing or self._sharing(out),
            x=source.address,
            x_stride=source.stride,
            y=other.address,
            y_stride=other.stride,
            out=target.address,
            out_stride=target.stride,
            width=x.width,
            on_logits_rows=out.logits_rows,
            rows_at=self._rows_at(out),
            **{"groups": 1} | values,
        )
        self._wrote(out)

    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None:
        target = self._shared(out)
        reads = [target] if values.get("accumulate") else []
        if kind in FLOAT_MATMULS:
            kernel, source = FLOAT_MATMULS[kind], self._shared(x)
            values |= {"x": source.address, "x_stride": source.stride}
        else:
            kernel = TILED_MATMULS[kind]
            source, lists = self._quantize(x)
            reads.append(lists)
            scratch = self._memory.private("tiled", sizes.tiled_scratch_bytes(self._layout.max_rows))
            values |= {"scratch": scratch.address, "scratch_stride": scratch.private}
            values |= self._tiles(x, source, lists)
        self._list.emit(
            kernel,
            MATMUL,
            [source, *reads],
            [target],
            OTHER,
            out=target.address,
            out_stride=target.stride,
            on_logits_rows=out.logits_rows,
            rows_at=self._rows_at(out),
            **values,
        )
        self._wrote(out)

    def _tiles(self, x: ops.Buffer, tiles: Region, lists: Region) -> dict[str, int]:
        """What `MATMUL` says of quantised rows."""
        records, _ = sizes.tile_bytes(x.width, self._most(x))
        return {
            "x": tiles.address,
            "seconds": tiles.address + records,
            "lists": lists.address,
            "list_stride": sizes.list_bytes(x.width, self._most(x))[1],
        }

    def _quantize(self, x: ops.Buffer) -> tuple[Region, Region]:
        """The 8-bit form of a buffer's present contents, made once for all that read it: tiles and lists."""
        rows = self._most(x)
        region = self._memory.rows(f"{x.name} in tiles", 1, sum(sizes.tile_bytes(x.width, rows)))
        lists = self._memory.rows(f"{x.name} listed", 1, sizes.list_bytes(x.width, rows)[0])
        if x.name not in self._quantized:
            source = self._shared(x)
            fields = self._tiles(x, region, lists)
            fields |= {"out": fields["x"], "x": source.address, "x_stride": source.stride}
            fields |= {"width": x.width, "on_logits_rows": x.logits_rows, "rows_at": self._rows_at(x)}
            sharing = self._sharing(x)
            record = QUANTIZE
            self._list.emit(QUANTIZE_TILES, record, [source], [region], sharing, **fields)
            self._list.emit(LIST_SECONDS, record, [region], [lists], OTHER, **fields)
            self._quantized.add(x.name)
        return region, lists

    def _rope(self, op: ops.RoPE) -> None:
        cos, sin = self._rotation(op)
        x = self._shared(op.x)
        self._list.emit(
            ROPE,
            POINTWISE,
            [x, cos, sin],
            [x],
            ROWS,
            x=x.address,
            x_stride=x.stride,
            out=x.address,
            out_stride=x.stride,
            width=op.x.width,
            groups=op.heads,
            interleaved=op.interleaved,
            n_angles=len(op.inv_freq),
            cos=cos.address,
            sin=sin.address,
            angle_stride=cos.stride,
            start=op.start,
        )
        self._wrote(op.x)

    def _attend(self, op: ops.Attend) -> None:
        layout = self._layout
        keys, values = cache(self._memory, op, layout)
        scratch_bytes = sizes.attention_scratch_bytes(op.head_dim)
        scratch = self._memory.private(f"attention {op.head_dim}", scratch_bytes)
        q, out = self._shared(op.q), self._shared(op.out)
        k, v = (self._shared(b) for b in (op.k, op.v)) if op.append else (q, q)
        fields = attention_fields(self._memory, op, keys, values, q=q, k=k, v=v, out=out)
        fields |= {"scratch": scratch.address, "scratch_stride": scratch.private}
        record = ATTENTION
        if op.append:
            self._list.emit(STORES[layout.cache_type], record, [k, v], [keys, values], ROWS, **fields)
        attend = ATTENDS[layout.cache_type]
        self._list.emit(attend, record, [q, keys, values], [out], OTHER, **fields)
        self._wrote(op.out)
