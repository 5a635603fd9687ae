"""The instructions of a step of one row: the next token of one sequence.

Its pointwise work is so little that waiting for another thread costs more than doing it again: each thread
keeps its own copy of the residual stream and of everything pointwise, and threads meet only after matrix
products and attention, whose results they share. What prepares queries and keys is done by the attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....quant.jit.kernel import CpuKernel
from ... import ops
from ...ops.fused import GatedMatMul
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import ATTENTION, MATMUL, POINTWISE, QUANTIZE
from ..arena import Memory, Region
from ..kernels import ADD, ATTEND_ONES, MATVECS, MERGE_SPANS, QUANTIZE_ROW, ROPE, SOFT_CAP
from .base import turns
from .moe import OneRowExperts
from .weight_panels import Layout, Matrix, attention_fields, cache


class OneRow(OneRowExperts):
    """What pointwise work writes are rows that each thread has of its own."""

    _float_products = MATVECS

    def __init__(
        self, program: ops.Program, layout: Layout, memory: Memory, matrices: Mapping[int, Matrix]
    ) -> None:
        super().__init__(program, layout, memory, matrices)
        self._where: dict[str, Region] = {}  # a buffer's present contents
        self._waiting: dict[str, list[ops.RMSNorm | ops.RoPE]] = {}  # for the attention to do

    def _own(self, buffer: ops.Buffer) -> Region:
        return self._memory.private(buffer.name, 4 * buffer.width)

    def _source(self, buffer: ops.Buffer) -> Region:
        """Where an op finds the buffer, with all that was put off done."""
        for op in self._waiting.pop(buffer.name, []):
            self._apply(op)
        return self._where[buffer.name]

    def _boundary_in(self, buffer: ops.Buffer) -> None:
        self._wrote(buffer, self._shared(buffer))

    def _input(self, buffer: ops.Buffer) -> Region:
        return self._source(buffer)

    def _result(self, buffer: ops.Buffer) -> Region:
        self._wrote(buffer, self._own(buffer))
        return self._own(buffer)

    def _how(self, buffer: ops.Buffer) -> tuple[str, dict[str, Any]]:
        return OTHER, {"every": True}

    def _output(self, buffer: ops.Buffer) -> Region:
        self._wrote(buffer, self._shared(buffer))
        return self._shared(buffer)

    def _wrote(self, buffer: ops.Buffer, region: Region) -> None:
        self._where[buffer.name] = region
        self._quantized.discard(buffer.name)

    def _lower(self, op: ops.Op | GatedMatMul) -> None:
        match op:
            case ops.Embed():
                own = self._own(op.out)
                self._wrote(op.out, own if self._embed_into(op, own) else self._shared(op.out))
            case ops.RMSNorm() | ops.RoPE():
                # In place on queries or keys: the attention may do it.
                if isinstance(op, ops.RoPE) or op.x is op.out:
                    self._waiting.setdefault(op.x.name, []).append(op)
                else:
                    self._apply(op)
            case ops.MatMul():
                self._matmul(op)
            case GatedMatMul():
                gate, up = self._matrices[id(op.gate)], self._matrices[id(op.up)]
                self._multiply(
                    op.x, op.gate.format.name, self._shared(op.out), gate.paired(up, op.kind), False
                )
                self._wrote(op.out, self._shared(op.out))
            case ops.Attend():
                self._attend(op)
            case ops.SelectRows():
                self._where[op.out.name] = self._source(op.x)
            case ops.SoftCap():
                region = self._source(op.x)
                self._list.emit(
                    SOFT_CAP,
                    POINTWISE,
                    [region],
                    [region],
                    OTHER,
                    x=region.address,
                    x_stride=region.stride,
                    width=op.x.width,
                    on_logits_rows=op.x.logits_rows,
                    number=op.cap,
                )
            case _:
                self._lower_rest(op)

    def _apply(self, op: ops.RMSNorm | ops.RoPE) -> None:
        if isinstance(op, ops.RMSNorm):
            self._lower_pointwise(op)
            return
        cos, sin = self._rotation(op)
        self._pointwise(
            ROPE,
            op.x,
            op.x,
            reads=[cos, sin],
            groups=op.heads,
            interleaved=op.interleaved,
            n_angles=len(op.inv_freq),
            cos=cos.address,
            sin=sin.address,
            angle_stride=cos.stride,
            start=op.start,
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
        """out = kernel(x, y), by each thread for itself."""
        source = self._source(x)
        other = y if isinstance(y, Region) else self._source(y) if y else source
        target = self._own(out)
        self._list.emit(
            kernel,
            POINTWISE,
            [source, other, *(reads or [])],
            [target],
            x=source.address,
            x_private=source.private,
            y=other.address,
            y_private=other.private,
            out=target.address,
            out_private=target.private,
            width=x.width,
            every=True,
            **{"groups": 1} | values,
        )
        self._wrote(out, target)

    def _matmul(self, op: ops.MatMul) -> None:
        values: dict[str, Any] = dict(self._matrices[id(op.weight)].fields())
        if op.bias is not None:
            values["bias"] = self._memory.vector(op.bias)
        kind = op.weight.format.name
        if not op.accumulate:
            self._multiply(op.x, kind, self._shared(op.out), values, op.out.logits_rows)
            self._wrote(op.out, self._shared(op.out))
            return
        # Nobody may add to what others still read: the product by itself, and each thread adds it up.
        product = ops.Buffer(f"{op.out.name}, added", op.out.width)
        region = self._memory.rows(product.name, 1, 4 * product.width)
        self._multiply(op.x, kind, region, values, False)
        self._wrote(product, region)
        self._pointwise(ADD, op.out, op.out, product, number=1.0, other_number=1.0)

    def _multiply(
        self, x: ops.Buffer, kind: str, out: Region, values: dict[str, Any], logits_rows: bool
    ) -> None:
        source = self._source(x) if kind in sizes.FLOAT_BYTES else self._quantize(x)
        self._list.emit(
            MATVECS[kind],
            MATMUL,
            [source],
            [out],
            x=source.address,
            x_private=source.private,
            out=out.address,
            out_stride=out.stride,
            on_logits_rows=logits_rows,
            **values,
        )

    def _quantize(self, x: ops.Buffer) -> Region:
        """The row in 8 bits, made once for all that read it."""
        source = self._source(x)
        region = self._memory.private(f"{x.name} in 8 bits", sizes.row_bytes(x.width))
        if x.name not in self._quantized:
            self._list.emit(
                QUANTIZE_ROW,
                QUANTIZE,
                [source],
                [region],
                x=source.address,
                x_private=source.private,
                out=region.address,
                out_private=region.private,
                width=x.width,
            )
            self._quantized.add(x.name)
        return region

    def _attend(self, op: ops.Attend) -> None:
        layout, kind = self._layout, self._layout.cache_type
        prepared, reads = self._preparation(op)
        q = self._source(op.q)
        k, v = (self._source(b) for b in (op.k, op.v)) if op.append else (q, q)
        keys, values = cache(self._memory, op, layout)
        max_tokens = layout.n_pages * layout.page_size
        scratch = self._memory.private(f"attention {op.head_dim}", sizes.attention_scratch_bytes(op.head_dim))
        partials = self._memory.rows(
            f"spans {op.heads} {op.head_dim}", 1, sizes.partials_bytes(op.heads, op.head_dim, max_tokens)
        )
        out = self._own(op.out)
        fields = attention_fields(self._memory, op, keys, values, q=q, k=k, v=v) | prepared
        fields |= {
            "scratch": scratch.address,
            "scratch_stride": scratch.private,
            "partials": partials.address,
            "out": out.address,
            "out_stride": out.private,
            "q_private": q.private,
            "k_private": k.private,
            "v_private": v.private,
        }
        record = ATTENTION
        self._list.emit(
            ATTEND_ONES[kind], record, [q, k, v, *reads], [partials, keys, values], OTHER, **fields
        )
        self._list.emit(MERGE_SPANS, record, [partials], [out], OTHER, **fields)
        self._wrote(op.out, out)

    def _preparation(self, op: ops.Attend) -> tuple[dict[str, Any], list[Region]]:
        """The norm and the rotation of queries and keys as fields of the attention, if it can do them."""
        fields: dict[str, Any] = {}
        reads: list[Region] = []
        waiting = [self._waiting.get(b.name, []) for b in (op.q, op.k)]
        rotations = [[w for w in ws if isinstance(w, ops.RoPE)] for ws in waiting]
        norms = [[w for w in ws if isinstance(w, ops.RMSNorm)] for ws in waiting]
        if not (
            _norm_then_rotation(waiting)
            and _same_rotation(rotations[0], rotations[1])
            and _per_head(norms, op)
        ):
            return fields, reads  # `_source` will emit them
        for prefix, found in zip("qk", norms, strict=True):
            for norm in found:
                fields |= {f"{prefix}_norm": self._memory.vector(norm.weight), "norm_eps": norm.eps}
        if rotations[0]:
            rotation = rotations[0][0]
            cos, sin = self._rotation(rotation)
            reads = [cos, sin]
            fields |= {
                "cos": cos.address,
                "sin": sin.address,
                "n_angles": len(rotation.inv_freq),
                "interleaved": rotation.interleaved,
            }
        for b in (op.q, op.k):
            self._waiting.pop(b.name, None)
        return fields, reads


def _norm_then_rotation(waiting: list[list[ops.RMSNorm | ops.RoPE]]) -> bool:
    kinds = [[type(w) for w in ws] for ws in waiting]
    return all(k in ([], [ops.RMSNorm], [ops.RoPE], [ops.RMSNorm, ops.RoPE]) for k in kinds)


def _same_rotation(q: list[ops.RoPE], k: list[ops.RoPE]) -> bool:
    if not q and not k:
        return True
    if len(q) != len(k):
        return False
    a, b = q[0], k[0]
    return a.interleaved == b.interleaved and turns(a) == turns(b) and a.start == b.start == 0


def _per_head(norms: list[list[ops.RMSNorm]], op: ops.Attend) -> bool:
    """Whether the norms are over each head, with the same epsilon."""
    (q, k) = norms
    eps = {n.eps for n in (*q, *k)}
    heads = all(n.groups == op.heads for n in q) and all(n.groups == op.kv_heads for n in k)
    heads = heads and all(len(n.weight) == op.head_dim for n in (*q, *k))
    return heads and len(eps) <= 1
