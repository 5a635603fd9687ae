"""The layout of weights in GPU memory: the bits of the GGUF blocks, ordered as tensor cores take them.

A quantised matrix [rows, columns] is a sequence of *tiles* of 16 rows. Along the columns, four consecutive
blocks of 32 weights are a *chunk*. In the fragments of `mma.sync` (see ptx/tensor.py), lane 4 · (row % 8) + s
of a warp holds eight weights of each block of a chunk: 4s … 4s + 3 and 16 + 4s … 16 + 4s + 3. These 32
weights are a *piece*. Piece 64 · chunk + 4 · (row % 16) + s of a tile is stored at that index, so that the
loads of a warp are contiguous. In a piece, weight k (0 … 3) of the first (h = 0) or second (h = 1) half of
block b has index 4 · (2b + h) + k.

A tile is a structure of arrays, in this order: the low bits of the codes of all pieces; the high bits, for
codes of more than 4 (or 2) bits; the scales of all blocks, where block s of a chunk has the index of piece s;
and the scales that a super-block of 256 weights shares.

    4-bit codes   byte 4b + k of a piece's 16 bytes: h = 0 in the low nibble, h = 1 in the high one
      of Q6_K     the same words, rotated to the left by two bits
      of IQ4_NL, IQ4_XS, MXFP4 and NVFP4, which are looked up in a table: nibble 4h + k of word b, with bits 2
                  and 3 of each code exchanged; -0 of MXFP4 and NVFP4 is stored as 0
    2-bit codes   byte 4h + k of a piece's 8 bytes: block b in bits 2b and 2b + 1
    1 high bit    bit 2b + h of byte k of a piece's 4 bytes
    8-bit codes   blocks 0 and 1 of four pieces, 16 bytes each, then blocks 2 and 3

Rows are padded with zeros to a multiple of 16, and blocks to a multiple of four. Q3_K, Q4_K, Q5_K and IQ4_XS
store each 6-bit scale or minimum in a byte; the other formats take as many bytes as in the file. NVFP4 has
the matrix's factor, a float32, as the scale that each super-block of a row shares.
`kernels/matmul/unpack.py` and `scales.py` read this layout.

Float matrices are stored row by row as they are, each row padded to a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....quant.block import QTensor
from ....quant.formats.iq4 import IQ4_NL_BLOCK, IQ4_XS_BLOCK
from ....quant.formats.mxfp4 import MXFP4_BLOCK
from ....quant.formats.nvfp4 import NVFP4_BLOCK, scale_codes
from ....quant.formats.packing import bit_fields
from ....quant.formats.q2_k import Q2_K_BLOCK
from ....quant.formats.q3_k import Q3_K_BLOCK
from ....quant.formats.q4_0 import Q4_0_BLOCK, Q4_1_BLOCK
from ....quant.formats.q4_k import Q4_K_BLOCK, Q5_K_BLOCK, scales_and_minimums
from ....quant.formats.q5_0 import Q5_0_BLOCK, Q5_1_BLOCK
from ....quant.formats.q6_k import Q6_K_BLOCK
from ....quant.formats.q8_0 import Q8_0_BLOCK

Parts = list[np.ndarray]

BLOCK = 32  # weights
CHUNK = 4  # blocks
TILE = 16  # rows
# Bytes per weights of formats that grow
_BYTES = {"Q3_K": (114, 256), "Q4_K": (148, 256), "Q5_K": (180, 256), "IQ4_XS": (138, 256)}


def tile_bytes(tensor: QTensor) -> int:
    """Bytes of a tile of 16 rows in GPU memory; of one row for a float matrix."""
    form, width = tensor.format, tensor.shape[1]
    if form.is_float:
        return -(-width * form.type_size // 16) * 16
    size, weights = _BYTES.get(form.name, (form.type_size, form.block_size))
    blocks = -(-width // (CHUNK * BLOCK)) * CHUNK
    factors = 4 * _super_blocks(blocks) if form.name == "NVFP4" else 0
    return TILE * (blocks * BLOCK // weights * size + factors)


def _super_blocks(blocks: int) -> int:
    """Super-blocks of 256 weights that rows of so many blocks begin."""
    return -(-blocks * BLOCK // 256)


def packed_bytes(tensor: QTensor) -> int:
    """Bytes of a matrix in GPU memory."""
    rows = tensor.shape[0]
    return (rows if tensor.format.is_float else -(-rows // TILE)) * tile_bytes(tensor)


def pack(tensor: QTensor, first: int, out: np.ndarray) -> None:
    """Write the rows from `first` (a multiple of 16) into `out`, uint8 [tiles, tile_bytes].

    For a float matrix `out` is [rows, tile_bytes]. The padding of the rows of a float matrix is left alone.
    """
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
    if form.name == "NVFP4":
        (factor,) = tensor.factors or (1.0,)
        # Scales are read as fp16, which makes 2^-8 of 1, and codes are doubled.
        out[:, at:].view(np.float32)[:] = np.float32(factor) * np.float32(2**7)


def _fields(blocks: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return blocks.view(dtype)[..., 0]


def _per_block(values: np.ndarray) -> np.ndarray:
    """Values of blocks, [rows, blocks, …], in the order of pieces: [tiles, chunks, 16, 4, …]."""
    n_rows, n_blocks = values.shape[:2]
    values = values.reshape(n_rows // TILE, TILE, n_blocks // CHUNK, CHUNK, *values.shape[2:])
    return np.ascontiguousarray(values.swapaxes(1, 2))


def _per_super_block(values: np.ndarray) -> np.ndarray:
    """Values of super-blocks of 256 weights, [rows, super-blocks, …], as [tiles, super-blocks, 16, …]."""
    n_rows, *shape = values.shape
    return np.ascontiguousarray(values.reshape(n_rows // TILE, TILE, *shape).swapaxes(1, 2))


def _nibble_bytes(codes: np.ndarray) -> np.ndarray:
    """4-bit codes in the order of pieces, of bytes [rows, blocks, 16] with code j in the low nibble of byte j
    and code j + 16 in the high one.
    """
    n_rows, n_blocks, _ = codes.shape
    words = np.ascontiguousarray(codes).view(np.uint32)  # [rows, blocks, 4]: one word for each s
    words = words.reshape(n_rows // TILE, TILE, n_blocks // CHUNK, CHUNK, 4)
    return np.ascontiguousarray(words.transpose(0, 2, 1, 4, 3))


def _pieces(codes: np.ndarray) -> np.ndarray:
    """Codes [rows, blocks, 32] in the order of pieces: [tiles, chunks, 16, s, b, h, k]."""
    n_rows, n_blocks, _ = codes.shape
    return codes.reshape(n_rows // TILE, TILE, n_blocks // CHUNK, CHUNK, 2, 4, 4).transpose(
        0, 2, 1, 5, 3, 4, 6
    )


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """The low 4 bits of uint8 codes [rows, blocks, 32], packed."""
    return _nibble_bytes(codes[..., :16] & 15 | codes[..., 16:] << 4)


def _codebook_nibbles(codes: np.ndarray) -> np.ndarray:
    """Indices into a codebook in the order of pieces, of bytes [rows, blocks, 16] as `_nibble_bytes` takes
    them.

    The four codes of a word's first half are its low nibbles, those of the second half its high ones; bits 2
    and 3 are exchanged.
    """
    swapped = codes & 0x33 | (codes & 0x44) << 1 | (codes & 0x88) >> 1
    fours = np.stack([swapped & 15, swapped >> 4], axis=-2)  # [rows, blocks, h, 16]
    fours = fours.reshape(*codes.shape[:2], 2, 4, 2, 2)  # … s, pair of k, k % 2
    joined = fours[..., 0] | fours[..., 1] << 4
    return _nibble_bytes(joined.swapaxes(2, 3).reshape(codes.shape))


def _pairs(codes: np.ndarray) -> np.ndarray:
    """The low 2 bits of uint8 codes [rows, blocks, 32], packed."""
    low = _pieces(codes & 3)
    return low[..., 0, :, :] | low[..., 1, :, :] << 2 | low[..., 2, :, :] << 4 | low[..., 3, :, :] << 6


def _bits(codes: np.ndarray, bit: int) -> np.ndarray:
    """Bit `bit` of uint8 codes [rows, blocks, 32], packed."""
    words = _pieces(codes >> bit & 1)
    words = words.reshape(*words.shape[:4], 8, 4)
    return (words << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=-2, dtype=np.uint8)


def _bytes(codes: np.ndarray) -> np.ndarray:
    """8-bit codes [rows, blocks, 32], in the order of pieces."""
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


def _fifth_bits(f: np.ndarray) -> np.ndarray:
    """The fifth bits of the codes of Q5_0 and Q5_1, packed."""
    return _bits(np.unpackbits(np.ascontiguousarray(f["qh"]), axis=-1, bitorder="little"), 0)


def _q5_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_0_BLOCK)
    return [_nibble_bytes(f["qs"]), _fifth_bits(f), _per_block(f["d"])]


def _q5_1(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_1_BLOCK)
    return [_nibble_bytes(f["qs"]), _fifth_bits(f), _per_block(np.stack([f["d"], f["m"]], axis=-1))]


def _q8_0(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q8_0_BLOCK)
    return [_bytes(f["q"]), _per_block(f["d"])]


def _iq4_nl(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, IQ4_NL_BLOCK)
    return [_codebook_nibbles(f["qs"]), _per_block(f["d"])]


def _mxfp4(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, MXFP4_BLOCK)
    low, high = f["qs"] & 0x0F, f["qs"] & 0xF0
    codes = np.where(low == 0x08, 0, low) | np.where(high == 0x80, 0, high)  # -0 is 0
    return [_codebook_nibbles(codes.astype(np.uint8)), _per_block(f["e"])]


def _nvfp4(blocks: np.ndarray) -> Parts:
    """A sub-block has its codes j and j + 8 in byte j; `_codebook_nibbles` takes codes j of two in a byte."""
    f = _fields(blocks, NVFP4_BLOCK)
    low, high = f["qs"] & 0x0F, f["qs"] >> 4  # [rows, blocks of 64, 4, 8]
    codes = np.stack([low, high], axis=-2).reshape(len(blocks), -1, 2, 16)  # … block of 32, half, weight
    codes = np.where(codes == 0x08, 0, codes).astype(np.uint8)  # -0 is 0
    scales = scale_codes(f["d"]).reshape(len(blocks), -1, 2)
    return [_codebook_nibbles(codes[..., 0, :] | codes[..., 1, :] << 4), _per_block(scales)]


def _iq4_xs(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, IQ4_XS_BLOCK)
    low = bit_fields(f["scales_l"][..., None], 4).reshape(*f.shape, 8)
    high = f["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high << 4).astype(np.uint8).reshape(len(blocks), -1)
    codes = f["qs"].reshape(len(blocks), -1, 16)
    return [_codebook_nibbles(codes), _per_block(scales), _per_super_block(f["d"])]


def _scales_and_minimums(f: np.ndarray) -> Parts:
    """The scales and minimums of blocks of Q4_K and Q5_K, a byte each, and d and dmin of super-blocks."""
    scales, minimums = scales_and_minimums(f["scales"].reshape(-1, 3, 4))
    both = np.stack([scales, minimums], axis=-1).reshape(len(f), -1, 2)
    return [_per_block(both), _per_super_block(np.stack([f["d"], f["dmin"]], axis=-1))]


def _q4_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q4_K_BLOCK)
    codes = bit_fields(f["qs"], 4).reshape(len(blocks), -1, 32)
    return [_nibbles(codes), *_scales_and_minimums(f)]


def _q5_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q5_K_BLOCK)
    codes = bit_fields(f["qs"], 4).reshape(len(blocks), -1, 32)
    fifth = bit_fields(f["qh"], 1).reshape(len(blocks), -1, 32)
    return [_nibbles(codes), _bits(fifth, 0), *_scales_and_minimums(f)]


def _q6_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q6_K_BLOCK)
    low = bit_fields(f["ql"], 4).reshape(len(blocks), -1, 32)
    high = bit_fields(f["qh"], 2).reshape(len(blocks), -1, 32)
    scales = f["scales"].reshape(len(blocks), -1, 2)
    words = _nibbles(low).view(np.uint32)
    rotated = words << np.uint32(2) | words >> np.uint32(30)
    return [rotated, _pairs(high), _per_block(scales), _per_super_block(f["d"])]


def _q2_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q2_K_BLOCK)
    codes = bit_fields(f["qs"], 2).reshape(len(blocks), -1, 32)
    scales = f["scales"].reshape(len(blocks), -1, 2)
    return [_pairs(codes), _per_block(scales), _per_super_block(np.stack([f["d"], f["dmin"]], axis=-1))]


def _q3_k(blocks: np.ndarray) -> Parts:
    f = _fields(blocks, Q3_K_BLOCK)
    low = bit_fields(f["scales_low"], 4).reshape(*f.shape, 16)
    high = bit_fields(f["scales_high"], 2).reshape(*f.shape, 16)
    codes = bit_fields(f["qs"], 2).reshape(len(blocks), -1, 32)
    third = bit_fields(f["hmask"], 1).reshape(len(blocks), -1, 32)
    scales = (low | high << 4).reshape(len(blocks), -1, 2)
    return [_pairs(codes), _bits(third, 0), _per_block(scales), _per_super_block(f["d"])]


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
    "NVFP4": _nvfp4,
}
