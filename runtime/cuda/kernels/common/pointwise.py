"""Ops that look at a row, or an element, at a time. Rows are float32, `…_stride` bytes apart."""

from __future__ import annotations

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

MEAN = BIAS = EACH = NARROW = PDL = 0  # constants of the launch


@device
def block_sum(value, at):
    """The sum over 256 threads; `at`: 8 float32 of shared memory."""
    value = warp_sum(value)
    if (thread() & 31) == 0:
        store_shared(at + 4 * shift_right(thread(), 5), value)
    barrier()
    total = 0.0
    for i in range(8):
        total = total + load_shared(at + 4 * i)
    return total


def norm(x, x_stride, out, out_stride, weight, bias, eps: float, size, inverse_size: float, width):
    """RMSNorm, or LayerNorm if MEAN, of each part of `size` columns; EACH: parts have weights of their own.

    Grid: (parts, rows), of 256 threads. What is behind the last part is copied.
    """
    begin()
    start = block_x() * size
    row = x + block_y() * x_stride + 4 * start
    mean = 0.0
    if MEAN:
        total = 0.0
        for i in range(thread(), size, 256):
            total = total + load_float(row + 4 * i)
        mean = block_sum(total, shared()) * inverse_size
    squares = 0.0
    for i in range(thread(), size, 256):
        value = load_float(row + 4 * i) - mean
        squares = squares + value * value
    deviation = sqrt(block_sum(squares, shared() + 32) * inverse_size + eps)
    to = out + block_y() * out_stride + 4 * start
    first = 0
    if EACH:
        first = start
    for i in range(thread(), size, 256):
        value = div_f32(load_float(row + 4 * i) - mean, deviation) * load_constant(weight + 4 * (first + i))
        if BIAS:
            value = value + load_constant(bias + 4 * (first + i))
        store_float(to + 4 * i, value)
    if block_x() == 0:
        for i in range(thread(), width, 256):
            at = i + size * GROUPS
            if at < width:
                store_float(
                    out + block_y() * out_stride + 4 * at, load_float(x + block_y() * x_stride + 4 * at)
                )


GROUPS = 1  # parts, another constant


def gated_activation(gate, gate_stride, up, up_stride, out, out_stride, width, scale: float):
    """out = f(scale · gate) · up. Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        value = scale * load_float(gate + block_y() * gate_stride + 4 * i)
        value = gated(value, load_float(up + block_y() * up_stride + 4 * i))
        store_float(out + block_y() * out_stride + 4 * i, value)


def activation(x, x_stride, out, out_stride, width):
    """out = f(x). Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        value = activate(load_float(x + block_y() * x_stride + 4 * i))
        store_float(out + block_y() * out_stride + 4 * i, value)


def copy_rest(x, x_stride, size, start, out, out_stride, out_size, out_start, width):
    """Of parts of `size` columns, those from `start` on, to the end of parts of `out_size`.

    Grid: (width / 256, rows); `width` columns are copied in all.
    """
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        part = div_u32(i, size - start)
        column = i - part * (size - start)
        value = load_float(x + block_y() * x_stride + 4 * (part * size + start + column))
        store_float(out + block_y() * out_stride + 4 * (part * out_size + out_start + column), value)


def sigmoid_gate(gate, gate_stride, x, x_stride, width):
    """x = sigmoid(gate) · x; NARROW: the gate has one column. Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        at = x + block_y() * x_stride + 4 * i
        column = i
        if NARROW:
            column = 0
        store_float(at, sigmoid(load_float(gate + block_y() * gate_stride + 4 * column)) * load_float(at))


def add(x, x_stride, out, out_stride, width, scale: float, keep: float):
    """out = keep · out + scale · x. Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        at = out + block_y() * out_stride + 4 * i
        value = load_float(x + block_y() * x_stride + 4 * i) * scale
        store_float(at, load_float(at) * keep + value)


def soft_cap(x, x_stride, width, cap: float):
    """x = cap · tanh(x / cap). Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        at = x + block_y() * x_stride + 4 * i
        store_float(at, cap * tanh(div_f32(load_float(at), cap)))
