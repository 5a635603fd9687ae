"""Norms and pointwise ops. All matrices are float32, their rows `…_stride` bytes apart.

Pointwise kernels have the grid (⌈width / 256⌉, rows) and blocks of 256 threads, one for each element.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device
from ...ptx import (
    barrier,
    block_x,
    block_y,
    div_f32,
    div_u32,
    load_constant,
    load_float,
    load_shared,
    shared,
    shift_right,
    sqrt,
    store_float,
    store_shared,
    thread,
)
from .common import activate, begin, gated, sigmoid, tanh, warp_sum

# Constants of the launch. MEAN: LayerNorm, else RMSNorm. BIAS: with a bias. EACH: each group has
# weights of its own. GROUPS: groups of a row. NARROW: the gate has one column.
MEAN = BIAS = EACH = NARROW = PDL = 0
GROUPS = 1


@device
def block_sum(value, at):
    """The sum over the 256 threads of a block, in each of them; `at` is the address of 8 float32 in
    shared memory.
    """
    value = warp_sum(value)
    if (thread() & 31) == 0:
        store_shared(at + 4 * shift_right(thread(), 5), value)
    barrier()
    total = 0.0
    for i in range(8):
        total = total + load_shared(at + 4 * i)
    return total


class NormArguments(KernelArguments):
    """Arguments of `norm`: x and out [rows, width], weight and bias [size], or [GROUPS · size] with EACH.

    A row has GROUPS groups of `size` columns; inverse_size is 1 / size.
    """

    x: Region
    out: Region
    weight: int
    bias: int = 0
    eps: float
    size: int
    inverse_size: float
    width: int


def norm(args: NormArguments):
    """RMSNorm, or LayerNorm with MEAN, of each group of columns; columns behind the last group are copied.

    Grid: (GROUPS, rows), blocks of 256 threads. Shared memory: 64 bytes.
    """
    begin()
    start = block_x() * args.size
    row = args.x.address + block_y() * args.x.stride + 4 * start
    mean = 0.0
    if MEAN:
        total = 0.0
        for i in range(thread(), args.size, 256):
            total = total + load_float(row + 4 * i)
        mean = block_sum(total, shared()) * args.inverse_size
    squares = 0.0
    for i in range(thread(), args.size, 256):
        value = load_float(row + 4 * i) - mean
        squares = squares + value * value
    deviation = sqrt(block_sum(squares, shared() + 32) * args.inverse_size + args.eps)
    to = args.out.address + block_y() * args.out.stride + 4 * start
    first = 0
    if EACH:
        first = start
    for i in range(thread(), args.size, 256):
        value = div_f32(load_float(row + 4 * i) - mean, deviation) * load_constant(
            args.weight + 4 * (first + i)
        )
        if BIAS:
            value = value + load_constant(args.bias + 4 * (first + i))
        store_float(to + 4 * i, value)
    if block_x() == 0:
        for i in range(thread(), args.width, 256):
            at = i + args.size * GROUPS
            if at < args.width:
                store_float(
                    args.out.address + block_y() * args.out.stride + 4 * at,
                    load_float(args.x.address + block_y() * args.x.stride + 4 * at),
                )


class GatedActivationArguments(KernelArguments):
    """Arguments of `gated_activation`: gate, up and out [rows, width]."""

    gate: Region
    up: Region
    out: Region
    width: int
    scale: float


def gated_activation(args: GatedActivationArguments):
    """out = f(scale · gate) · up, with the activation KIND."""
    begin()
    i = block_x() * 256 + thread()
    if i < args.width:
        value = args.scale * load_float(args.gate.address + block_y() * args.gate.stride + 4 * i)
        value = gated(value, load_float(args.up.address + block_y() * args.up.stride + 4 * i))
        store_float(args.out.address + block_y() * args.out.stride + 4 * i, value)


def activation(x, x_stride, out, out_stride, width):
    """out = f(x), with the activation KIND."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        value = activate(load_float(x + block_y() * x_stride + 4 * i))
        store_float(out + block_y() * out_stride + 4 * i, value)


class CopyRestArguments(KernelArguments):
    """Arguments of `copy_rest`: x has parts of `size` columns, out parts of `out_size`; `width` is the number
    of columns that are copied in all.
    """

    x: Region
    size: int
    start: int
    out: Region
    out_size: int
    out_start: int
    width: int


def copy_rest(args: CopyRestArguments):
    """Copy the columns from `start` on of each part of x to the columns from `out_start` on of each
    part of out.
    """
    begin()
    i = block_x() * 256 + thread()
    if i < args.width:
        part = div_u32(i, args.size - args.start)
        column = i - part * (args.size - args.start)
        value = load_float(
            args.x.address + block_y() * args.x.stride + 4 * (part * args.size + args.start + column)
        )
        store_float(
            args.out.address
            + block_y() * args.out.stride
            + 4 * (part * args.out_size + args.out_start + column),
            value,
        )


def sigmoid_gate(gate, gate_stride, x, x_stride, width):
    """x = sigmoid(gate) · x; with NARROW all columns have the same gate."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        at = x + block_y() * x_stride + 4 * i
        column = i
        if NARROW:
            column = 0
        store_float(at, sigmoid(load_float(gate + block_y() * gate_stride + 4 * column)) * load_float(at))


def add(x, x_stride, out, out_stride, width, scale: float, keep: float):
    """out = keep · out + scale · x."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        at = out + block_y() * out_stride + 4 * i
        value = load_float(x + block_y() * x_stride + 4 * i) * scale
        store_float(at, load_float(at) * keep + value)


def soft_cap(x, x_stride, width, cap: float):
    """x = cap · tanh(x / cap)."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        at = x + block_y() * x_stride + 4 * i
        store_float(at, cap * tanh(div_f32(load_float(at), cap)))
