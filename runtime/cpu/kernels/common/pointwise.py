"""Pointwise kernels: norms, RoPE, activations and sums, each row of float32 by itself.

All of them take a POINTWISE record. The threads partition the rows of a step. In a decode step (`replicated`)
every thread computes the only row into its own copy, which costs less than a barrier. Rows are padded to
whole vectors, so that kernels may compute past the width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.decorators import jit, kernel, reassociating_kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, maximum, splat_f32
from .....quant.jit.simd.memory import load_f32, load_i32, loadv_f32, store_f32, storev_f32
from ...abi.records import IDENTITY, POINTWISE, RELU2, TANH
from ..matmul.epilogue import gated
from .access import floats_at, record_reader, step_at
from .head_norm import LARGEST_HEAD, norm_head
from .partition import n_rows_of, partition, thread_rows
from .rope import rotate_pairs
from .vector_math import constant, sigmoid, tanh

arguments_at = record_reader(POINTWISE)


@jit
def _x(a: Any, thread: int, row: int) -> int:
    """Address of a row of x."""
    return a.x + thread * a.x_thread_stride + row * a.x_stride


@jit
def _y(a: Any, thread: int, row: int) -> int:
    """Address of a row of y."""
    return a.y + thread * a.y_thread_stride + row * a.y_stride


@jit
def _out(a: Any, thread: int, row: int) -> int:
    """Address of a row of out."""
    return a.out + thread * a.out_thread_stride + row * a.out_stride


@reassociating_kernel
def rms_norm(arguments: int, step: int, thread: int) -> None:
    """RMS norm (Zhang & Sennrich 2019) of `groups` groups: out = x / sqrt(mean(x²) + scalar) · weight.

    The groups divide the first `length` columns of a row; the remaining columns are copied. `weight` is
    float32 [length / groups] for all groups, or one for each group, `weight_stride` bytes apart.
    """
    a, s = arguments_at(arguments), step_at(step)
    size = a.length // a.groups
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        for g in range(a.groups):
            if size <= LARGEST_HEAD and size % LANES == 0:
                at, to = _x(a, thread, t) + 4 * g * size, _out(a, thread, t) + 4 * g * size
                norm_head(at, to, a.weight + g * a.weight_stride, size, size, a.scalar)
                continue
            x = floats_at(_x(a, thread, t) + 4 * g * size, size)
            out = floats_at(_out(a, thread, t) + 4 * g * size, size)
            weight = floats_at(a.weight + g * a.weight_stride, size)
            total = np.float32(0.0)
            for i in range(size):
                total += x[i] * x[i]
            factor = np.float32(1.0 / math.sqrt(total / size + a.scalar))
            for i in range(size):
                out[i] = x[i] * factor * weight[i]
        for i in range(4 * a.length, 4 * a.width, 4):
            store_f32(_out(a, thread, t) + i, load_f32(_x(a, thread, t) + i))


@reassociating_kernel
def layer_norm(arguments: int, step: int, thread: int) -> None:
    """Layer norm (Ba et al. 2016): out = (x - mean) / sqrt(variance + scalar) · weight + bias, for each of
    `groups` equal groups of a row.

    `weight` and the optional `bias` are float32 [width], of the whole row.
    """
    a, s = arguments_at(arguments), step_at(step)
    size = a.width // a.groups
    first, last = thread_rows(a, s, thread)
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
            factor = np.float32(1.0 / math.sqrt(total / size + a.scalar))
            for i in range(size):
                out[i] = (x[i] - mean) * factor * weight[i]
            if a.bias != 0:
                bias = floats_at(a.bias + 4 * g * size, size)
                for i in range(size):
                    out[i] += bias[i]


@kernel
def rope_angles(arguments: int, step: int, thread: int) -> None:
    """cos and sin of position · inverse frequency, times the attention factor `scalar`.

    Writes float32 [rows, n_angles] to `cos` and `sin`. `weight` is float32 [n_angles], the inverse
    frequencies of all rows, or one such row for each row of the batch, `weight_stride` bytes apart.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        frequencies = floats_at(a.weight + t * a.weight_stride, a.n_angles)
        position = np.float32(load_i32(s.positions + 4 * t))
        cos = floats_at(a.cos + t * a.angle_stride, a.n_angles)
        sin = floats_at(a.sin + t * a.angle_stride, a.n_angles)
        for i in range(a.n_angles):
            # The models define the angle as a float32 product. Its cosine is taken in float64, to add no
            # further rounding error.
            angle = np.float64(np.float32(position * frequencies[i]))
            cos[i] = np.float32(math.cos(angle) * a.scalar)
            sin[i] = np.float32(math.sin(angle) * a.scalar)


@kernel
def rope(arguments: int, step: int, thread: int) -> None:
    """RoPE: rotate 2 · n_angles dimensions from `start` on of each of `groups` heads, copy the others.

    `cos` and `sin` are float32 [rows, n_angles]; out may be x.
    """
    a, s = arguments_at(arguments), step_at(step)
    size = a.width // a.groups
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        cos, sin = a.cos + t * a.angle_stride, a.sin + t * a.angle_stride
        for h in range(a.groups):
            x, out = _x(a, thread, t) + 4 * h * size, _out(a, thread, t) + 4 * h * size
            rotate_pairs(x + 4 * a.start, out + 4 * a.start, cos, sin, a.n_angles, a.interleaved)
            for i in range(0, 4 * a.start, 4):
                store_f32(out + i, load_f32(x + i))
            for i in range(4 * (a.start + 2 * a.n_angles), 4 * size, 4):
                store_f32(out + i, load_f32(x + i))


