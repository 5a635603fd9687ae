"""The recurrent ops, position by position: threads share channels or heads, each with a state of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.jit import jit, kernel, reassociating_kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import fma, load_f32, load_i32, loadv_f32, store_f32, storev_f32
from ...abi.records import RECUR
from .access import floats_at, reader, share, step_at
from .vector_math import constant, sigmoid

arguments_at = reader(RECUR)


@jit
def _state(a: Any, s: Any, row: int) -> int:
    """The state of a row's sequence."""
    return a.state + load_i32(s.sequences + 4 * row) * a.state_bytes


@jit
def _softplus(x: float) -> float:
    """ln(1 + e^x); NaN stays NaN."""
    if x > 0:
        return x + math.log1p(math.exp(-x))
    return math.log1p(math.exp(x))


@jit
def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@kernel
def causal_conv(arguments: int, step: int, thread: int) -> None:
    """Each channel's latest values under its weights, with SiLU if asked for. Threads share the channels.

    Vectors of them as far as they go, the rest one by one.
    """
    a, s = arguments_at(arguments), step_at(step)
    vectors = a.channels // LANES
    first, last = share(vectors, thread, s.n_threads)
    for v in range(first, last):
        _convolve(a, s, thread, 4 * v * LANES)
    if thread + 1 == s.n_threads:
        for channel in range(vectors * LANES, a.channels):
            _convolve_one(a, s, thread, 4 * channel)


@jit
def _convolve(a: Any, s: Any, thread: int, at: int) -> None:
    row = 4 * a.channels
    for t in range(s.n_rows):
        state = _state(a, s, t) + at
        x = loadv_f32(a.x + thread * a.x_private + t * a.x_stride + at)
        total = loadv_f32(a.bias + at) if a.bias != 0 else constant(0.0)
        for j in range(a.taps - 1):
            seen = loadv_f32(state + j * row)
            total = fma(seen, loadv_f32(a.weight + j * a.weight_stride + at), total)
            if j > 0:
                storev_f32(state + (j - 1) * row, seen)
        total = fma(x, loadv_f32(a.weight + (a.taps - 1) * a.weight_stride + at), total)
        if a.taps > 1:
            storev_f32(state + (a.taps - 2) * row, x)
        storev_f32(a.out + t * a.out_stride + at, total * sigmoid(total) if a.silu else total)


@jit
def _convolve_one(a: Any, s: Any, thread: int, at: int) -> None:
    row = 4 * a.channels
    for t in range(s.n_rows):
        state = _state(a, s, t) + at
        x = load_f32(a.x + thread * a.x_private + t * a.x_stride + at)
        total = load_f32(a.bias + at) if a.bias != 0 else np.float32(0.0)
        for j in range(a.taps - 1):
            seen = load_f32(state + j * row)
            total += seen * load_f32(a.weight + j * a.weight_stride + at)
            if j > 0:
                store_f32(state + (j - 1) * row, seen)
        total += x * load_f32(a.weight + (a.taps - 1) * a.weight_stride + at)
        if a.taps > 1:
            store_f32(state + (a.taps - 2) * row, x)
        value = np.float32(total * _sigmoid(total)) if a.silu else total
        store_f32(a.out + t * a.out_stride + at, value)


@jit
def _normalised(source: int, target: Any, n: int, eps: float, factor: float) -> None:
    """float32 [n] divided by the root of the sum of its squares, times a factor."""
    x = floats_at(source, n)
    total = np.float32(0.0)
    for i in range(n):
        total += x[i] * x[i]
    scale = np.float32(factor / math.sqrt(total + eps))
    for i in range(n):
        target[i] = x[i] * scale


@reassociating_kernel
def delta_rule(arguments: int, step: int, thread: int) -> None:
    """The gated delta rule; see `ops_recurrent.DeltaRule`. Threads share the heads."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = share(a.heads, thread, s.n_threads)
    keys, size, dim = a.groups * a.size, a.size, a.head_dim
    scratch = a.scratch + thread * a.scratch_stride
    q, k, new = (
        floats_at(scratch, size),
        floats_at(scratch + 4 * size, size),
        floats_at(scratch + 8 * size, dim),
    )
    for h in range(first, last):
        group = h % a.groups if a.tiled else h // (a.heads // a.groups)
        rate, bias = np.float64(load_f32(a.a + 4 * h)), np.float64(load_f32(a.step_bias + 4 * h))
        for t in range(s.n_rows):
            x = a.x + thread * a.x_private + t * a.x_stride
            _normalised(x + 4 * group * size, q, size, a.eps, 1.0 / math.sqrt(size))
            _normalised(x + 4 * (keys + group * size), k, size, a.eps, 1.0)
            v = floats_at(x + 4 * (2 * keys + h * dim), dim)
            moved = np.float64(load_f32(a.step + thread * a.step_private + t * a.step_stride + 4 * h))
            decay = np.float32(math.exp(rate * _softplus(moved + bias)))
            beta = load_f32(a.beta + thread * a.beta_private + t * a.beta_stride + 4 * h)
            part = np.float32(_sigmoid(np.float64(beta)))
            state = _state(a, s, t) + 4 * h * size * dim
            out = floats_at(a.out + t * a.out_stride + 4 * h * dim, dim)
            for j in range(dim):
                new[j] = np.float32(0.0)
                out[j] = np.float32(0.0)
            for i in range(size):
                memory, factor = floats_at(state + 4 * i * dim, dim), k[i]
                for j in range(dim):
                    memory[j] *= decay
                    new[j] += factor * memory[j]
            for j in range(dim):
                new[j] = part * (v[j] - new[j])
            for i in range(size):
                memory, factor, query = floats_at(state + 4 * i * dim, dim), k[i], q[i]
                for j in range(dim):
                    memory[j] += factor * new[j]
                    out[j] += query * memory[j]


@reassociating_kernel
def state_scan(arguments: int, step: int, thread: int) -> None:
    """Mamba-2's recurrence; see `ops_recurrent.StateScan`. Threads share the heads."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = share(a.heads, thread, s.n_threads)
    size, dim = a.size, a.head_dim
    for h in range(first, last):
        group = h // (a.heads // a.groups)
        rate, bias = np.float64(load_f32(a.a + 4 * h)), np.float64(load_f32(a.step_bias + 4 * h))
        skip = load_f32(a.skip + 4 * h)
        for t in range(s.n_rows):
            row = a.x + thread * a.x_private + t * a.x_stride
            x = floats_at(row + 4 * h * dim, dim)
            b = floats_at(row + 4 * (a.heads * dim + group * size), size)
            c = floats_at(row + 4 * (a.heads * dim + (a.groups + group) * size), size)
            moved = np.float64(load_f32(a.step + thread * a.step_private + t * a.step_stride + 4 * h))
            time = _softplus(moved * a.step_scale + bias)
            decay, taken = np.float32(math.exp(rate * time)), np.float32(time)
            state = _state(a, s, t) + 4 * h * dim * size
            out = floats_at(a.out + t * a.out_stride + 4 * h * dim, dim)
            for i in range(dim):
                memory, factor = floats_at(state + 4 * i * size, size), taken * x[i]
                total = np.float32(0.0)
                for j in range(size):
                    memory[j] = decay * memory[j] + factor * b[j]
                    total += memory[j] * c[j]
                out[i] = total + skip * x[i]
