"""Recurrent ops: causal convolution, gated delta rule, Mamba-2 state-space scan.

All of them take a RECURRENT record and go through the rows position by position. Threads partition channels
or heads, whose states are independent, so that no barrier is needed within an op. A state is float32 and
is read and written in place, at the number of the row's sequence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.decorators import jit, kernel, reassociating_kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma
from .....quant.jit.simd.memory import load_f32, load_i32, loadv_f32, store_f32, storev_f32
from ...abi.records import RECURRENT
from .access import floats_at, record_reader, step_at
from .partition import partition
from .vector_math import constant, sigmoid

arguments_at = record_reader(RECURRENT)


@jit
def _state(a: Any, s: Any, row: int) -> int:
    """Address of the state of the sequence that a row belongs to."""
    return a.state + load_i32(s.sequences + 4 * row) * a.state_bytes


@jit
def _softplus(x: float) -> float:
    """ln(1 + e^x) without overflow; NaN stays NaN."""
    if x > 0:
        return x + math.log1p(math.exp(-x))
    return math.log1p(math.exp(x))


@jit
def _sigmoid(x: float) -> float:
    """1 / (1 + e^-x) of one float64."""
    return 1.0 / (1.0 + math.exp(-x))


@jit
def _zero() -> Any:
    """float32 0."""
    return np.float32(0.0)


@jit
def _zeros() -> Any:
    """0 in every lane."""
    return constant(0.0)


@jit
def _multiply_add(x: Any, y: Any, total: Any) -> Any:
    """total + x · y of float32, rounded twice."""
    return total + x * y


@jit
def _silu(x: Any) -> Any:
    """SiLU of one float32, x · sigmoid(x)."""
    return np.float32(x * _sigmoid(x))


@jit
def _vector_silu(x: Any) -> Any:
    """SiLU of each lane, x · sigmoid(x)."""
    return x * sigmoid(x)


def _convolution(load: Any, store: Any, multiply_add: Any, zero: Any, silu: Any) -> Any:
    """The causal convolution of one channel, or of LANES channels, by the arithmetic of float32 or F32."""

    @jit
    def convolve(a: Any, s: Any, thread: int, at: int) -> None:
        """Convolve all rows; `at` is the byte offset of the channels in a row."""
        row = 4 * a.channels
        for t in range(s.n_rows):
            state = _state(a, s, t) + at
            x = load(a.x + thread * a.x_thread_stride + t * a.x_stride + at)
            total = load(a.bias + at) if a.bias != 0 else zero()
            for j in range(a.taps - 1):
                earlier = load(state + j * row)
                total = multiply_add(earlier, load(a.weight + j * a.weight_stride + at), total)
                if j > 0:
                    store(state + (j - 1) * row, earlier)
            total = multiply_add(x, load(a.weight + (a.taps - 1) * a.weight_stride + at), total)
            if a.taps > 1:
                store(state + (a.taps - 2) * row, x)
            store(a.out + t * a.out_stride + at, silu(total) if a.silu else total)

    return convolve


_convolve_vector = _convolution(loadv_f32, storev_f32, fma, _zeros, _vector_silu)
_convolve_channel = _convolution(load_f32, store_f32, _multiply_add, _zero, _silu)


@kernel
def causal_conv(arguments: int, step: int, thread: int) -> None:
    """Depthwise causal convolution: out[p] = Σ_j weight[j] · x[p - taps + 1 + j] + bias, then SiLU if `silu`.

    x and out are float32 [rows, channels], weight [taps, channels], bias [channels]; the state is the
    previous taps - 1 rows of x. Threads partition the channels, LANES side by side in a vector; the last
    thread computes the channels that do not fill a vector one by one.
    """
    a, s = arguments_at(arguments), step_at(step)
    vectors = a.channels // LANES
    first, last = partition(vectors, thread, s.n_threads)
    for v in range(first, last):
        _convolve_vector(a, s, thread, 4 * v * LANES)
    if thread + 1 == s.n_threads:
        for channel in range(vectors * LANES, a.channels):
            _convolve_channel(a, s, thread, 4 * channel)


@jit
def _normalised(source: int, target: Any, n: int, eps: float, factor: float) -> None:
    """target = factor · x / sqrt(Σ x² + eps), of float32 [n] at address `source`."""
    x = floats_at(source, n)
    total = np.float32(0.0)
    for i in range(n):
        total += x[i] * x[i]
    scale = np.float32(factor / math.sqrt(total + eps))
    for i in range(n):
        target[i] = x[i] * scale


@reassociating_kernel
def delta_rule(arguments: int, step: int, thread: int) -> None:
    """Gated delta rule (Yang et al. 2024, "Gated Delta Networks"); for the formula see `ops.DeltaRule`.

    A row of x is float32: `groups` queries and as many keys of dimension `size`, then `heads` values of
    head_dim. State: float32 [heads, size, head_dim] a sequence. Threads partition the heads.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = partition(a.heads, thread, s.n_threads)
    keys, size, dim = a.groups * a.size, a.size, a.head_dim
    scratch = a.scratch + thread * a.scratch_stride
    q, k, delta = (
        floats_at(scratch, size),
        floats_at(scratch + 4 * size, size),
        floats_at(scratch + 8 * size, dim),
    )
    for h in range(first, last):
        group = h % a.groups if a.tiled else h // (a.heads // a.groups)
        decay_rate, bias = np.float64(load_f32(a.a + 4 * h)), np.float64(load_f32(a.step_bias + 4 * h))
        for t in range(s.n_rows):
            x = a.x + thread * a.x_thread_stride + t * a.x_stride
            _normalised(x + 4 * group * size, q, size, a.eps, 1.0 / math.sqrt(size))
            _normalised(x + 4 * (keys + group * size), k, size, a.eps, 1.0)
            v = floats_at(x + 4 * (2 * keys + h * dim), dim)
            step_size = np.float64(
                load_f32(a.step + thread * a.step_thread_stride + t * a.step_stride + 4 * h)
            )
            decay = np.float32(math.exp(decay_rate * _softplus(step_size + bias)))
            beta = load_f32(a.beta + thread * a.beta_thread_stride + t * a.beta_stride + 4 * h)
            write_strength = np.float32(_sigmoid(np.float64(beta)))
            state = _state(a, s, t) + 4 * h * size * dim
            out = floats_at(a.out + t * a.out_stride + 4 * h * dim, dim)
            for j in range(dim):
                delta[j] = np.float32(0.0)
                out[j] = np.float32(0.0)
            for i in range(size):
                row, factor = floats_at(state + 4 * i * dim, dim), k[i]
                for j in range(dim):
                    row[j] *= decay
                    delta[j] += factor * row[j]
            for j in range(dim):
                delta[j] = write_strength * (v[j] - delta[j])
            for i in range(size):
                row, factor, query = floats_at(state + 4 * i * dim, dim), k[i], q[i]
                for j in range(dim):
                    row[j] += factor * delta[j]
                    out[j] += query * row[j]


