"""Unpacking codes from the words of a checkpoint, and packing them into the blocks of GGUF formats.

Unpacked rows of codes are contiguous uint8 [n, width]. "Low first" means that the first code of a word is in
its lowest bits.
"""

from __future__ import annotations

import numpy as np

from ..lazy_rows import Index, row_numbers

_BLOCKS = {  # the layouts that quant/formats draws, with the 4- or 8-bit codes as 64-bit words
    "Q4_0": np.dtype([("d", "<f2"), ("q", "<u8", 2)]),
    "Q4_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "<u8", 2)]),
    "Q5_0": np.dtype([("d", "<f2"), ("qh", "<u4"), ("q", "<u8", 2)]),
    "Q5_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("q", "<u8", 2)]),
    "Q8_0": np.dtype([("d", "<f2"), ("q", "<u8", 4)]),
    "MXFP4": np.dtype([("d", "u1"), ("q", "<u8", 2)]),
}
_SIGN_BITS = np.uint64(0x8080808080808080)
_FOUR = np.uint64(4)


def unpack_rows(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpack codes that are packed along the inputs, low first: unsigned words [n, k] → uint8 [n, width].

    Codes of 3, 5 or 6 bits may straddle bytes.
    """
    packed = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits == 8:
        return packed
    if bits == 4:
        wide = packed.astype(np.uint16)
        return ((wide | wide << np.uint16(4)) & np.uint16(0x0F0F)).view(np.uint8)
    groups = packed.reshape(len(words), -1, bits).astype(np.uint16)  # of 8 codes
    codes = np.empty((*groups.shape[:2], 8), np.uint8)
    for i in range(8):
        byte, shift = divmod(i * bits, 8)
        window = groups[..., byte]
        if shift + bits > 8:
            window = window | groups[..., byte + 1] << np.uint16(8)
        codes[..., i] = window >> np.uint16(shift) & np.uint16((1 << bits) - 1)
    return codes.reshape(len(words), -1)


def unpack_columns(words: np.ndarray, index: Index, bits: int) -> np.ndarray:
    """Unpack codes at `index` of the last axis, packed low first: 32-bit words [k, words] → uint8 [n, k]."""
    numbers, per_word = row_numbers(index), 32 // bits
    columns = words[:, numbers // per_word].T.view(np.uint32)
    shifts = (numbers % per_word * bits).astype(np.uint32)[:, None]
    return (columns >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)


def look_up(table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The values of a float32 table at uint8 codes, which must not exceed it: bounds are not checked."""
    return table.take(codes, mode="wrap")


def pack_blocks(codes: np.ndarray, form: str, d: np.ndarray, m: np.ndarray | None = None) -> np.ndarray:
    """Pack codes uint8 [n, width] into blocks of format `form`: uint8 [n, row_bytes].

    `d` and `m` are the scales and the minimums [n, width / 32] (MXFP4: uint8 exponents). Codes are unsigned:
    larger than the integer that they stand for by 128 in Q8_0, by 8 in Q4_0, and by 16 in Q5_0.
    """
    n, n_blocks = d.shape
    blocks = np.empty((n, n_blocks), _BLOCKS[form])
    blocks["d"] = d
    if m is not None:
        blocks["m"] = m
    words = codes.view(np.uint64).reshape(n, n_blocks, 4)  # of 8 codes
    if form == "Q8_0":
        for i in range(4):
            blocks["q"][..., i] = words[..., i] ^ _SIGN_BITS
    else:
        if form.startswith("Q5"):
            high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
            blocks["qh"] = high.view("<u4")
            words = words & np.uint64(0x0F0F0F0F0F0F0F0F)
        for i in range(2):  # weights j and j + 16 share a byte
            blocks["q"][..., i] = words[..., i] | words[..., i + 2] << _FOUR
    return blocks.view(np.uint8).reshape(n, -1)
