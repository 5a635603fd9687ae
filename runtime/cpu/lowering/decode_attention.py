"""Lowering of attention in decode: split-KV, with norm and RoPE of queries and keys fused into it."""

from __future__ import annotations

from typing import Any

from ... import ops
from ..abi import sizes
from ..abi.records import ATTENTION
from ..arena import Region
from ..kernels import DECODE_ATTENTIONS, MERGE_SPLITS
from .attention_record import attention_fields, kv_pools
from .base import angle_key
from .moe import DecodeMoELowering

Deferred = ops.RMSNorm | ops.RoPE


class DecodeAttentionLowering(DecodeMoELowering):
    """Lowers Attend, and defers in-place norms and RoPE so that the attention kernel may do them.

    An op that reads the buffer before an attention does makes `_input` append the deferred ops.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deferred: dict[str, list[Deferred]] = {}  # by the name of the buffer that they change

    def _attend(self, op: ops.Attend) -> None:
        """Append DECODE_ATTENTIONS and MERGE_SPLITS."""
        config = self._config
        fused, reads = self._fuse_deferred(op)
        q = self._input(op.q)
        k, v = (self._input(b) for b in (op.k, op.v)) if op.append else (q, q)
        keys, values = kv_pools(self._arena, op, config)
        scratch_bytes = sizes.attention_scratch_bytes(op.head_dim)
        scratch = self._arena.per_thread(f"attention {op.head_dim}", scratch_bytes)
        partials_bytes = sizes.partials_bytes(op.heads, op.head_dim, config.n_pages * config.page_size)
        partials = self._arena.rows(f"splits {op.heads} {op.head_dim}", 1, partials_bytes)
        out = self._per_thread(op.out)
        fields = attention_fields(self._arena, self._config, op, keys, values, q=q, k=k, v=v) | fused
        fields |= {
            "scratch": scratch.address,
            "scratch_stride": scratch.thread_stride,
            "partials": partials.address,
            "out": out.address,
            "out_stride": out.thread_stride,
            "q_thread_stride": q.thread_stride,
            "k_thread_stride": k.thread_stride,
            "v_thread_stride": v.thread_stride,
        }
        kernel = DECODE_ATTENTIONS[config.cache_type]
        self._list.append(kernel, ATTENTION, [q, k, v, *reads], [partials, keys, values], **fields)
        self._list.append(MERGE_SPLITS, ATTENTION, [partials], [out], **fields)
        self._set_location(op.out, out)

    def _fuse_deferred(self, op: ops.Attend) -> tuple[dict[str, Any], list[Region]]:
        """ATTENTION fields of the deferred norms and RoPE of q and k, and the regions that they read.

        Empty if the attention kernel cannot do them: then `_input` appends them.
        """
        fields: dict[str, Any] = {}
        reads: list[Region] = []
        deferred = [self._deferred.get(b.name, []) for b in (op.q, op.k)]
        ropes = [[d for d in ds if isinstance(d, ops.RoPE)] for ds in deferred]
        norms = [[d for d in ds if isinstance(d, ops.RMSNorm)] for ds in deferred]
        if not (_norm_then_rope(deferred) and _same_rope(ropes[0], ropes[1]) and _norms_of_heads(norms, op)):
            return fields, reads
        for prefix, norms_of_one in zip("qk", norms, strict=True):
            for norm in norms_of_one:
                fields |= {f"{prefix}_norm": self._arena.vector(norm.weight), "norm_eps": norm.eps}
        if ropes[0]:
            rope = ropes[0][0]
            cos, sin = reads = list(self._rope_angles(rope))
            fields |= {"cos": cos.address, "sin": sin.address}
            fields |= {"n_angles": len(rope.inv_freq), "interleaved": rope.interleaved}
        for b in (op.q, op.k):
            self._deferred.pop(b.name, None)
        return fields, reads


def _norm_then_rope(deferred: list[list[Deferred]]) -> bool:
    """Whether the ops of q and those of k are a norm at most, then RoPE at most."""
    kinds = [[type(d) for d in ds] for ds in deferred]
    return all(k in ([], [ops.RMSNorm], [ops.RoPE], [ops.RMSNorm, ops.RoPE]) for k in kinds)


def _same_rope(q: list[ops.RoPE], k: list[ops.RoPE]) -> bool:
    """Whether q and k are rotated by the same angles from their first dimension on, or neither is rotated."""
    if not q and not k:
        return True
    if len(q) != len(k):
        return False
    a, b = q[0], k[0]
    return a.interleaved == b.interleaved and angle_key(a) == angle_key(b) and a.start == b.start == 0


def _norms_of_heads(norms: list[list[ops.RMSNorm]], op: ops.Attend) -> bool:
    """Whether the norms of q and k are over each head, with the same epsilon."""
    (q, k) = norms
    eps = {n.eps for n in (*q, *k)}
    heads = all(n.groups == op.heads for n in q) and all(n.groups == op.kv_heads for n in k)
    heads = heads and all(len(n.weight) == op.head_dim for n in (*q, *k))
    return heads and len(eps) <= 1
