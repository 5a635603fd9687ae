"""Row-interleaved weights: the layout of weight matrices that the CPU kernels read.

`lanes` rows of a matrix make a *panel*. A block's bytes fall into *planes* (scales, low bits, high bits …) of
1-, 2- or 4-byte elements; a panel stores block after block, in each of them plane after plane, element after
element, and for each element the `lanes` rows side by side::

    panel[block][plane][element][row]

so that one vector load brings the same element of every row. Products read a panel from its beginning to its
end, which is what the prefetchers of processors learn: with planes of whole panels, scales far from their
codes, one core of a Zen 4 read at half of that speed (docs/performance.md). Codes and scales keep their bits,
so that nothing is lost, and the matrix keeps its size except for rows of zeros that fill up the last panel,
and for the factors of NVFP4, which follow the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....quant.block import BlockFormat, QTensor
from ....quant.formats.nvfp4 import E4M3, NVFP4_BLOCK, scale_codes
from ....quant.jit.kernel import CpuKernel


@dataclass(frozen=True)
class Plane:
    """`count` elements of `size` bytes at byte `offset` of a block."""

    offset: int
    size: int
    count: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the plane in a block."""
        return self.size * self.count


PLANES: dict[str, tuple[Plane, ...]] = {
    "F32": (Plane(0, 4, 1),),
    "F16": (Plane(0, 2, 1),),
    "BF16": (Plane(0, 2, 1),),
    "Q8_0": (Plane(0, 2, 1), Plane(2, 4, 8)),  # d, qs
    "Q4_0": (Plane(0, 2, 1), Plane(2, 4, 4)),  # d, qs
    "Q4_1": (Plane(0, 2, 2), Plane(4, 4, 4)),  # d m, qs
    "Q5_0": (Plane(0, 2, 1), Plane(2, 4, 1), Plane(6, 4, 4)),  # d, qh, qs
    "Q5_1": (Plane(0, 2, 2), Plane(4, 4, 1), Plane(8, 4, 4)),  # d m, qh, qs
    "Q2_K": (Plane(80, 2, 2), Plane(0, 4, 4), Plane(16, 4, 16)),  # d dmin, scales, qs
    "Q3_K": (Plane(108, 2, 1), Plane(96, 4, 3), Plane(0, 4, 8), Plane(32, 4, 16)),  # d, scales, hmask, qs
    "Q4_K": (Plane(0, 2, 2), Plane(4, 4, 3), Plane(16, 4, 32)),  # d dmin, scales, qs
    "Q5_K": (Plane(0, 2, 2), Plane(4, 4, 3), Plane(16, 4, 8), Plane(48, 4, 32)),  # d dmin, scales, qh, qs
    # d, scales, qh and ql of the first 128 weights, qh and ql of the others
    "Q6_K": (
        *(Plane(208, 2, 1), Plane(192, 4, 4)),
        *(Plane(128, 4, 8), Plane(0, 4, 16), Plane(160, 4, 8), Plane(64, 4, 16)),
    ),
    "IQ4_NL": (Plane(0, 2, 1), Plane(2, 4, 4)),  # d, qs
    "IQ4_XS": (Plane(0, 2, 2), Plane(4, 4, 1), Plane(8, 4, 32)),  # d scales_h, scales_l, qs
    "MXFP4": (Plane(0, 1, 1), Plane(1, 4, 4)),  # e, qs
    "NVFP4": (Plane(0, 1, 4), Plane(4, 4, 8)),  # d, qs
}
# Formats whose panels have a float32 for each row behind the blocks: `stored_factor` of the matrix.
WITH_FACTOR = frozenset({"NVFP4"})

# The scales of NVFP4 in panels, by those in the file: 3 bits of mantissa, 5 of an exponent with bias 10, so
# that none is subnormal, which would take processors a hundred cycles.
_FRACTIONS, _EXPONENTS = np.frexp(E4M3[scale_codes(np.arange(256))])
NORMAL_SCALES = np.where(_FRACTIONS > 0, (_EXPONENTS + 9) * 8 + _FRACTIONS * 16 - 8, 0).astype(np.uint8)

# Argument record of GATHER_ROWS, int64 fields.
_GATHER_FIELDS = (
    "data",  # uint8 [n_panels · lanes, row_bytes], the rows as in the file
    "row_bytes",
    "panel_bytes",
    "n_panels",
    "lanes",  # rows of a panel
    "n_blocks",  # blocks a row
    "type_size",  # bytes of a block
    "out",  # uint8 [n_panels, panel_bytes]
    "planes",  # PLANE [n_planes]
    "n_planes",
)
GATHER = np.dtype([(name, np.int64) for name in _GATHER_FIELDS])
PLANE = np.dtype([(name, np.int64) for name in ("offset", "size", "count", "regroup")])
GATHER_ROWS = CpuKernel(f"{__package__}.repack", "gather_rows")

