"""Converts activations for the products: to 16-bit codes for decode, to float16 for prefill."""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    absolute,
    barrier,
    block_x,
    block_y,
    div_f32,
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
)
from ..common.common import begin, store_quantized, warp_maximum, warp_sum
from ..common.pointwise import block_sum

NORMED = WARPGROUPS = PARTS = PDL = 0  # constants of the launch: see the kernels


def quantize(x, x_stride, blocks, weight, out, partials):
    """Quantise x, float32 [rows, 32 · blocks], into `out`, in the layout of `store_quantized`.

    With NORMED x · weight is quantised, and the sum of x² of each block is stored in partials, float32 [rows,
    blocks]: an RMSNorm whose division is left to the epilogue of the product. Grid: (⌈blocks / 4⌉, rows),
    blocks of 128 threads: a warp takes a block of 32 values.
    """
    begin()
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
def store_four_f16(to, i, a, b, c, d):
    """Store columns i … i + 3 of a row as float16, in the order that `convert_to_f16` describes."""
    sub = shift_right(i, 2) & 3
    if WARPGROUPS:  # column 4s + j + 2k of 16 becomes 8j + 2s + k
        to = to + 2 * ((i & -16) + 2 * sub)
        second = to + 16
    else:  # column 32b + 16h + 4s + j + 2k of 128 becomes 32s + 8b + 4h + 2j + k
        to = to + 2 * ((i & -128) + 32 * sub + 8 * (shift_right(i, 5) & 3) + (shift_right(i, 2) & 4))
        second = to + 4
    store_int(to, pack_f16(a, c))
    store_int(second, pack_f16(b, d))


@device
def largest(peak, a, b, c, d):
    """The largest of `peak` and the absolute values of the others."""
    return maximum(peak, maximum(maximum(absolute(a), absolute(b)), maximum(absolute(c), absolute(d))))


@device
def scale_for(peak):
    """The smallest power of two, at least 1, by which the row must be divided to fit float16.

    `peak` is the largest absolute value of this thread.
    """
    peak = warp_maximum(peak)
    if (thread() & 31) == 0:
        store_shared(shared() + 4 * shift_right(thread(), 5), peak)
    barrier()
    peak = warp_maximum(load_shared(shared() + 4 * (thread() & 7)))
    scale = 1.0
    while peak > 32768.0 * scale and scale < 1e30:
        scale = scale * 2.0
    return scale


class ConvertArguments(KernelArguments):
    """Arguments of `convert_to_f16`: x float32 [rows, width], out float16 [rows, width up to a multiple of
    128], scales float32 [rows], weight float32 [width] and eps of the RMSNorm, inverse_width = 1 / width.
    """

    x: Region
    width: int
    out: Region
    scales: int
    weight: int = 0
    inverse_width: float
    eps: float


def convert_to_f16(args: ConvertArguments):
    """out = x / scale as float16, where `scales` gets a power of two for each row so that no value overflows.
    With NORMED x is RMSNorm(x) · weight.

    Grid: (1, rows), blocks of 256 threads. A thread keeps PARTS times 4 columns in registers; with PARTS = 0,
    which excludes NORMED, x is read twice. The columns of each 128 are in the order of pieces (see
    weights/packing.py), of each four the first and third before the others, as 4-bit codes are unpacked; with
    WARPGROUPS, those of each 16 are in the order in which the lanes that hold these pieces pass them to
    `wgmma`. The padding of `out` is not written.
    """
    begin()
    row = args.x.address + block_y() * args.x.stride
    to = args.out.address + block_y() * args.out.stride
    first = 4 * thread()
    peak = 0.0
    if PARTS:
        v = registers((PARTS, 4), 0.0)
        w = registers((PARTS, 4), 0.0)
        for k in static(PARTS):  # all loads are issued before the first use
            if first + 1024 * k < args.width:
                v[k] = load_float4(row + (4 * first + 4096 * k))
                if NORMED:
                    w[k] = load_float4(args.weight + (4 * first + 4096 * k))
        if NORMED:
            squares = 0.0
            for k in static(PARTS):
                for j in static(4):
                    squares = squares + v[k, j] * v[k, j]
            deviation = sqrt(block_sum(squares, shared() + 32) * args.inverse_width + args.eps)
            for k in static(PARTS):
                for j in static(4):
                    v[k, j] = div_f32(v[k, j], deviation) * w[k, j]
        for k in static(PARTS):
            peak = largest(peak, *v[k])
        scale = scale_for(peak)
        inverse = div_f32(1.0, scale)
        for k in static(PARTS):
            if first + 1024 * k < args.width:
                i = first + 1024 * k
                store_four_f16(
                    to, i, v[k, 0] * inverse, v[k, 1] * inverse, v[k, 2] * inverse, v[k, 3] * inverse
                )
    else:
        for i in range(first, args.width, 1024):
            a, b, c, d = load_float4(row + 4 * i)
            peak = largest(peak, a, b, c, d)
        scale = scale_for(peak)
        inverse = div_f32(1.0, scale)
        for i in range(first, args.width, 1024):
            a, b, c, d = load_float4(row + 4 * i)
            store_four_f16(to, i, a * inverse, b * inverse, c * inverse, d * inverse)
    if thread() == 0:
        store_float(args.scales + 4 * block_y(), scale)
