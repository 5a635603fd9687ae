"""Embedding look-ups in matrices of all formats, and the selection of the rows that get logits."""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    as_float,
    bits_and,
    block_x,
    block_y,
    load_constant,
    load_float,
    load_int,
    load_stream_short,
    low_f16,
    shift_left,
    shift_right,
    store_float,
    thread,
    to_float,
)
from .common import begin

LOAD_CODES = UNPACK_CODES = LOAD_SCALES = UNPACK_SCALES = load_float  # see matmul/unpack.py
CODE_WORDS = SCALE_WORDS = UNIT = FLOAT = PDL = 0


@device
def store_weights(out, word, scale, minimum):
    """Store four weights code · scale + minimum, whose codes are the signed bytes of a word."""
    for i in static(4):
        code = (bits_and(shift_right(word, 8 * i), 255) ^ 128) - 128
        store_float(out + 4 * i, to_float(code) * scale + minimum)


def embed(tokens, table, tile_bytes, blocks, n_tokens, out, out_stride, scale: float):
    """out[row] = table[tokens[row]] · scale, float32, of a packed matrix; tokens from `n_tokens` on read row
    0.

    Grid: (⌈blocks / 128⌉, rows), blocks of 128 threads: a thread takes a piece of 32 weights.
    """
    begin()
    at = block_x() * 128 + thread()
    chunk = shift_right(at, 2)
    token = load_int(tokens + 4 * block_y())
    if token >= n_tokens:
        token = 0
    if 4 * chunk < blocks:
        tile = table + shift_right(token, 4) * tile_bytes
        pieces = 64 * ((blocks + 3) // 4)
        first = 64 * chunk + 4 * (token & 15)
        codes = registers(CODE_WORDS)
        codes[()] = LOAD_CODES(tile, pieces, first + (at & 3))
        word = registers(8)
        word[()] = UNPACK_CODES(*codes[()])
        for b in static(4):
            if 4 * chunk + b < blocks:
                factors = registers(SCALE_WORDS)
                factors[()] = LOAD_SCALES(tile, pieces, first + b)
                f = registers(4)
                f[()] = UNPACK_SCALES(*factors[()], first + b)
                for h in static(2):
                    to = out + block_y() * out_stride + 4 * (128 * chunk + 32 * b + 16 * h + 4 * (at & 3))
                    unit = scale * (1.0 / UNIT)
                    store_weights(to, word[2 * b + h], f[2 * h] * unit, f[2 * h + 1] * unit)


@device
def read_float(address, at):
    """Element `at` of a row of a float matrix; FLOAT is 32 for float32, 16 for float16, 0 for bfloat16."""
    if FLOAT == 32:
        value = load_constant(address + 4 * at)
    elif FLOAT == 16:
        value = low_f16(load_stream_short(address + 2 * at))
    else:
        value = as_float(shift_left(load_stream_short(address + 2 * at), 16))
    return value


def embed_floats(tokens, table, row_bytes, width, n_tokens, out, out_stride, scale: float):
    """`embed` for a float matrix. Grid: (⌈width / 128⌉, rows), blocks of 128 threads."""
    begin()
    i = block_x() * 128 + thread()
    token = load_int(tokens + 4 * block_y())
    if token >= n_tokens:
        token = 0
    if i < width:
        store_float(out + block_y() * out_stride + 4 * i, read_float(table + token * row_bytes, i) * scale)


def select_rows(logits_indices, x, x_stride, out, out_stride, width):
    """out[row] = x[logits_indices[row]], float32. Grid: (⌈width / 128⌉, rows), blocks of 128 threads."""
    begin()
    i = block_x() * 128 + thread()
    if i < width:
        row = load_int(logits_indices + 4 * block_y())
        store_float(out + block_y() * out_stride + 4 * i, load_float(x + row * x_stride + 4 * i))
