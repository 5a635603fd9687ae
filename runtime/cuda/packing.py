"""How weights lie in the card's memory: the bits of the file, sorted so that 32 lanes read 32 blocks side by
side.

Each row keeps its own parts one after the other: the codes of all its blocks of 32 weights, the further bits
of codes that have more than 4 (or 2), the scales, and what 256 weights share. A row is padded to 16 bytes.

    codes of 4 bits   byte j of a block's 16: code j low, code j + 16 high
    codes of 2 bits   byte i of a block's 8: code 8t + i in bits 2t and 2t + 1
    one more bit      bit w of byte i of a block's 4: of code 4w + i
    codes of 8 bits   in order

Q4_K and Q5_K keep the 16 bytes of scales that 256 weights have as they are, Q3_K and IQ4_XS a byte for each
of their 6-bit scales; all others are as large as in the file. `kernels/unpack.py` reads them. Floats stay as
they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...quant.block import QTensor
from ...quant.formats.iq4 import IQ4_NL_BLOCK, IQ4_XS_BLOCK
from ...quant.formats.mxfp4 import MXFP4_BLOCK
from ...quant.formats.packing import bit_fields
from ...quant.formats.q2_k import Q2_K_BLOCK
from ...quant.formats.q3_k import Q3_K_BLOCK
from ...quant.formats.q4_0 import Q4_0_BLOCK, Q4_1_BLOCK
from ...quant.formats.q4_k import Q4_K_BLOCK, Q5_K_BLOCK
from ...quant.formats.q5_0 import Q5_0_BLOCK, Q5_1_BLOCK
from ...quant.formats.q6_k import Q6_K_BLOCK
from ...quant.formats.q8_0 import Q8_0_BLOCK

Parts = list[np.ndarray]

BLOCK = 32  # weights that a lane reads at once
_BYTES = {"Q3_K": (114, 256), "IQ4_XS": (138, 256)}  # bytes and weights, where the file has other ones


def packed_row_bytes(tensor: QTensor) -> int:
    """Bytes from row to row of a matrix on the card."""
    form, width = tensor.format, tensor.shape[1]
    size, weights = _BYTES.get(form.name, (form.type_size, form.block_size))
    return (
        -(-width // weights * size // 16) * 16 if form.is_float else -(-(width // weights * size) // 16) * 16
    )


def packed_bytes(tensor: QTensor) -> int:
    """Bytes of a matrix on the card."""
    return tensor.shape[0] * packed_row_bytes(tensor)


def pack(tensor: QTensor, first: int, out: np.ndarray) -> None:
    """Rows `first` … of a matrix into `out`, uint8 [rows, packed_row_bytes]."""
    n_rows = len(out)
    data = tensor.data[first : first + n_rows]
    if tensor.format.is_float:
        out[:, : data.shape[1]] = data
        return
    blocks = np.ascontiguousarray(data).reshape(n_rows, -1, tensor.format.type_size)
    at = 0
    for part in PARTS[tensor.format.name](blocks):
        flat = part.reshape(n_rows, -1).view(np.uint8)
        out[:, at : at + flat.shape[1]] = flat
        at += flat.shape[1]


def _fields(blocks: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return blocks.view(dtype)[..., 0]


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """uint8 codes [rows, blocks, 32], of which the low 4 bits are taken, as [rows, blocks, 16]."""
    return codes[..., :16] & 15 | codes[..., 16:] << 4


def _pairs(codes: np.ndarray) -> np.ndarray:
    """The low 2 bits of uint8 codes [rows, blocks, 32] as [rows, blocks, 8]."""
    four = codes.reshape(*codes.shape[:-1], 4, 8) & 3
    return four[..., 0, :] | four[..., 1, :] << 2 | four[..., 2, :] << 4 | four[..., 3, :] << 6


def _bits(codes: np.ndarray, bit: int) -> np.ndarray:
    """One bit of uint8 codes [rows, blocks, 32] as [rows, blocks, 4]."""
    words = (codes >> bit & 1).reshape(*codes.shape[:-1], 8, 4)
    return (words << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=-2, dtype=np.uint8)


def _contiguous(*parts: np.ndarray) -> Parts:
    return [np.ascontiguousarray(part) for part in parts]


def _q4_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q4_0_BLOCK)
    return _contiguous(f["qs"], f["d"])


def _q4_1(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q4_1_BLOCK)
    return _contiguous(f["qs"], np.stack([f["d"], f["m"]], axis=-1))


def _five(f: np.ndarray) -> np.ndarray:
    """The fifth bits of Q5_0 and Q5_1, each block's 32 in order, in the order of `_bits`."""
    return _bits(np.unpackbits(np.ascontiguousarray(f["qh"]), axis=-1, bitorder="little"), 0)


def _q5_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_0_BLOCK)
    return _contiguous(f["qs"], _five(f), f["d"])


def _q5_1(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_1_BLOCK)
    return _contiguous(f["qs"], _five(f), np.stack([f["d"], f["m"]], axis=-1))


def _q8_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q8_0_BLOCK)
    return _contiguous(f["q"], f["d"])


def _iq4_nl(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, IQ4_NL_BLOCK)
    return _contiguous(f["qs"], f["d"])


def _mxfp4(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, MXFP4_BLOCK)
    return _contiguous(f["qs"], f["e"])


def _iq4_xs(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, IQ4_XS_BLOCK)
    low = bit_fields(f["scales_l"][..., None], 4).reshape(*f.shape, 8)
    high = f["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    return _contiguous(f["qs"], (low | high << 4).astype(np.uint8), f["d"])


def _q4_k(blocks: np.ndarray) -> Parts:
    codes = bit_fields(_fields(blocks, Q4_K_BLOCK)["qs"], 4).reshape(len(blocks), -1, 32)
    return _contiguous(_nibbles(codes), blocks[..., :16])


def _q5_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_K_BLOCK)
    codes = bit_fields(f["qs"], 4).reshape(len(blocks), -1, 32)
    fifth = bit_fields(f["qh"], 1).reshape(len(blocks), -1, 32)
    return _contiguous(_nibbles(codes), _bits(fifth, 0), blocks[..., :16])


def _q6_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q6_K_BLOCK)
    low = bit_fields(f["ql"], 4).reshape(len(blocks), -1, 32)
    high = bit_fields(f["qh"], 2).reshape(len(blocks), -1, 32)
    return _contiguous(_nibbles(low), _pairs(high), f["scales"], f["d"])


def _q2_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q2_K_BLOCK)
    codes = bit_fields(f["qs"], 2).reshape(len(blocks), -1, 32)
    return _contiguous(_pairs(codes), f["scales"], np.stack([f["d"], f["dmin"]], axis=-1))


def _q3_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q3_K_BLOCK)
    low = bit_fields(f["scales_low"], 4).reshape(*f.shape, 16)
    high = bit_fields(f["scales_high"], 2).reshape(*f.shape, 16)
    codes = bit_fields(f["qs"], 2).reshape(len(blocks), -1, 32)
    third = bit_fields(f["hmask"], 1).reshape(len(blocks), -1, 32)
    return _contiguous(_pairs(codes), _bits(third, 0), low | high << 4, f["d"])


PARTS: dict[str, Callable[[np.ndarray], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
