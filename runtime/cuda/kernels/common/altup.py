"""AltUp, with several residual streams, and the activation sparsity of Gemma 3n: see `runtime/ops/altup.py`.

All matrices are float32. The streams are columns of one matrix, `step` bytes from one to the next.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import registers, static
from ...ptx import (
    block_x,
    block_y,
    div_f32,
    load_constant,
    load_float,
    maximum,
    shared,
    sqrt,
    store_float,
    thread,
)
from .common import begin
from .pointwise import block_sum

N = ACTIVE = 0  # constants of the launch: the number of streams, and the active one


def sparsify(x, x_stride, width, inverse_width: float, deviations: float):
    """x = max(x - (mean + deviations · std), 0), with mean and std of the row.

    Grid: (1, rows), blocks of 256 threads. Shared memory: 64 bytes.
    """
    begin()
    row = x + block_y() * x_stride
    total = 0.0
    for i in range(thread(), width, 256):
        total = total + load_float(row + 4 * i)
    mean = block_sum(total, shared()) * inverse_width
    squares = 0.0
    for i in range(thread(), width, 256):
        value = load_float(row + 4 * i) - mean
        squares = squares + value * value
    threshold = mean + deviations * sqrt(block_sum(squares, shared() + 32) * inverse_width)
    for i in range(thread(), width, 256):
        store_float(row + 4 * i, maximum(load_float(row + 4 * i) - threshold, 0.0))


def match_magnitude(x, x_stride, like, like_stride, width, inverse_width: float, floor: float):
    """x = x · rms(like) / max(rms(x), floor). Grid: (1, rows), blocks of 256 threads. Shared memory:
    64 bytes.
    """
    begin()
    row = x + block_y() * x_stride
    own = 0.0
    target = 0.0
    for i in range(thread(), width, 256):
        value = load_float(row + 4 * i)
        own = own + value * value
        value = load_float(like + block_y() * like_stride + 4 * i)
        target = target + value * value
    own = maximum(sqrt(block_sum(own, shared()) * inverse_width), floor)
    target = sqrt(block_sum(target, shared() + 32) * inverse_width)
    for i in range(thread(), width, 256):
        store_float(row + 4 * i, div_f32(load_float(row + 4 * i) * target, own))


class PredictArguments(KernelArguments):
    """Arguments of `predict_streams`: streams [rows, N · step / 4], coefficients [rows, N · N], out
    [rows, width].
    """

    streams: Region
    step: int
    coefficients: Region
    out: Region
    width: int


def predict_streams(args: PredictArguments):
    """streams_j += Σ_i coefficients[j, i] · streams_i; out = streams_active.

    Grid: (⌈width / 256⌉, rows), blocks of 256 threads.
    """
    begin()
    i = block_x() * 256 + thread()
    if i < args.width:
        at = args.streams.address + block_y() * args.streams.stride + 4 * i
        row = args.coefficients.address + block_y() * args.coefficients.stride
        before = registers(N)
        for k in static(N):
            before[k] = load_float(at + k * args.step)
        for j in static(N):
            value = before[j]
            for k in static(N):
                value = value + load_float(row + 4 * (j * N + k)) * before[k]
            store_float(at + j * args.step, value)
            if j == ACTIVE:
                store_float(args.out.address + block_y() * args.out.stride + 4 * i, value)


class CorrectArguments(KernelArguments):
    """Arguments of `correct_streams`: streams [rows, N · step / 4], coefficients [rows, N], x [rows, width],
    weight [width].
    """

    streams: Region
    step: int
    coefficients: Region
    x: Region
    weight: int
    width: int


def correct_streams(args: CorrectArguments):
    """streams_j += (1 + coefficients[j]) · (x - streams_active); x = streams_active · weight.

    Grid: (⌈width / 256⌉, rows), blocks of 256 threads.
    """
    begin()
    i = block_x() * 256 + thread()
    if i < args.width:
        at = args.streams.address + block_y() * args.streams.stride + 4 * i
        row = args.coefficients.address + block_y() * args.coefficients.stride
        to = args.x.address + block_y() * args.x.stride + 4 * i
        new = load_float(to) - load_float(at + ACTIVE * args.step)
        for j in static(N):
            value = load_float(at + j * args.step) + (1.0 + load_float(row + 4 * j)) * new
            store_float(at + j * args.step, value)
            if j == ACTIVE:
                store_float(to, value * load_constant(args.weight + 4 * i))
