"""Matrix products: out[t] = W · x[t] + bias, or out[t] += …, with W in panels of `LANES` rows.

Block-quantised weights meet activations of 8 bits with one scale per 32 (`quantize` below); sums of products
are exact integers within a group of 32 (or 16) and float32 across groups. Float weights meet the float32
activations as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from ...quant.jit import Kernel, jit, kernel
from ...quant.simd import (
    LANES,
    Codes,
    absolute,
    dot,
    dot_start,
    fma,
    lane_max,
    lane_sum_i32,
    load_f32,
    load_i32,
    loadv_f32,
    maximum,
    round_even,
    splat_f32,
    splat_i32,
    store_f32,
    store_i32,
    storev_f32,
    storev_i8,
    to_f32,
    to_i32,
)
from .floats import FLOATS, SIZES, load_floats
from .records import reader, record, share, step_at
from .unpack import CODES, unpack

GROUP = 32  # activations that share a scale
TILE = 4  # tokens that a panel meets at once

MATMUL = record(
    "weights",  # panels
    "n_panels",
    "panel_bytes",
    "n_blocks",  # blocks a row
    "width",  # weights a row
    "x",
    "x_stride",
    "out",
    "out_stride",
    "bias",  # float32 [n_panels · LANES], or 0
    "accumulate",
    "on_wanted",  # only the rows whose logits are wanted
)
matmul_at = reader(MATMUL)

QUANTIZE = record("x", "x_stride", "out", "out_stride", "width", "on_wanted")
quantize_at = reader(QUANTIZE)


def quantized_row_bytes(width: int) -> int:
    """Bytes of a quantised row: int8 [width], float32 scale per 32, int32 sum of the codes per 16."""
    return -(-(width + width // GROUP * 4 + width // 16 * 4) // 64) * 64


@jit
def _scales_at(row: int, width: int, group: int) -> int:
    return row + width + 4 * group


@jit
def _sums_at(row: int, width: int, group: int) -> int:
    return row + width + 4 * (width // GROUP) + 8 * group


@kernel
def quantize(arguments: int, step: int, thread: int) -> None:
    """float32 rows → int8 codes, scale = max|x| / 127 per 32, and sums of codes."""
    a, s = quantize_at(arguments), step_at(step)
    first, last = share(s.n_wanted if a.on_wanted else s.n_rows, thread, s.n_threads)
    for t in range(first, last):
        x, row = a.x + t * a.x_stride, a.out + t * a.out_stride
        for g in range(a.width // GROUP):
            peak = absolute(loadv_f32(x))
            for i in range(LANES, GROUP, LANES):
                peak = maximum(peak, absolute(loadv_f32(x + 4 * i)))
            largest = lane_max(peak)
            inverse = splat_f32(np.float32(127.0) / largest if largest > 0 else np.float32(0.0))
            store_f32(_scales_at(row, a.width, g), largest / np.float32(127.0))
            for half in range(2):
                total = splat_i32(np.int32(0))
                for i in range(0, 16, LANES):
                    at = 16 * half + i
                    code = to_i32(round_even(loadv_f32(x + 4 * at) * inverse))
                    storev_i8(row + g * GROUP + at, code)
                    total = total + code
                store_i32(_sums_at(row, a.width, g) + 4 * half, lane_sum_i32(total))
            x += 4 * GROUP


def _add_group(acc: Any, weights: Any, codes: Codes, x: int, row: int, width: int, group: int) -> Any:
    """acc + one group's products with the activations of `row`; `weights` as `unpack` returns them."""
    raise TypeError("for compiled code")


@overload(_add_group, jit_options={"forceinline": True})
def _choose_add_group(acc: Any, weights: Any, codes: Any, x: Any, row: Any, width: Any, group: Any) -> Any:
    def symmetric(acc: Any, weights: Any, codes: Any, x: Any, row: Any, width: Any, group: Any) -> Any:
        words, scale = weights
        sums = _sums_at(row, width, group)
        products = dot(dot_start(load_i32(sums) + load_i32(sums + 4), codes), words, x, codes)
        return fma(to_f32(products), scale * splat_f32(load_f32(_scales_at(row, width, group))), acc)

    def with_minimum(acc: Any, weights: Any, codes: Any, x: Any, row: Any, width: Any, group: Any) -> Any:
        words, scale, minimum = weights
        sums = _sums_at(row, width, group)
        dx = load_f32(_scales_at(row, width, group))
        total = np.float32(load_i32(sums) + load_i32(sums + 4)) * dx
        products = dot(splat_i32(np.int32(0)), words, x, codes)
        acc = acc - minimum * splat_f32(total)
        return fma(to_f32(products), scale * splat_f32(dx), acc)

    def halves(acc: Any, weights: Any, codes: Any, x: Any, row: Any, width: Any, group: Any) -> Any:
        low, high, scale_low, scale_high = weights
        sums = _sums_at(row, width, group)
        dx = splat_f32(load_f32(_scales_at(row, width, group)))
        first = dot(dot_start(load_i32(sums), codes), low, x, codes)
        second = dot(dot_start(load_i32(sums + 4), codes), high, x + 16, codes)
        return fma(to_f32(second), scale_high * dx, fma(to_f32(first), scale_low * dx, acc))

    def halves_with_minimum(
        acc: Any, weights: Any, codes: Any, x: Any, row: Any, width: Any, group: Any
    ) -> Any:
        low, high, scale_low, scale_high, minimum_low, minimum_high = weights
        sums = _sums_at(row, width, group)
        dx = load_f32(_scales_at(row, width, group))
        acc = acc - minimum_low * splat_f32(np.float32(load_i32(sums)) * dx)
        acc = acc - minimum_high * splat_f32(np.float32(load_i32(sums + 4)) * dx)
        first = dot(splat_i32(np.int32(0)), low, x, codes)
        second = dot(splat_i32(np.int32(0)), high, x + 16, codes)
        scale = splat_f32(dx)
        return fma(to_f32(second), scale_high * scale, fma(to_f32(first), scale_low * scale, acc))

    if not isinstance(weights, types.BaseTuple):
        return None
    return {2: symmetric, 3: with_minimum, 4: halves, 6: halves_with_minimum}[len(weights)]


