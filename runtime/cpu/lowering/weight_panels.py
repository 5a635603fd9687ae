"""Weight matrices repacked into panels, and the MATMUL fields that describe them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....quant.block import BlockFormat, QTensor
from ....quant.errors import UnsupportedModel
from ....quant.formats import FORMATS
from ....quant.jit.levels import LANES
from ... import ops
from ..simd.panels import panel_row_bytes
from .fusing import GATES

AHEAD_BYTES = 128 << 10  # bytes of a thread's weights that are prefetched at most while it waits


@dataclass(frozen=True)
class WeightPanels:
    """The panels of a weight matrix."""

    format: BlockFormat
    shape: tuple[int, ...]  # outputs, inputs
    row_bytes: int  # bytes of the weights of an output in a panel
    address: int

    @classmethod
    def of(cls, weight: QTensor, address: int) -> WeightPanels:
        """The panels of a matrix at an address."""
        return cls(weight.format, weight.shape, panel_row_bytes(weight), address)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel of LANES rows."""
        return LANES * self.row_bytes

    def fields(self) -> dict[str, int]:
        """MATMUL fields of a product with this matrix; a pair of panels is two adjacent panels."""
        return {
            "weights": self.address,
            "n_panels": -(-self.shape[0] // LANES),
            "panel_bytes": self.panel_bytes,
            "pair_stride": 2 * self.panel_bytes,
            "second_offset": self.panel_bytes,
            "n_blocks": self.shape[1] // self.format.block_size,
            "width": self.shape[1],
        }

    def gated_fields(self, up: WeightPanels, kind: str) -> dict[str, int]:
        """MATMUL fields of f(x · thisᵀ) · (x · upᵀ) with activation f = `kind`; a pair is a panel of each."""
        return self.fields() | {
            "pair_stride": self.panel_bytes,
            "second_offset": up.address - self.address,
            "gate": GATES[kind],
        }


@dataclass(frozen=True)
class ExpertPanels:
    """The corresponding matrix of every expert, at equal distances in memory.

    Raises UnsupportedModel if they are not all of one format.
    """

    matrices: tuple[WeightPanels, ...]

    def __post_init__(self) -> None:
        names = sorted({m.format.name for m in self.matrices})
        if len(names) > 1:
            raise UnsupportedModel(f"experts of different formats ({', '.join(names)}) are not supported")

    @property
    def format(self) -> BlockFormat:
        """The block format of all the matrices."""
        return self.matrices[0].format

    @property
    def stride(self) -> int:
        """Bytes from the matrix of one expert to the next; 0 with a single expert."""
        first, second = (self.matrices[i].address for i in (0, min(1, len(self.matrices) - 1)))
        return second - first

    def fields(self) -> dict[str, int]:
        """MATMUL fields of a product with the matrix of an expert."""
        return self.matrices[0].fields() | {"expert_stride": self.stride}

    def pairs_with(self, up: ExpertPanels) -> bool:
        """Whether gate (this) and up can be multiplied by one kernel: same format, same distances."""
        return self.format is up.format and self.stride == up.stride

    def paired_fields(self, up: ExpertPanels) -> dict[str, int]:
        """MATMUL fields of a gated product without the activation; a pair is a panel of each matrix."""
        first, second = self.matrices[0], up.matrices[0]
        return self.fields() | {
            "pair_stride": first.panel_bytes,
            "second_offset": second.address - first.address,
        }


def read_first(fields: Mapping[str, int], n_threads: int) -> np.ndarray:
    """The bounds of two runs that each thread of a gemv reads first of its matrix, int64 [n_threads, 4].

    `fields` are MATMUL fields; zeros for an expert's matrix, which is known only during the step.
    """
    bounds = fields["n_panels"] * np.arange(n_threads + 1, dtype=np.int64) // n_threads
    runs = np.zeros((n_threads, 4), np.int64)
    if "expert" in fields:
        return runs
    gated = bool(fields.get("gate"))
    edges = fields["weights"] + fields["pair_stride" if gated else "panel_bytes"] * bounds
    most = AHEAD_BYTES // (2 if gated else 1)
    runs[:, 0], runs[:, 1] = edges[:-1], np.minimum(edges[:-1] + most, edges[1:])
    if gated:
        runs[:, 2:] = runs[:, :2] + fields["second_offset"]
    return runs


def weight_matrices(program: ops.Program) -> Iterator[tuple[ops.Op, QTensor]]:
    """Every matrix that the program multiplies by, with its op; the experts of an op one after the other."""
    for op in program.ops:
        if isinstance(op, ops.MatMul):
            yield op, op.weight
        elif isinstance(op, ops.MoE):
            lows = [matrix for low in op.lows for matrix in (*low.down, *low.up)]
            yield from ((op, weight) for weight in (*op.gate, *op.up, *op.down, *lows))
        elif isinstance(op, ops.HeadMatMul):
            yield from ((op, weight) for weight in op.weights)


def in_kernel_format(op: ops.Op, weight: QTensor) -> QTensor:
    """The weight in a format that the op's kernels read: quantised weights of HeadMatMul become F16."""
    if not isinstance(op, ops.HeadMatMul) or weight.format.is_float:
        return weight
    halves = weight.dequantize().astype(np.float16)
    return replace(weight, format=FORMATS["F16"], data=halves.view(np.uint8), factors=())
