"""How weights lie in the card's memory: the bits of the file, in the order in which tensor cores take them.

16 rows are a tile, four neighbouring blocks of 32 weights of a row a chunk. Lane 4 · (row % 8) + s of a warp
multiplies eight weights of each block of a chunk, 4s … 4s + 3 and 16 + 4s … 16 + 4s + 3; these 32 are a
*piece*, number 64 · chunk + 4 · (row % 16) + s of its tile, so that what a warp reads together lies together.
In a piece, weight k of the first (h = 0) or second (h = 1) four of block b is number 4 · (2b + h) + k.

Each tile keeps its own parts one after the other: the codes of all pieces, the further bits of codes that
have more than 4 (or 2), the scales of all blocks (that of block s of a chunk at the number of piece s), and
what 256 weights share.

    codes of 4 bits   byte 4b + k of a piece's 16: h = 0 low, h = 1 high
    codes of 2 bits   byte 4h + k of a piece's 8: block b in bits 2b and 2b + 1
    one more bit      bit 2b + h of byte k of a piece's 4
    codes of 8 bits   blocks 0 and 1 of four pieces, 16 bytes each, then blocks 2 and 3

Rows are padded to 16, and blocks to four, with zeros. Q4_K and Q5_K keep the 16 bytes of scales that 256
weights have as they are, Q3_K and IQ4_XS a byte for each of their 6-bit scales; all others are as large as in
the file. `kernels/unpack.py` reads them. Floats stay as they are, a row after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....quant.block import QTensor
from ....quant.formats.iq4 import IQ4_NL_BLOCK, IQ4_XS_BLOCK
from ....quant.formats.mxfp4 import MXFP4_BLOCK
from ....quant.formats.packing import bit_fields
from ....quant.formats.q2_k import Q2_K_BLOCK
from ....quant.formats.q3_k import Q3_K_BLOCK
from ....quant.formats.q4_0 import Q4_0_BLOCK, Q4_1_BLOCK
from ....quant.formats.q4_k import Q4_K_BLOCK, Q5_K_BLOCK
from ....quant.formats.q5_0 import Q5_0_BLOCK, Q5_1_BLOCK
from ....quant.formats.q6_k import Q6_K_BLOCK
from ....quant.formats.q8_0 import Q8_0_BLOCK

Parts = list[np.ndarray]

BLOCK = 32  # weights
CHUNK = 4  # blocks
TILE = 16  # rows
_BYTES = {"Q3_K": (114, 256), "IQ4_XS": (138, 256)}  # bytes and weights, where the file has other ones


def tile_bytes(tensor: QTensor) -> int:
    """Bytes from tile to tile of a matrix on the card, from row to row if it is one of floats."""
    form, width = tensor.format, tensor.shape[1]
    if form.is_float:
        return -(-width * form.type_size // 16) * 16
    size, weights = _BYTES.get(form.name, (form.type_size, form.block_size))
    blocks = -(-width // (CHUNK * BLOCK)) * CHUNK
    return TILE * blocks * BLOCK // weights * size


def packed_bytes(tensor: QTensor) -> int:
    """Bytes of a matrix on the card."""
    rows = tensor.shape[0]
    return (rows if tensor.format.is_float else -(-rows // TILE)) * tile_bytes(tensor)


def pack(tensor: QTensor, first: int, out: np.ndarray) -> None:
    """Rows from `first`, a multiple of 16, on into `out`, uint8 [tiles, or rows of floats, tile_bytes]."""
    if tensor.format.is_float:
        data = tensor.data[first : first + len(out)]
        out[:, : data.shape[1]] = data
        return
    data = tensor.data[first : first + TILE * len(out)]
    form = tensor.format
    blocks = np.ascontiguousarray(data).reshape(len(data), -1, form.type_size)
    per_chunk = max(1, CHUNK * BLOCK // form.block_size)
    n_rows, n_blocks = TILE * len(out), -(-blocks.shape[1] // per_chunk) * per_chunk
    if blocks.shape[:2] != (n_rows, n_blocks):
        padded = np.zeros((n_rows, n_blocks, form.type_size), np.uint8)
        padded[: len(data), : blocks.shape[1]] = blocks
        blocks = padded
    at = 0
    for part in PARTS[form.name](blocks):
        flat = part.reshape(len(out), -1).view(np.uint8)
        out[:, at : at + flat.shape[1]] = flat
        at += flat.shape[1]


def _fields(blocks: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return blocks.view(dtype)[..., 0]


def _per_block(values: np.ndarray) -> np.ndarray:
    """What blocks [rows, blocks, …] have, in the order of pieces: [tiles, chunks, 16, 4, …]."""
    n_rows, n_blocks = values.shape[:2]
    values = values.reshape(n_rows // TILE, TILE, n_blocks // CHUNK, CHUNK, *values.shape[2:])
    return np.ascontiguousarray(values.swapaxes(1, 2))


def _per_run(values: np.ndarray) -> np.ndarray:
    """What 256 weights share, [rows, runs, …], as [tiles, runs, 16, …]."""
    n_rows, *shape = values.shape
    return np.ascontiguousarray(values.reshape(n_rows // TILE, TILE, *shape).swapaxes(1, 2))


def _nibble_bytes(codes: np.ndarray) -> np.ndarray:
    """Bytes [rows, blocks, 16] that have codes j low and j + 16 high, as pieces have them."""
    n_rows, n_blocks, _ = codes.shape
    words = np.ascontiguousarray(codes).view(np.uint32)  # of a block: one of each piece
    words = words.reshape(n_rows // TILE, TILE, n_blocks // CHUNK, CHUNK, 4)
    return np.ascontiguousarray(words.transpose(0, 2, 1, 4, 3))


def _pieces(codes: np.ndarray) -> np.ndarray:
    """Codes [rows, blocks, 32] as [tiles, chunks, 16, s, b, h, k]."""
    n_rows, n_blocks, _ = codes.shape
    return codes.reshape(n_rows // TILE, TILE, n_blocks // CHUNK, CHUNK, 2, 4, 4).transpose(
        0, 2, 1, 5, 3, 4, 6
    )


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """The low 4 bits of uint8 codes [rows, blocks, 32]."""
    return _nibble_bytes(codes[..., :16] & 15 | codes[..., 16:] << 4)


def _pairs(codes: np.ndarray) -> np.ndarray:
    """The low 2 bits of uint8 codes [rows, blocks, 32]."""
    four = _pieces(codes & 3)
    return four[..., 0, :, :] | four[..., 1, :, :] << 2 | four[..., 2, :, :] << 4 | four[..., 3, :, :] << 6


def _bits(codes: np.ndarray, bit: int) -> np.ndarray:
    """One bit of uint8 codes [rows, blocks, 32]."""
    words = _pieces(codes >> bit & 1)
    words = words.reshape(*words.shape[:4], 8, 4)
    return (words << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=-2, dtype=np.uint8)


def _bytes(codes: np.ndarray) -> np.ndarray:
    """8-bit codes [rows, blocks, 32]."""
    n_rows, n_blocks, _ = codes.shape
    words = np.ascontiguousarray(codes).view(np.uint32)
    words = words.reshape(n_rows // TILE, TILE, n_blocks // CHUNK, 2, 2, 2, 4)  # … pair of blocks, b, h, s
    return np.ascontiguousarray(words.transpose(0, 2, 3, 1, 6, 4, 5))


def _q4_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q4_0_BLOCK)
    return [_nibble_bytes(f["qs"]), _per_block(f["d"])]


def _q4_1(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q4_1_BLOCK)
    return [_nibble_bytes(f["qs"]), _per_block(np.stack([f["d"], f["m"]], axis=-1))]


def _five(f: np.ndarray) -> np.ndarray:
    """The fifth bits of Q5_0 and Q5_1, each block's 32 in order."""
    return _bits(np.unpackbits(np.ascontiguousarray(f["qh"]), axis=-1, bitorder="little"), 0)