@jit
def _write(a: Any, token: int, panel: int, value: Any) -> None:
    """One token's outputs of one panel, with bias and what was there."""
    column = 4 * panel * LANES
    at = a.out + token * a.out_stride + column
    if a.bias != 0:
        value = value + loadv_f32(a.bias + column)
    if a.accumulate:
        value = value + loadv_f32(at)
    storev_f32(at, value)


def _quantized_matmul(codes: Codes) -> Kernel:
    """The kernel for one block format. All of them are this code with another `unpack`."""

    @kernel
    def matmul(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        first, last = share(a.n_panels, thread, s.n_threads)
        n = s.n_wanted if a.on_wanted else s.n_rows
        groups = a.width // GROUP
        zero = splat_f32(np.float32(0.0))
        for panel in range(first, last):
            weights = a.weights + panel * a.panel_bytes
            token = 0
            while token + TILE <= n:
                row0 = a.x + token * a.x_stride
                row1, row2, row3 = row0 + a.x_stride, row0 + 2 * a.x_stride, row0 + 3 * a.x_stride
                acc0, acc1, acc2, acc3 = zero, zero, zero, zero
                for g in range(groups):
                    w = unpack(codes, weights, a.n_blocks, g)
                    at = g * GROUP
                    acc0 = _add_group(acc0, w, codes, row0 + at, row0, a.width, g)
                    acc1 = _add_group(acc1, w, codes, row1 + at, row1, a.width, g)
                    acc2 = _add_group(acc2, w, codes, row2 + at, row2, a.width, g)
                    acc3 = _add_group(acc3, w, codes, row3 + at, row3, a.width, g)
                _write(a, token, panel, acc0)
                _write(a, token + 1, panel, acc1)
                _write(a, token + 2, panel, acc2)
                _write(a, token + 3, panel, acc3)
                token += TILE
            while token < n:
                row0 = a.x + token * a.x_stride
                acc0 = zero
                for g in range(groups):
                    w = unpack(codes, weights, a.n_blocks, g)
                    acc0 = _add_group(acc0, w, codes, row0 + g * GROUP, row0, a.width, g)
                _write(a, token, panel, acc0)
                token += 1

    return matmul


def _float_matmul(kind: Codes) -> Kernel:
    """The kernel for one float type."""
    stride = SIZES[kind.name] * LANES

    @kernel
    def matmul(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        first, last = share(a.n_panels, thread, s.n_threads)
        n = s.n_wanted if a.on_wanted else s.n_rows
        zero = splat_f32(np.float32(0.0))
        for panel in range(first, last):
            weights = a.weights + panel * a.panel_bytes
            token = 0
            while token + TILE <= n:
                x0 = a.x + token * a.x_stride
                x1, x2, x3 = x0 + a.x_stride, x0 + 2 * a.x_stride, x0 + 3 * a.x_stride
                acc0, acc1, acc2, acc3 = zero, zero, zero, zero
                for k in range(a.width):
                    w = load_floats(kind, weights + k * stride)
                    acc0 = fma(w, splat_f32(load_f32(x0 + 4 * k)), acc0)
                    acc1 = fma(w, splat_f32(load_f32(x1 + 4 * k)), acc1)
                    acc2 = fma(w, splat_f32(load_f32(x2 + 4 * k)), acc2)
                    acc3 = fma(w, splat_f32(load_f32(x3 + 4 * k)), acc3)
                _write(a, token, panel, acc0)
                _write(a, token + 1, panel, acc1)
                _write(a, token + 2, panel, acc2)
                _write(a, token + 3, panel, acc3)
                token += TILE
            while token < n:
                x0 = a.x + token * a.x_stride
                # Four sums, so that the multiply-adds do not wait for each other.
                acc0, acc1, acc2, acc3 = zero, zero, zero, zero
                k = 0
                while k + 4 <= a.width:
                    at = weights + k * stride
                    acc0 = fma(load_floats(kind, at), splat_f32(load_f32(x0 + 4 * k)), acc0)
                    acc1 = fma(load_floats(kind, at + stride), splat_f32(load_f32(x0 + 4 * k + 4)), acc1)
                    acc2 = fma(load_floats(kind, at + 2 * stride), splat_f32(load_f32(x0 + 4 * k + 8)), acc2)
                    acc3 = fma(load_floats(kind, at + 3 * stride), splat_f32(load_f32(x0 + 4 * k + 12)), acc3)
                    k += 4
                while k < a.width:
                    acc0 = fma(load_floats(kind, weights + k * stride), splat_f32(load_f32(x0 + 4 * k)), acc0)
                    k += 1
                _write(a, token, panel, (acc0 + acc1) + (acc2 + acc3))
                token += 1

    return matmul


MATMULS: dict[str, Kernel] = {name: _quantized_matmul(codes) for name, codes in CODES.items()} | {
    name: _float_matmul(kind) for name, kind in FLOATS.items()
}