HIGH_BITS_PLANE = {"Q5_0": 1, "Q5_1": 1}  # planes whose bits are regrouped, see `regroup_high_bits`


def panel_row_bytes(tensor: QTensor) -> int:
    """Bytes of a row of the matrix in a panel."""
    return int(tensor.data.shape[1]) + (4 if tensor.format.name in WITH_FACTOR else 0)


def repacked_bytes(tensor: QTensor, lanes: int) -> int:
    """Bytes of the matrix in panels of `lanes` rows, the last panel filled up."""
    return -(-tensor.data.shape[0] // lanes) * lanes * panel_row_bytes(tensor)


def stored_factor(tensor: QTensor) -> np.float32:
    """What an NVFP4 matrix is multiplied by, times what makes a scale of the bits in `NORMAL_SCALES`.

    Shifted by 20, to the mantissa and the exponent of a float32, they are the scale times 2^-117. Codes are
    doubled.
    """
    (factor,) = tensor.factors or (1.0,)
    return np.float32(np.ldexp(np.float32(factor), 116))


def repack(tensor: QTensor, lanes: int, out: np.ndarray | None = None) -> np.ndarray:
    """The matrix in panels of `lanes` (4, 8, 16) rows: uint8 [panels, bytes per panel], 64-byte aligned.

    Writes to `out`, contiguous uint8 [repacked_bytes], if given. The GIL is released meanwhile, and other
    threads may repack other rows.
    """
    rows, row_bytes = tensor.data.shape
    if out is None:
        out = aligned_empty(repacked_bytes(tensor, lanes))
    out = out.reshape(-1, lanes * panel_row_bytes(tensor))
    data = np.ascontiguousarray(tensor.data)
    whole = rows // lanes
    _gather(GATHER_ROWS.compiled.ctypes, tensor.format, data[: whole * lanes], lanes, out[:whole])
    if whole < len(out):
        last = np.zeros((lanes, row_bytes), np.uint8)
        last[: rows - whole * lanes] = data[whole * lanes :]
        _gather(GATHER_ROWS.compiled.ctypes, tensor.format, last, lanes, out[whole:])
    if tensor.format.name in WITH_FACTOR:
        blocks = out[:, : lanes * row_bytes].reshape(len(out), -1, lanes * NVFP4_BLOCK.itemsize)
        scales = blocks[:, :, : 4 * lanes]
        scales[:] = NORMAL_SCALES[scales]
        out[:, lanes * row_bytes :].view(np.float32)[:] = stored_factor(tensor)
    return out


def _gather(
    gather_rows: Callable[[int, int, int], None],
    kind: BlockFormat,
    data: np.ndarray,
    lanes: int,
    out: np.ndarray,
) -> None:
    """Call GATHER_ROWS for `data`, uint8 [panels · lanes, row bytes] of a block format, into whole panels."""
    n_blocks, type_size = data.shape[1] // kind.type_size, kind.type_size
    regrouped = HIGH_BITS_PLANE.get(kind.name)
    planes = np.array(
        [(p.offset, p.size, p.count, i == regrouped) for i, p in enumerate(PLANES[kind.name])], PLANE
    )
    if len(planes) == 1:  # same layout as if a row were one large block
        planes["count"] *= n_blocks
        n_blocks, type_size = 1, data.shape[1]
    arguments = np.zeros(1, GATHER)
    arguments["data"], arguments["row_bytes"], arguments["out"] = (
        data.ctypes.data,
        data.shape[1],
        out.ctypes.data,
    )
    arguments["n_panels"], arguments["lanes"], arguments["panel_bytes"] = len(out), lanes, out.shape[1]
    arguments["n_blocks"], arguments["type_size"] = n_blocks, type_size
    arguments["planes"], arguments["n_planes"] = planes.ctypes.data, len(planes)
    gather_rows(arguments.ctypes.data, 0, 0)


def regroup_high_bits(words: np.ndarray) -> np.ndarray:
    """Move bit 4j + b, the fifth bit of weight 4j + b, to 8b + j: `>> j & 0x01010101` is then word j's."""
    byte = np.arange(256, dtype=np.uint32)
    table = np.zeros(256, np.uint32)
    for b in range(4):
        table |= (byte >> b & 1) << 8 * b | (byte >> (4 + b) & 1) << (8 * b + 1)
    out = np.zeros_like(words)
    for i in range(4):
        out |= table[words >> 8 * i & 0xFF] << np.uint32(2 * i)
    return out


def aligned_empty(n_bytes: int, alignment: int = 64) -> np.ndarray:
    """uint8 [n_bytes] whose address is a multiple of `alignment`."""
    raw = np.empty(n_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + n_bytes]
