"""Kernels that treat every row by itself: norms, rotations, activations, sums.

Threads share the rows; or, in a step of one row (`every`), each thread computes the row for itself, into
memory of its own. A `…_private` field tells the bytes between the threads' copies; 0: they share one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.jit import jit, kernel, reassociating_kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import fma, load_f32, load_i32, loadv_f32, maximum, splat_f32, store_f32, storev_f32
from ...abi.records import IDENTITY, POINTWISE, RELU2, TANH
from ..matmul.epilogue import gated
from .access import floats_at, my_rows, reader, rows_of, share, step_at
from .rope import rotate
from .vector_math import constant, sigmoid, tanh

arguments_at = reader(POINTWISE)


@jit
def _x(a: Any, thread: int, row: int) -> int:
    return a.x + thread * a.x_private + row * a.x_stride


@jit
def _y(a: Any, thread: int, row: int) -> int:
    return a.y + thread * a.y_private + row * a.y_stride


@jit
def _out(a: Any, thread: int, row: int) -> int:
    return a.out + thread * a.out_private + row * a.out_stride


@reassociating_kernel
def rms_norm(arguments: int, step: int, thread: int) -> None:
    """out = x / sqrt(mean(x²) + number) · weight, for each of `groups` parts of a row.

    The parts are of its first `length` columns, and the others are copied.
    """
    a, s = arguments_at(arguments), step_at(step)
    size = a.length // a.groups
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        for g in range(a.groups):
            x = floats_at(_x(a, thread, t) + 4 * g * size, size)
            out = floats_at(_out(a, thread, t) + 4 * g * size, size)
            weight = floats_at(a.weight + g * a.weight_stride, size)
            total = np.float32(0.0)
            for i in range(size):
                total += x[i] * x[i]
            factor = np.float32(1.0 / math.sqrt(total / size + a.number))
            for i in range(size):
                out[i] = x[i] * factor * weight[i]
        for i in range(4 * a.length, 4 * a.width, 4):
            store_f32(_out(a, thread, t) + i, load_f32(_x(a, thread, t) + i))


@reassociating_kernel
def layer_norm(arguments: int, step: int, thread: int) -> None:
    """out = (x - mean) / sqrt(variance + number) · weight + bias, for each of `groups` parts of a row.

    Weights and biases, if there are any, are those of the whole row.
    """
    a, s = arguments_at(arguments), step_at(step)
    size = a.width // a.groups
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        for g in range(a.groups):
            x = floats_at(_x(a, thread, t) + 4 * g * size, size)
            out = floats_at(_out(a, thread, t) + 4 * g * size, size)
            weight = floats_at(a.weight + 4 * g * size, size)
            total = np.float32(0.0)
            for i in range(size):
                total += x[i]
            mean = np.float32(total / size)
            total = np.float32(0.0)
            for i in range(size):
                total += (x[i] - mean) * (x[i] - mean)
            factor = np.float32(1.0 / math.sqrt(total / size + a.number))
            for i in range(size):
                out[i] = (x[i] - mean) * factor * weight[i]
            if a.bias != 0:
                bias = floats_at(a.bias + 4 * g * size, size)
                for i in range(size):
                    out[i] += bias[i]


@kernel
def angles(arguments: int, step: int, thread: int) -> None:
    """cos and sin of position · inverse frequency (`weight`), times the attention factor (`number`)."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        frequencies = floats_at(a.weight + t * a.weight_stride, a.n_angles)
        position = np.float32(load_i32(s.positions + 4 * t))
        cos = floats_at(a.cos + t * a.angle_stride, a.n_angles)
        sin = floats_at(a.sin + t * a.angle_stride, a.n_angles)
        for i in range(a.n_angles):
            # The float32 product is part of the models' definition; its cosine is not to add an error.
            angle = np.float64(np.float32(position * frequencies[i]))
            cos[i] = np.float32(math.cos(angle) * a.number)
            sin[i] = np.float32(math.sin(angle) * a.number)


@kernel
def rope(arguments: int, step: int, thread: int) -> None:
    """Rotate the first 2·n_angles dimensions of each of `groups` heads; out may be x."""
    a, s = arguments_at(arguments), step_at(step)
    size = a.width // a.groups
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        cos, sin = a.cos + t * a.angle_stride, a.sin + t * a.angle_stride
        for h in range(a.groups):
            x, out = _x(a, thread, t) + 4 * h * size, _out(a, thread, t) + 4 * h * size
            rotate(x + 4 * a.start, out + 4 * a.start, cos, sin, a.n_angles, a.interleaved)
            for i in range(0, 4 * a.start, 4):
                store_f32(out + i, load_f32(x + i))
            for i in range(4 * (a.start + 2 * a.n_angles), 4 * size, 4):
                store_f32(out + i, load_f32(x + i))


@kernel
def gate(arguments: int, step: int, thread: int) -> None:
    """out = f(number · x) · y; f is `matmul.gated`, the square of what is above 0, tanh, or nothing."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    scale = splat_f32(np.float32(a.number))
    for t in range(first, last):
        for i in range(0, 4 * a.width, 4 * LANES):
            x, y = loadv_f32(_x(a, thread, t) + i) * scale, loadv_f32(_y(a, thread, t) + i)
            if a.gate == RELU2:
                x = maximum(constant(0.0), x)  # in this order NaN stays NaN
                value = x * x * y
            elif a.gate == TANH:
                value = tanh(x) * y
            elif a.gate == IDENTITY:
                value = x * y
            else:
                value = gated(a, x, y)
            storev_f32(_out(a, thread, t) + i, value)


@kernel
def gelu_gate(arguments: int, step: int, thread: int) -> None:
    """out = x · (1 + erf(x / sqrt 2)) / 2 · y."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        for i in range(0, 4 * a.width, 4):
            x = load_f32(_x(a, thread, t) + i)
            y = load_f32(_y(a, thread, t) + i)
            x = np.float32(x * np.float32(a.number))
            value = 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476)) * y
            store_f32(_out(a, thread, t) + i, np.float32(value))


