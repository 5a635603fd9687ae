"""What both lists of instructions are lowered with: sizes, weights in panels, and the fusing of ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...quant.block import QTensor
from ...quant.levels import LANES
from .. import ops
from .memory import Memory, Region
from .records import GELU_TANH, SILU
from .sizes import pool_bytes

GATES = {"silu": SILU, "gelu_tanh": GELU_TANH}  # activations that matrix products can end with


@dataclass(frozen=True)
class Layout:
    """The machine's sizes. `cache_type` is one of `sizes.CACHE_TYPES`."""

    n_pages: int
    page_size: int
    n_threads: int
    max_rows: int
    max_wanted: int
    cache_type: str

    def rows(self, buffer: ops.Buffer) -> int:
        """The most rows that a step can have of a buffer."""
        return self.max_wanted if buffer.wanted else self.max_rows


@dataclass(frozen=True)
class Matrix:
    """A weight and where its panels lie."""

    weight: QTensor
    address: int

    @property
    def panel_bytes(self) -> int:
        return LANES * self.weight.data.shape[1]

    def fields(self) -> dict[str, int]:
        """What `MATMUL` says of a weight by itself."""
        return {
            "weights": self.address,
            "n_panels": -(-self.weight.shape[0] // LANES),
            "panel_bytes": self.panel_bytes,
            "pair_bytes": 2 * self.panel_bytes,
            "other_bytes": self.panel_bytes,
            "n_blocks": self.weight.shape[1] // self.weight.format.block_size,
            "width": self.weight.shape[1],
        }

    def paired(self, other: Matrix, kind: str) -> dict[str, int]:
        """The same for f(this · x) · (other · x): pairs of a panel of each."""
        return self.fields() | {
            "pair_bytes": self.panel_bytes,
            "other_bytes": other.address - self.address,
            "gate": GATES[kind],
        }


@dataclass(frozen=True)
class GatedMatMul:
    """Two products and their activation in one: out = f(gate · x) · (up · x)."""

    x: ops.Buffer
    out: ops.Buffer
    gate: QTensor
    up: QTensor
    kind: str


def fused(program: ops.Program) -> list[ops.Op | GatedMatMul]:
    """The program's ops with gate, up and activation in one where they stand side by side."""
    out: list[ops.Op | GatedMatMul] = []
    rest = list(program.ops)
    while rest:
        match rest:
            case [
                ops.MatMul(x=x, out=gate, weight=a, bias=None, accumulate=False),
                ops.MatMul(x=x2, out=up, weight=b, bias=None, accumulate=False),
                ops.GatedActivation(gate=g, up=u, out=result, kind=kind),
                *tail,
            ] if (
                (x, gate, up) == (x2, g, u) and kind in GATES and a.format is b.format and a.shape == b.shape
            ):
                if not a.format.is_float:
                    out.append(GatedMatMul(x, result, a, b, kind))
                    rest = tail
                    continue
        out.append(rest.pop(0))
    return out


def cache(memory: Memory, op: ops.Attend, layout: Layout) -> tuple[Region, Region]:
    """The layer's pools of keys and values."""
    key_bytes, value_bytes = pool_bytes(layout.cache_type, op.head_dim, layout.page_size)
    pages = layout.n_pages * op.kv_heads
    keys = memory.rows(f"keys {op.layer}", 1, pages * key_bytes)
    return keys, memory.rows(f"values {op.layer}", 1, pages * value_bytes)


def attention_fields(op: ops.Attend, keys: Region, values: Region, **others: Region) -> dict[str, Any]:
    """What `ATTENTION` says of an op and its memory."""
    fields: dict[str, Any] = {
        "keys": keys.address,
        "values": values.address,
        "heads": op.heads,
        "kv_heads": op.kv_heads,
        "head_dim": op.head_dim,
        "window": op.window,
        "scale": op.scale,
        "softcap": op.softcap,
    }
    for name, region in others.items():
        fields |= {name: region.address, f"{name}_stride": region.stride}
    return fields