@reassociating_kernel
def state_scan(arguments: int, step: int, thread: int) -> None:
    """Mamba-2 recurrence (Dao & Gu 2024, "Transformers are SSMs"); for the formula see `ops.StateScan`.

    A row of x is float32: `heads` x of head_dim, then `groups` B and as many C of dimension `size`. State:
    float32 [heads, head_dim, size] a sequence. Threads partition the heads.
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = partition(a.heads, thread, s.n_threads)
    size, dim = a.size, a.head_dim
    for h in range(first, last):
        group = h // (a.heads // a.groups)
        decay_rate, bias = np.float64(load_f32(a.a + 4 * h)), np.float64(load_f32(a.step_bias + 4 * h))
        skip = load_f32(a.skip + 4 * h)
        for t in range(s.n_rows):
            source = a.x + thread * a.x_thread_stride + t * a.x_stride
            x = floats_at(source + 4 * h * dim, dim)
            b = floats_at(source + 4 * (a.heads * dim + group * size), size)
            c = floats_at(source + 4 * (a.heads * dim + (a.groups + group) * size), size)
            step_size = np.float64(
                load_f32(a.step + thread * a.step_thread_stride + t * a.step_stride + 4 * h)
            )
            time = _softplus(step_size * a.step_scale + bias)
            decay, input_scale = np.float32(math.exp(decay_rate * time)), np.float32(time)
            state = _state(a, s, t) + 4 * h * dim * size
            out = floats_at(a.out + t * a.out_stride + 4 * h * dim, dim)
            for i in range(dim):
                row, factor = floats_at(state + 4 * i * size, size), input_scale * x[i]
                total = np.float32(0.0)
                for j in range(size):
                    row[j] = decay * row[j] + factor * b[j]
                    total += row[j] * c[j]
                out[i] = total + skip * x[i]