def _q5_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_0_BLOCK)
    return [_nibble_bytes(f["qs"]), _five(f), _per_block(f["d"])]


def _q5_1(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_1_BLOCK)
    return [_nibble_bytes(f["qs"]), _five(f), _per_block(np.stack([f["d"], f["m"]], axis=-1))]


def _q8_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q8_0_BLOCK)
    return [_bytes(f["q"]), _per_block(f["d"])]


def _iq4_nl(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, IQ4_NL_BLOCK)
    return [_nibble_bytes(f["qs"]), _per_block(f["d"])]


def _mxfp4(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, MXFP4_BLOCK)
    return [_nibble_bytes(f["qs"]), _per_block(f["e"])]


def _iq4_xs(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, IQ4_XS_BLOCK)
    low = bit_fields(f["scales_l"][..., None], 4).reshape(*f.shape, 8)
    high = f["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high << 4).astype(np.uint8).reshape(len(blocks), -1)
    return [_nibble_bytes(f["qs"].reshape(len(blocks), -1, 16)), _per_block(scales), _per_run(f["d"])]


def _q4_k(blocks: np.ndarray) -> Parts:
    codes = bit_fields(_fields(blocks, Q4_K_BLOCK)["qs"], 4).reshape(len(blocks), -1, 32)
    return [_nibbles(codes), _per_run(blocks[..., :16])]


def _q5_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_K_BLOCK)
    codes = bit_fields(f["qs"], 4).reshape(len(blocks), -1, 32)
    fifth = bit_fields(f["qh"], 1).reshape(len(blocks), -1, 32)
    return [_nibbles(codes), _bits(fifth, 0), _per_run(blocks[..., :16])]


def _q6_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q6_K_BLOCK)
    low = bit_fields(f["ql"], 4).reshape(len(blocks), -1, 32)
    high = bit_fields(f["qh"], 2).reshape(len(blocks), -1, 32)
    scales = f["scales"].reshape(len(blocks), -1, 2)
    return [_nibbles(low), _pairs(high), _per_block(scales), _per_run(f["d"])]


def _q2_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q2_K_BLOCK)
    codes = bit_fields(f["qs"], 2).reshape(len(blocks), -1, 32)
    scales = f["scales"].reshape(len(blocks), -1, 2)
    return [_pairs(codes), _per_block(scales), _per_run(np.stack([f["d"], f["dmin"]], axis=-1))]


def _q3_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q3_K_BLOCK)
    low = bit_fields(f["scales_low"], 4).reshape(*f.shape, 16)
    high = bit_fields(f["scales_high"], 2).reshape(*f.shape, 16)
    codes = bit_fields(f["qs"], 2).reshape(len(blocks), -1, 32)
    third = bit_fields(f["hmask"], 1).reshape(len(blocks), -1, 32)
    scales = (low | high << 4).reshape(len(blocks), -1, 2)
    return [_pairs(codes), _bits(third, 0), _per_block(scales), _per_run(f["d"])]


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
