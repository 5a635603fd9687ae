"""Activations for the products: in two digits of 8 bits for few rows (see `common.emit_codes`), as halves for
many.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    absolute,
    barrier,
    block_x,
    block_y,
    div_f32,
    launch_dependents,
    load_constant,
    load_float,
    load_float4,
    load_shared,
    maximum,
    pack_f16,
    shared,
    shift_right,
    sqrt,
    store_float,
    store_int,
    store_shared,
    thread,
    wait_for_grid,
)
from ..common.common import store_quantized, warp_maximum, warp_sum
from ..common.pointwise import block_sum

NORMED = WARPGROUPS = PARTS = PDL = 0  # constants of the launch


def quantize(x, x_stride, blocks, weight, out, partials):
    """x in codes; if NORMED x · weight, and each block's sum of x² into partials[row, block].

    Grid: (blocks / 4, rows), of 128 threads: a warp takes a block of 32.
    """
    if PDL:
        launch_dependents()
        wait_for_grid()
    block = 4 * block_x() + shift_right(thread(), 5)
    if block < blocks:
        i = 32 * block + (thread() & 31)
        value = load_float(x + block_y() * x_stride + 4 * i)
        if NORMED:
            squares = warp_sum(value * value)
            if (thread() & 31) == 0:
                store_float(partials + 4 * (block_y() * blocks + block), squares)
            value = value * load_constant(weight + 4 * i)
        store_quantized(out, blocks, block_y(), i, value)


@device
def store_halves(to, i, a, b, c, d):
    """Columns i … i + 3 of a row of halves, in the order that `convert_to_f16` says."""
    sub = shift_right(i, 2) & 3
    if WARPGROUPS:  # column 4s + 2j + k of 16 becomes 8j + 2s + k
        to = to + 2 * ((i & -16) + 2 * sub)
        second = to + 16
    else:  # column 32b + 16h + 4s of 128 becomes 32s + 8b + 4h
        to = to + 2 * ((i & -128) + 32 * sub + 8 * (shift_right(i, 5) & 3) + (shift_right(i, 2) & 4))
        second = to + 4
    store_int(to, pack_f16(a, b))
    store_int(second, pack_f16(c, d))


@device
def largest(peak, a, b, c, d):
    return maximum(peak, maximum(maximum(absolute(a), absolute(b)), maximum(absolute(c), absolute(d))))


@device
def scale_for(peak):
    """The smallest power of two, at least 1, that brings the block's peak into halves."""
    peak = warp_maximum(peak)
    if (thread() & 31) == 0:
        store_shared(shared() + 4 * shift_right(thread(), 5), peak)
    barrier()
    peak = warp_maximum(load_shared(shared() + 4 * (thread() & 7)))
    scale = 1.0
    while peak > 32768.0 * scale and scale < 1e30:
        scale = scale * 2.0
    return scale


def convert_to_f16(x, x_stride, width, out, out_stride, scales, weight, inverse_width: float, eps: float):
    """x / scale as halves, scale a power of two for each row so that none overflows, and the scales, float32
    [rows]. If NORMED x is RMSNorm(x) · weight.

    Grid: (1, rows), of 256 threads, which hold PARTS times 4 columns each; 0: as many as there are, read
    twice, and not NORMED. Columns are in the order of weights in pieces (see packing.py), 128 at a time, or
    with WARPGROUPS as the lanes that have these pieces hold them for tensor cores, 16 at a time; what is
    behind the width, up to a multiple of 128, stays as it is.
    """
    if PDL:
        launch_dependents()
        wait_for_grid()
    row = x + block_y() * x_stride
    to = out + block_y() * out_stride
    first = 4 * thread()
    peak = 0.0
    if PARTS:
        v = registers((PARTS, 4), 0.0)
        w = registers((PARTS, 4), 0.0)
        for k in static(PARTS):  # all of them at once
            if first + 1024 * k < width:
                v[k] = load_float4(row + (4 * first + 4096 * k))
                if NORMED:
                    w[k] = load_float4(weight + (4 * first + 4096 * k))
        if NORMED:
            squares = 0.0
            for k in static(PARTS):
                for j in static(4):
                    squares = squares + v[k, j] * v[k, j]
            deviation = sqrt(block_sum(squares, shared() + 32) * inverse_width + eps)
            for k in static(PARTS):
                for j in static(4):
                    v[k, j] = div_f32(v[k, j], deviation) * w[k, j]
        for k in static(PARTS):
            peak = largest(peak, *v[k])
        scale = scale_for(peak)
        inverse = div_f32(1.0, scale)
        for k in static(PARTS):
            if first + 1024 * k < width:
                i = first + 1024 * k
                store_halves(
                    to, i, v[k, 0] * inverse, v[k, 1] * inverse, v[k, 2] * inverse, v[k, 3] * inverse
                )
    else:
        for i in range(first, width, 1024):
            a, b, c, d = load_float4(row + 4 * i)
            peak = largest(peak, a, b, c, d)
        scale = scale_for(peak)
        inverse = div_f32(1.0, scale)
        for i in range(first, width, 1024):
            a, b, c, d = load_float4(row + 4 * i)
            store_halves(to, i, a * inverse, b * inverse, c * inverse, d * inverse)
    if thread() == 0:
        store_float(scales + 4 * block_y(), scale)
