"""Rows out of matrices: embeddings, whatever their format, and the rows whose logits are wanted."""

from __future__ import annotations

from ..ptx import (
    as_float,
    bits_and,
    block_x,
    block_y,
    let_next_start,
    load_float,
    load_int,
    load_stream_short,
    load_weight,
    low_half,
    shift_left,
    shift_right,
    store_float,
    thread,
    to_float,
    wait_for_grid,
)
from ..stage import device, registers, static

LOAD = UNPACK = RAW = HALVES = UNIT = FLOAT = PDL = 0  # constants of the launch


@device
def store_codes(out, word, scale, minimum):
    """Four weights a · code + b."""
    for i in static(4):
        code = (bits_and(shift_right(word, 8 * i), 255) ^ 128) - 128
        store_float(out + 4 * i, to_float(code) * scale + minimum)


def embed(tokens, table, row_bytes, blocks, n_tokens, out, out_stride, scale: float):
    """out[row] = table[tokens[row]] · scale, of a table of blocks; a token beyond it reads row 0.

    Grid: (blocks / 128, rows), of 128 threads that take a block each.
    """
    if PDL:
        let_next_start()
        wait_for_grid()
    block = block_x() * 128 + thread()
    token = load_int(tokens + 4 * block_y())
    if token >= n_tokens:
        token = 0
    if block < blocks:
        raw = registers(RAW)
        words = registers(8)
        raw[()] = LOAD(table + token * row_bytes, blocks, block)
        words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], a, b, c, d = UNPACK(
            *raw[()], block
        )
        to = out + block_y() * out_stride + 128 * block
        scale = scale * (1.0 / UNIT)
        for i in static(4):
            store_codes(to + 16 * i, words[i], a * scale, b * scale)
        for i in static(4, 8):
            store_codes(to + 16 * i, words[i], c * scale, d * scale)


@device
def read_float(address, at):
    """A number of a float matrix."""
    if FLOAT == 32:
        value = load_weight(address + 4 * at)
    elif FLOAT == 16:
        value = low_half(load_stream_short(address + 2 * at))
    else:
        value = as_float(shift_left(load_stream_short(address + 2 * at), 16))
    return value


def embed_floats(tokens, table, row_bytes, width, n_tokens, out, out_stride, scale: float):
    """The same of a table of floats: FLOAT is 32, 16, or 0 for bf16. Grid: (width / 128, rows)."""
    if PDL:
        let_next_start()
        wait_for_grid()
    i = block_x() * 128 + thread()
    token = load_int(tokens + 4 * block_y())
    if token >= n_tokens:
        token = 0
    if i < width:
        store_float(out + block_y() * out_stride + 4 * i, read_float(table + token * row_bytes, i) * scale)


def select_rows(wanted, x, x_stride, out, out_stride, width):
    """out[row] = x[wanted[row]]. Grid: (width / 128, rows)."""
    if PDL:
        let_next_start()
        wait_for_grid()
    i = block_x() * 128 + thread()
    if i < width:
        row = load_int(wanted + 4 * block_y())
        store_float(out + block_y() * out_stride + 4 * i, load_float(x + row * x_stride + 4 * i))
