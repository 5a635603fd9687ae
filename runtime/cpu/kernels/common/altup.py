"""Several residual streams: predicted from each other, and corrected by what a layer made of one of them.

Baykal et al. 2023, "Alternating Updates for Efficient Transformers".
"""

from __future__ import annotations

from typing import Any

from .....quant.jit.jit import jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import fma, load_f32, loadv_f32, splat_f32, storev_f32
from ...abi.records import STREAMS
from ...simd.dot16 import load_i64
from .access import my_rows, reader, step_at
from .vector_math import constant

arguments_at = reader(STREAMS)


@jit
def _source(a: Any, j: int, thread: int, row: int) -> int:
    """A row of stream j as it was."""
    at = a.streams + 48 * j
    return load_i64(at) + row * load_i64(at + 8) + thread * load_i64(at + 16)


@jit
def _target(a: Any, j: int, thread: int, row: int) -> int:
    """Where a row of stream j goes."""
    at = a.streams + 48 * j + 24
    return load_i64(at) + row * load_i64(at + 8) + thread * load_i64(at + 16)


@kernel
def predict_streams(arguments: int, step: int, thread: int) -> None:
    """Each stream plus a mixture of all; `out` is the active one."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    vectors = a.scratch + thread * a.scratch_stride
    for t in range(first, last):
        c = a.coefficients + thread * a.coefficients_private + t * a.coefficients_stride
        out = a.out + thread * a.out_private + t * a.out_stride
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
def correct_streams(arguments: int, step: int, thread: int) -> None:
    """Each stream plus (1 + its coefficient) times what is new in x; then out is the active one · weight."""
    a, s = arguments_at(arguments), step_at(step)
    first, last = my_rows(a, s, thread)
    for t in range(first, last):
        c = a.coefficients + thread * a.coefficients_private + t * a.coefficients_stride
        x = a.x + thread * a.x_private + t * a.x_stride
        out = a.out + thread * a.out_private + t * a.out_stride
        for i in range(0, 4 * a.width, 4 * LANES):
            new = loadv_f32(x + i) - loadv_f32(_source(a, a.active, thread, t) + i)
            for j in range(a.n):
                factor = splat_f32(load_f32(c + 4 * j)) + constant(1.0)
                storev_f32(
                    _target(a, j, thread, t) + i, fma(new, factor, loadv_f32(_source(a, j, thread, t) + i))
                )
            storev_f32(out + i, loadv_f32(_target(a, a.active, thread, t) + i) * loadv_f32(a.weight + i))
