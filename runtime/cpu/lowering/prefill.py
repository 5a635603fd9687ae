"""Lowering for prefill steps: any number of rows of one or several sequences.

Every buffer is a matrix that all threads share. Threads partition the rows in pointwise work, in whole tiles
of TOKENS rows, and the weight panels in matrix products. `Instructions` puts a barrier where one thread needs
data that another one wrote.
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
    FLOAT_GEMMS,
    GEMMS,
    KV_STORES,
    LIST_RESIDUALS,
    PREFILL_ATTENTIONS,
    QUANTIZE_TILES,
    ROPE,
    SELECT_ROWS,
    SOFT_CAP,
)
from ..simd.tile_sizes import TOKENS
from .attention_record import attention_fields, kv_pools, sequence_ends
from .base import rope_fields
from .prefill_moe import PrefillMoELowering


class PrefillLowering(PrefillMoELowering):
    """Lowers a program for steps of any number of rows."""

    row_tile = expert_tile = TOKENS
    _float_products = FLOAT_GEMMS

    def _lower(self, op: ops.Op | GatedMatMul) -> None:
        """Append the instructions of one op."""
        match op:
            case ops.Embed():
                self._embed_into(op, self._output(op.out))
            case ops.MatMul():
                values = self._matrices[id(op.weight)].fields()
                if op.bias is not None:
                    values["bias"] = self._arena.vector(op.bias)
                self._matmul(op.x, op.out, op.weight.format.name, values | {"accumulate": op.accumulate})
            case GatedMatMul():
                gate, up = self._matrices[id(op.gate)], self._matrices[id(op.up)]
                self._matmul(op.x, op.out, op.gate.format.name, gate.gated_fields(up, op.kind))
            case ops.RoPE():
                self._rope(op)
            case ops.Attend():
                self._attend(op)
            case ops.SelectRows():
                # Reads rows that other threads wrote.
                self._pointwise(SELECT_ROWS, op.out, op.x, partition=OTHER)
            case ops.SoftCap():
                self._pointwise(SOFT_CAP, op.x, op.x, partition=OTHER, scalar=op.cap)
            case _:
                self._lower_common(op)

    def _boundary_in(self, buffer: ops.Buffer) -> None:
        self._output(buffer)

    def _input(self, buffer: ops.Buffer) -> Region:
        return self._shared(buffer)

    def _output(self, buffer: ops.Buffer) -> Region:
        self._quantized.discard(buffer.name)
        return self._shared(buffer)

    def _pointwise_output(self, buffer: ops.Buffer) -> Region:
        return self._output(buffer)

    def _pointwise_partition(self, buffer: ops.Buffer) -> tuple[str, dict[str, Any]]:
        return self._partition(buffer), {"on_logits_rows": buffer.logits_rows}

    def _pointwise(
        self,
        kernel: CpuKernel,
        out: ops.Buffer,
        x: ops.Buffer,
        y: ops.Buffer | Region | None = None,
        partition: str | None = None,
        **values: Any,
    ) -> None:
        source, target = self._shared(x), self._output(out)
        other = y if isinstance(y, Region) else self._shared(y) if y else source
        self._list.append(
            kernel,
            POINTWISE,
            [source, other],
            [target],
            partition or self._partition(out),
            **source.fields("x"),
            **other.fields("y"),
            **target.fields("out"),
            width=x.width,
            on_logits_rows=out.logits_rows,
            n_rows_address=self._n_rows_address(out),
            **{"groups": 1} | values,
        )

    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None:
        target = self._shared(out)
        reads = [target] if values.get("accumulate") else []
        if kind in FLOAT_GEMMS:
            kernel, source = FLOAT_GEMMS[kind], self._shared(x)
            values |= {"x": source.address, "x_stride": source.stride}
        else:
            kernel = GEMMS[kind]
            source, lists = self._quantize(x)
            reads.append(lists)
            scratch = self._arena.per_thread("gemm", sizes.gemm_scratch_bytes(self._config.max_rows))
            values |= {"scratch": scratch.address, "scratch_stride": scratch.thread_stride}
            values |= self._tile_fields(x, source, lists)
        self._list.append(
            kernel,
            MATMUL,
            [source, *reads],
            [target],
            OTHER,
            out=target.address,
            out_stride=target.stride,
            on_logits_rows=out.logits_rows,
            n_rows_address=self._n_rows_address(out),
            **values,
        )
        self._output(out)

    def _tile_fields(self, x: ops.Buffer, tiles: Region, lists: Region) -> dict[str, int]:
        """The MATMUL fields of the quantised rows of a buffer."""
        records, _ = sizes.tile_bytes(x.width, self._max_rows(x))
        return {
            "x": tiles.address,
            "residuals": tiles.address + records,
            "residual_lists": lists.address,
            "residual_list_stride": sizes.residual_list_bytes(x.width, self._max_rows(x))[1],
        }

    def _quantize(self, x: ops.Buffer) -> tuple[Region, Region]:
        """The present contents of a buffer in 8 bits, tiles and residual lists; made once for all readers."""
        rows = self._max_rows(x)
        tiles = self._arena.rows(f"{x.name} in tiles", 1, sum(sizes.tile_bytes(x.width, rows)))
        lists = self._arena.rows(f"{x.name} residuals", 1, sizes.residual_list_bytes(x.width, rows)[0])
        if x.name not in self._quantized:
            source, fields = self._shared(x), self._tile_fields(x, tiles, lists)
            fields |= {"out": fields["x"], "x": source.address, "x_stride": source.stride}
            fields |= {"width": x.width, "on_logits_rows": x.logits_rows}
            fields |= {"n_rows_address": self._n_rows_address(x)}
            self._list.append(QUANTIZE_TILES, QUANTIZE, [source], [tiles], self._partition(x), **fields)
            self._list.append(LIST_RESIDUALS, QUANTIZE, [tiles], [lists], OTHER, **fields)
            self._quantized.add(x.name)
        return tiles, lists

    def _rope(self, op: ops.RoPE) -> None:
        """Append a rotation in place."""
        cos, sin = self._rope_angles(op)
        x = self._output(op.x)
        self._list.append(
            ROPE,
            POINTWISE,
            [x, cos, sin],
            [x],
            ROWS,
            **x.fields("x"),
            **x.fields("out"),
            width=op.x.width,
            **rope_fields(op, cos, sin),
        )

    def _attend(self, op: ops.Attend) -> None:
        """Append KV_STORES, if the op appends to the cache, and PREFILL_ATTENTIONS."""
        cache_type = self._config.cache_type
        keys, values = kv_pools(self._arena, op, self._config)
        scratch_bytes = sizes.attention_scratch_bytes(op.head_dim)
        scratch = self._arena.per_thread(f"attention {op.head_dim}", scratch_bytes)
        q, out = self._shared(op.q), self._output(op.out)
        k, v = (self._shared(b) for b in (op.k, op.v)) if op.append else (q, q)
        fields = attention_fields(self._arena, self._config, op, keys, values, q=q, k=k, v=v, out=out)
        fields |= {"scratch": scratch.address, "scratch_stride": scratch.thread_stride}
        if not op.causal:
            fields["ends"] = sequence_ends(self._arena, self._config.max_rows).address
        if op.append:
            self._list.append(KV_STORES[cache_type], ATTENTION, [k, v], [keys, values], ROWS, **fields)
        self._attend_to_cache(op, [q, keys, values], out, fields)

    def _attend_to_cache(
        self, op: ops.Attend, reads: list[Region], out: Region, fields: dict[str, Any]
    ) -> None:
        """Append the attention of the rows to the cache; `fields` are ATTENTION fields."""
        kernel = PREFILL_ATTENTIONS[self._config.cache_type]
        self._list.append(kernel, ATTENTION, reads, [out], OTHER, **fields)
