"""What both lists of instructions are lowered with: sizes, weights in panels, and the fusing of ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....quant.block import BlockFormat, QTensor
from ....quant.formats import FORMATS
from ....quant.jit.levels import LANES
from ... import ops
from ...config.fields import UnsupportedModel
from ...ops.fused import GATED_OPS, GatedMatMul, gated
from ..abi.records import GELU_TANH, IDENTITY, RELU2, SILU, TANH
from ..abi.sizes import pool_bytes
from ..arena import Memory, Region

GATES = {"silu": SILU, "gelu_tanh": GELU_TANH}  # activations that matrix products can end with
ACTIVATIONS = GATES | {"relu2": RELU2, "identity": IDENTITY, "tanh": TANH}


@dataclass(frozen=True)
class Layout:
    """The machine's sizes. `cache_type` is one of `sizes.CACHE_TYPES`."""

    n_pages: int
    page_size: int
    n_threads: int
    max_rows: int
    max_logits: int
    cache_type: str
    states: tuple[np.ndarray, ...] = ()  # of recurrent ops, float32 [sequences, …] each

    def rows(self, buffer: ops.Buffer) -> int:
        """The most rows that a step can have of a buffer."""
        return self.max_logits if buffer.logits_rows else self.max_rows


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
class Experts:
    """The same matrix of each expert, their panels at equal distances.

    UnsupportedModel if they are not all of one format.
    """

    matrices: tuple[Matrix, ...]

    def __post_init__(self) -> None:
        names = sorted({m.weight.format.name for m in self.matrices})
        if len(names) > 1:
            raise UnsupportedModel(f"experts of different formats ({', '.join(names)}) are not supported")

    @property
    def format(self) -> BlockFormat:
        return self.matrices[0].weight.format

    @property
    def distance(self) -> int:
        """Bytes from one to the next."""
        first, second = (self.matrices[i].address for i in (0, min(1, len(self.matrices) - 1)))
        return second - first

    def fields(self) -> dict[str, int]:
        """As `Matrix.fields`."""
        return self.matrices[0].fields() | {"expert_bytes": self.distance}

    def fits(self, other: Experts) -> bool:
        """Whether `paired` can be asked for."""
        return self.format is other.format and self.distance == other.distance

    def paired(self, other: Experts) -> dict[str, int]:
        """The same for pairs of a panel of each."""
        first, second = self.matrices[0], other.matrices[0]
        return self.fields() | {
            "pair_bytes": first.panel_bytes,
            "other_bytes": second.address - first.address,
        }


def matrices_of(program: ops.Program) -> Iterator[tuple[ops.Op, QTensor]]:
    """Every weight matrix of the program's products with its op, experts' side by side."""
    for op in program.ops:
        if isinstance(op, ops.MatMul):
            yield op, op.weight
        elif isinstance(op, ops.MoE):
            yield from ((op, weight) for weight in (*op.gate, *op.up, *op.down))
        elif isinstance(op, ops.HeadMatMul):
            yield from ((op, weight) for weight in op.weights)


def for_kernels(op: ops.Op, weight: QTensor) -> QTensor:
    """The weight as the op's kernels take it: those of products head by head read floats only."""
    if not isinstance(op, ops.HeadMatMul) or weight.format.is_float:
        return weight
    halves = weight.dequantize().astype(np.float16)
    return replace(weight, format=FORMATS["F16"], data=halves.view(np.uint8))


def fused(program: ops.Program) -> list[ops.Op | GatedMatMul]:
    """The program's ops with gate, up and activation in one where they stand side by side."""
    out: list[ops.Op | GatedMatMul] = []
    rest = list(program.ops)
    while rest:
        if found := gated(rest, GATES):
            out.append(found)
            del rest[:GATED_OPS]
        else:
            out.append(rest.pop(0))
    return out


def cache(memory: Memory, op: ops.Attend, layout: Layout) -> tuple[Region, Region]:
    """The layer's pools of keys and values."""
    key_bytes, value_bytes = pool_bytes(layout.cache_type, op.head_dim, layout.page_size)
    pages = layout.n_pages * op.kv_heads
    keys = memory.rows(f"keys {op.layer}", 1, pages * key_bytes)
    return keys, memory.rows(f"values {op.layer}", 1, pages * value_bytes)


def attention_fields(
    memory: Memory, op: ops.Attend, keys: Region, values: Region, **others: Region
) -> dict[str, Any]:
    """What `ATTENTION` says of an op and its memory."""
    if op.value_dim > op.head_dim:
        raise UnsupportedModel(f"values of {op.value_dim} dimensions and keys of only {op.head_dim}")
    fields: dict[str, Any] = {
        "keys": keys.address,
        "values": values.address,
        "heads": op.heads,
        "kv_heads": op.kv_heads,
        "head_dim": op.head_dim,
        "value_step": op.head_dim if op.v is op.k else op.value_dim,
        "value_dim": op.value_dim,
        "append": op.append,
        "window": op.window,
        "scale": op.scale,
        "softcap": op.softcap,
    }
    if op.sinks is not None:  # the kernels' scores are powers of two
        fields["sinks"] = memory.vector(op.sinks * np.float32(np.log2(np.e)))
    for name, region in others.items():
        fields |= {name: region.address, f"{name}_stride": region.stride}
    return fields