@kernel
def gated_activation(arguments: int, step: int, thread: int) -> None:
    """out = f(scalar · x) · y.

    `gate` selects f: SILU, GELU_TANH and CLIPPED as in `epilogue.gated`, RELU2 the square of max(x, 0), TANH,
    or IDENTITY.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    scale = splat_f32(np.float32(a.scalar))
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
def gated_gelu(arguments: int, step: int, thread: int) -> None:
    """out = GELU(scalar · x) · y, with the exact GELU(x) = x · (1 + erf(x / sqrt 2)) / 2."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        for i in range(0, 4 * a.width, 4):
            x = load_f32(_x(a, thread, t) + i)
            y = load_f32(_y(a, thread, t) + i)
            x = np.float32(x * np.float32(a.scalar))
            value = 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476)) * y
            store_f32(_out(a, thread, t) + i, np.float32(value))


@kernel
def add(arguments: int, step: int, thread: int) -> None:
    """out = scalar · x + other_scalar · y."""
    a, s = arguments_at(arguments), step_at(step)
    scale, keep = splat_f32(np.float32(a.scalar)), splat_f32(np.float32(a.other_scalar))
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        for i in range(0, 4 * a.width, 4 * LANES):
            x, y = loadv_f32(_x(a, thread, t) + i), loadv_f32(_y(a, thread, t) + i)
            storev_f32(_out(a, thread, t) + i, fma(x, scale, y * keep))


@kernel
def add_positions(arguments: int, step: int, thread: int) -> None:
    """out = x + weight[position]; `weight` is the float32 [positions, width] table of learned positions."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        row = a.weight + load_i32(s.positions + 4 * t) * a.weight_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(_out(a, thread, t) + i, loadv_f32(_x(a, thread, t) + i) + loadv_f32(row + i))


@kernel
def grow_queries(arguments: int, step: int, thread: int) -> None:
    """out = x · (1 + scalar · ln(1 + position // length)), the query scaling of Llama 4."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        passed = load_i32(s.positions + 4 * t) // a.length
        growth = splat_f32(np.float32(1.0 + a.scalar * math.log(1.0 + passed)))
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(_out(a, thread, t) + i, loadv_f32(_x(a, thread, t) + i) * growth)


@kernel
def join_heads(arguments: int, step: int, thread: int) -> None:
    """Concatenate, for each of `groups` heads, `length` columns of y and the columns of x from `start` on.

    A head occupies width / groups columns of x, and `weight_stride` columns of y.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
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
    """out = max(x - threshold, 0) with threshold = mean(x) + scalar · standard deviation(x), of a row.

    Gaussian top-k: keeps about the share of the values that a normal distribution has above `scalar`.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        x, out = floats_at(_x(a, thread, t), a.width), floats_at(_out(a, thread, t), a.width)
        total = np.float32(0.0)
        for i in range(a.width):
            total += x[i]
        mean = np.float32(total / a.width)
        total = np.float32(0.0)
        for i in range(a.width):
            total += (x[i] - mean) * (x[i] - mean)
        threshold = np.float32(mean + a.scalar * math.sqrt(total / a.width))
        for i in range(a.width):
            above = x[i] - threshold
            out[i] = np.float32(0.0) if above < 0 else above  # NaN stays NaN


@reassociating_kernel
def match_magnitude(arguments: int, step: int, thread: int) -> None:
    """out = x · rms(y) / max(rms(x), scalar): x rescaled to the root mean square of y, of a row."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        x, y = floats_at(_x(a, thread, t), a.width), floats_at(_y(a, thread, t), a.width)
        out, x_squares, y_squares = floats_at(_out(a, thread, t), a.width), np.float32(0.0), np.float32(0.0)
        for i in range(a.width):
            x_squares += x[i] * x[i]
            y_squares += y[i] * y[i]
        x_rms = max(math.sqrt(x_squares / a.width), a.scalar)
        factor = np.float32(math.sqrt(y_squares / a.width) / x_rms)
        for i in range(a.width):
            out[i] = x[i] * factor


@kernel
def sigmoid_gate(arguments: int, step: int, thread: int) -> None:
    """out = sigmoid(y) · x; y is float32 [rows, width], or [rows, 1] if `length` is 1."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        y = _y(a, thread, t)
        for i in range(0, 4 * a.width, 4 * LANES):
            gate = splat_f32(load_f32(y)) if a.length == 1 else loadv_f32(y + i)
            storev_f32(_out(a, thread, t) + i, loadv_f32(_x(a, thread, t) + i) * sigmoid(gate))


@kernel
def select_rows(arguments: int, step: int, thread: int) -> None:
    """out[i] = x[logits_indices[i]]: the rows whose logits are computed. Threads partition them."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = partition(s.n_logits, thread, s.n_threads)
    for t in range(first, last):
        row = a.x + load_i32(s.logits_indices + 4 * t) * a.x_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            storev_f32(_out(a, thread, t) + i, loadv_f32(row + i))


@kernel
def soft_cap(arguments: int, step: int, thread: int) -> None:
    """Soft cap in place: x = scalar · tanh(x / scalar).

    Threads partition the columns, since there may be a single row of logits, as long as the vocabulary.
    """
    a, s = arguments_at(arguments), step_at(step)
    cap, inverse = splat_f32(np.float32(a.scalar)), splat_f32(np.float32(1.0 / a.scalar))
    first, last = partition((a.width + LANES - 1) // LANES, thread, s.n_threads)
    for t in range(n_rows_of(a, s)):
        for i in range(4 * LANES * first, 4 * LANES * last, 4 * LANES):
            at = a.x + t * a.x_stride + i
            storev_f32(at, cap * tanh(loadv_f32(at) * inverse))
