"""Activations for the products: in two digits of 8 bits for few rows (see `common.emit_codes`), as halves for
many.
"""

from __future__ import annotations

from ..ptx import (
    absolute,
    barrier,
    block_x,
    block_y,
    let_next_start,
    load_float,
    load_float4,
    load_shared,
    load_weight,
    maximum,
    pack_halves,
    quotient,
    shared,
    shift_right,
    store_float,
    store_int,
    store_shared,
    thread,
    wait_for_grid,
)
from .common import emit_codes, warp_maximum, warp_sum

NORMED = PDL = 0  # constants of the launch


def quantize(x, x_stride, blocks, weight, out, partials):
    """x in codes; if NORMED x · weight, and each block's sum of x² into partials[row, block].

    Grid: (blocks / 4, rows), of 128 threads: a warp takes a block of 32.
    """
    if PDL:
        let_next_start()
        wait_for_grid()
    block = 4 * block_x() + shift_right(thread(), 5)
    if block < blocks:
        i = 32 * block + (thread() & 31)
        value = load_float(x + block_y() * x_stride + 4 * i)
        if NORMED:
            squares = warp_sum(value * value)
            if (thread() & 31) == 0:
                store_float(partials + 4 * (block_y() * blocks + block), squares)
            value = value * load_weight(weight + 4 * i)
        emit_codes(out, blocks, block_y(), i, value)


def to_halves(x, x_stride, width, out, out_stride, scales):
    """x / scale as halves, scale a power of two for each row so that none overflows, and the scales, float32
    [rows].

    Grid: (1, rows), of 256 threads. Columns are in the order of weights in pieces (see packing.py), 128 at a
    time; what is behind the width, up to a multiple of that, stays as it is.
    """
    if PDL:
        let_next_start()
        wait_for_grid()
    row = x + block_y() * x_stride
    peak = 0.0
    for i in range(4 * thread(), width, 1024):
        a, b, c, d = load_float4(row + 4 * i)
        peak = maximum(peak, maximum(maximum(absolute(a), absolute(b)), maximum(absolute(c), absolute(d))))
    peak = warp_maximum(peak)
    if (thread() & 31) == 0:
        store_shared(shared() + 4 * shift_right(thread(), 5), peak)
    barrier()
    peak = warp_maximum(load_shared(shared() + 4 * (thread() & 7)))
    scale = 1.0
    while peak > 32768.0 * scale and scale < 1e30:
        scale = scale * 2.0
    inverse = quotient(1.0, scale)
    for i in range(4 * thread(), width, 1024):
        a, b, c, d = load_float4(row + 4 * i)
        # Column 32b + 16h + 4s of 128 becomes 32s + 8b + 4h.
        place = 32 * (shift_right(i, 2) & 3) + 8 * (shift_right(i, 5) & 3) + (shift_right(i, 2) & 4)
        to = out + block_y() * out_stride + 2 * ((i & -128) + place)
        store_int(to, pack_halves(a * inverse, b * inverse))
        store_int(to + 4, pack_halves(c * inverse, d * inverse))
    if thread() == 0:
        store_float(scales + 4 * block_y(), scale)