@kernel
def add(arguments: int, step: int, thread: int) -> None:
    """out = number · x + other_number · y."""
    a, s = arguments_at(arguments), step_at(step)
    scale, keep = splat_f32(np.float32(a.number)), splat_f32(np.float32(a.other_number))
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        for i in range(0, 4 * a.width, 4 * LANES):
            x, y = loadv_f32(_x(a, thread, t) + i), loadv_f32(_y(a, thread, t) + i)
            storev_f32(_out(a, thread, t) + i, fma(x, scale, y * keep))


@kernel
def add_positions(arguments: int, step: int, thread: int) -> None:
    """out = x + row number position of the table `weight`."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        row = a.weight + load_i32(s.positions + 4 * t) * a.weight_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(_out(a, thread, t) + i, loadv_f32(_x(a, thread, t) + i) + loadv_f32(row + i))


@kernel
def grow(arguments: int, step: int, thread: int) -> None:
    """out = x · (1 + number · ln(1 + position // length))."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        passed = load_i32(s.positions + 4 * t) // a.length
        growth = splat_f32(np.float32(1.0 + a.number * math.log(1.0 + passed)))
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(_out(a, thread, t) + i, loadv_f32(_x(a, thread, t) + i) * growth)


@kernel
def join_heads(arguments: int, step: int, thread: int) -> None:
    """For each of `groups` heads `length` columns of y, and what x has of the head behind its first `start`.

    A head has `weight_stride` columns in y.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    size = a.width // a.groups
    for t in range(first, last):
        out = _out(a, thread, t)
        for h in range(a.groups):
            x, y = _x(a, thread, t) + 4 * h * size, _y(a, thread, t) + 4 * h * a.weight_stride
            for i in range(0, 4 * a.length, 4):
                store_f32(out + i, load_f32(y + i))
            out += 4 * a.length
            for i in range(4 * a.start, 4 * size, 4):
                store_f32(out, load_f32(x + i))
                out += 4


@reassociating_kernel
def sparsify(arguments: int, step: int, thread: int) -> None:
    """out = max(x - (mean + number · standard deviation), 0), of a row."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        x, out = floats_at(_x(a, thread, t), a.width), floats_at(_out(a, thread, t), a.width)
        total = np.float32(0.0)
        for i in range(a.width):
            total += x[i]
        mean = np.float32(total / a.width)
        total = np.float32(0.0)
        for i in range(a.width):
            total += (x[i] - mean) * (x[i] - mean)
        least = np.float32(mean + a.number * math.sqrt(total / a.width))
        for i in range(a.width):
            above = x[i] - least
            out[i] = np.float32(0.0) if above < 0 else above  # NaN stays NaN


@reassociating_kernel
def match_magnitude(arguments: int, step: int, thread: int) -> None:
    """out = x · rms(y) / max(rms(x), number), of a row."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        x, y = floats_at(_x(a, thread, t), a.width), floats_at(_y(a, thread, t), a.width)
        out, own, other = floats_at(_out(a, thread, t), a.width), np.float32(0.0), np.float32(0.0)
        for i in range(a.width):
            own += x[i] * x[i]
            other += y[i] * y[i]
        least = max(math.sqrt(own / a.width), a.number)
        factor = np.float32(math.sqrt(other / a.width) / least)
        for i in range(a.width):
            out[i] = x[i] * factor


@kernel
def sigmoid_gate(arguments: int, step: int, thread: int) -> None:
    """out = sigmoid(y) · x; y has the width of x, or one number (`length`)."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        y = _y(a, thread, t)
        for i in range(0, 4 * a.width, 4 * LANES):
            gate = splat_f32(load_f32(y)) if a.length == 1 else loadv_f32(y + i)
            storev_f32(_out(a, thread, t) + i, loadv_f32(_x(a, thread, t) + i) * sigmoid(gate))


@kernel
def select_rows(arguments: int, step: int, thread: int) -> None:
    """out[i] = x[logits_indices[i]]."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = share(s.n_logits, thread, s.n_threads)
    for t in range(first, last):
        row = a.x + load_i32(s.logits_indices + 4 * t) * a.x_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(_out(a, thread, t) + i, loadv_f32(row + i))


@kernel
def soft_cap(arguments: int, step: int, thread: int) -> None:
    """x = number · tanh(x / number). Threads share the columns: a single row of logits is long."""
    a, s = arguments_at(arguments), step_at(step)
    cap, inverse = splat_f32(np.float32(a.number)), splat_f32(np.float32(1.0 / a.number))
    first, last = share((a.width + LANES - 1) // LANES, thread, s.n_threads)
    for t in range(rows_of(a, s)):
        for i in range(4 * LANES * first, 4 * LANES * last, 4 * LANES):
            at = a.x + t * a.x_stride + i
            storev_f32(at, cap * tanh(loadv_f32(at) * inverse))
