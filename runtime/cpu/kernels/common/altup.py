"""AltUp: several residual streams, of which each layer computes on one and predicts the others.

Baykal et al. 2023, "Alternating Updates for Efficient Transformers". Threads partition the rows.
"""

from __future__ import annotations

from typing import Any

from .....quant.jit.decorators import jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, splat_f32
from .....quant.jit.simd.memory import load_f32, loadv_f32, storev_f32
from ...abi.records import ALTUP
from ...simd.dot16 import load_i64
from .access import record_reader, step_at
from .partition import thread_rows
from .vector_math import constant

arguments_at = record_reader(ALTUP)


@jit
def _source(a: Any, j: int, thread: int, row: int) -> int:
    """Address of a row of the input of stream j."""
    at = a.streams + 48 * j
    return load_i64(at) + row * load_i64(at + 8) + thread * load_i64(at + 16)


@jit
def _target(a: Any, j: int, thread: int, row: int) -> int:
    """Address of a row of the output of stream j."""
    at = a.streams + 48 * j + 24
    return load_i64(at) + row * load_i64(at + 8) + thread * load_i64(at + 16)


@kernel
def altup_predict(arguments: int, step: int, thread: int) -> None:
    """stream[j] = stream[j] + Σ_k coefficients[j, k] · stream[k] for all n streams; out = stream[active].

    Streams and `out` are float32 [rows, width], coefficients float32 [rows, n · n].
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    vectors = a.scratch + thread * a.scratch_stride
    for t in range(first, last):
        c = a.coefficients + thread * a.coefficients_thread_stride + t * a.coefficients_stride
        out = a.out + thread * a.out_thread_stride + t * a.out_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            for j in range(a.n):
                storev_f32(vectors + 4 * LANES * j, loadv_f32(_source(a, j, thread, t) + i))
            for j in range(a.n):
                total = constant(0.0)
                for k in range(a.n):
                    factor = splat_f32(load_f32(c + 4 * (j * a.n + k)))
                    total = fma(loadv_f32(vectors + 4 * LANES * k), factor, total)
                total = total + loadv_f32(vectors + 4 * LANES * j)
                storev_f32(_target(a, j, thread, t) + i, total)
                if j == a.active:
                    storev_f32(out + i, total)


@kernel
def altup_correct(arguments: int, step: int, thread: int) -> None:
    """stream[j] = stream[j] + (1 + coefficients[j]) · (x - stream[active]); out = stream[active] · weight.

    `x` is the layer's output. Streams, `x` and `out` are float32 [rows, width], coefficients float32
    [rows, n], weight float32 [width].
    """
    a, s = arguments_at(arguments), step_at(step)
    first, last = thread_rows(a, s, thread)
    for t in range(first, last):
        c = a.coefficients + thread * a.coefficients_thread_stride + t * a.coefficients_stride
        x = a.x + thread * a.x_thread_stride + t * a.x_stride
        out = a.out + thread * a.out_thread_stride + t * a.out_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            innovation = loadv_f32(x + i) - loadv_f32(_source(a, a.active, thread, t) + i)
            for j in range(a.n):
                factor = splat_f32(load_f32(c + 4 * j)) + constant(1.0)
                storev_f32(
                    _target(a, j, thread, t) + i,
                    fma(innovation, factor, loadv_f32(_source(a, j, thread, t) + i)),
                )
            storev_f32(out + i, loadv_f32(_target(a, a.active, thread, t) + i) * loadv_f32(a.weight + i))
