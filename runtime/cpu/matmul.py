"""Matrix products: out[t] = W · x[t] + bias, or out[t] += …, with W in panels of `LANES` rows.

Block-quantised weights meet activations of 8 bits with one scale per 32 (`quantize` below); sums of products
are exact integers within a group of 32 (or 16) and float32 across groups. Float weights meet the float32
activations as they are.

A group whose largest activation stands far out would leave few bits to the other 31. It gets a second digit:
8 more bits for what the first 8 left over, a second dot product with the same weights. A fifth of
the groups need it, and it brings the error of INT8 activations down by a factor of five.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from ...quant.formats import FORMATS
from ...quant.jit import Kernel, jit, kernel
from ...quant.panels import PLANES
from ...quant.simd import (
    LANES,
    Codes,
    absolute,
    code_offset,
    dot,
    fma,
    lane_max,
    lane_sum,
    lane_sum_i32,
    load_f32,
    load_i32,
    loadv_f32,
    maximum,
    prefetch,
    round_even,
    splat_f32,
    splat_i32,
    store_f32,
    storev_f32,
    storev_i8,
    to_f32,
    to_i32,
)
from .floats import FLOATS, SIZES, constant, load_floats
from .records import reader, record, share, step_at
from .unpack import CODES, unpack

GROUP = 32  # activations that share a scale
TILE = 4  # tokens that a panel meets at once
AHEAD = 4096  # bytes between what is read and what is fetched: weights come from memory, in order
OUTLIER = 4.0  # a group whose largest activation exceeds this many times its RMS gets a second digit
DIGIT = 254.0  # the second digit's unit is this fraction of the first's: ±127 of them span half a unit

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

# A quantised row: int8 first digits [width], int8 second digits [width], then five float32 for each group of
# 32: the unit of the first digits, that of the second (0 if there are none), the sum of the 32 values as
# they are now represented, and the sums of its halves.
FACTS = 5
_UNIT, _SECOND_UNIT, _TOTAL, _LOW_TOTAL, _HIGH_TOTAL = (4 * i for i in range(FACTS))


def quantized_row_bytes(width: int) -> int:
    """Bytes of a quantised row, whole cache lines."""
    return -(-(2 * width + width // GROUP * FACTS * 4) // 64) * 64


@kernel
def quantize(arguments: int, step: int, thread: int) -> None:
    """float32 rows → quantised rows."""
    a, s = quantize_at(arguments), step_at(step)
    first, last = share(s.n_wanted if a.on_wanted else s.n_rows, thread, s.n_threads)
    limit = np.float32(OUTLIER * OUTLIER / GROUP)
    for t in range(first, last):
        x, codes = a.x + t * a.x_stride, a.out + t * a.out_stride
        facts = codes + 2 * a.width
        for _ in range(a.width // GROUP):
            values = loadv_f32(x)
            peak, squares = absolute(values), values * values
            for i in range(LANES, GROUP, LANES):
                values = loadv_f32(x + 4 * i)
                peak, squares = maximum(peak, absolute(values)), fma(values, values, squares)
            largest, energy = lane_max(peak), lane_sum(squares)
            unit = largest / np.float32(127.0)
            if energy != energy:  # NaN, which the maximum may have passed over: no number may come of it
                unit = energy
            inverse = splat_f32(np.float32(127.0) / largest if largest > 0 else np.float32(0.0))
            two = largest * largest > limit * energy
            second_unit = unit / np.float32(DIGIT) if two else np.float32(0.0)
            store_f32(facts + _UNIT, unit)
            store_f32(facts + _SECOND_UNIT, second_unit)
            for half in range(2):
                total, second_total = splat_i32(np.int32(0)), splat_i32(np.int32(0))
                for i in range(16 * half, 16 * half + 16, LANES):
                    scaled = loadv_f32(x + 4 * i) * inverse
                    whole = round_even(scaled)
                    code = to_i32(whole)
                    storev_i8(codes + i, code)
                    total = total + code
                    if two:
                        code = to_i32(round_even((scaled - whole) * constant(DIGIT)))
                        storev_i8(codes + a.width + i, code)
                        second_total = second_total + code
                value = np.float32(lane_sum_i32(total)) * unit
                value += np.float32(lane_sum_i32(second_total)) * second_unit
                store_f32(facts + _LOW_TOTAL + 4 * half, value)
            store_f32(facts + _TOTAL, load_f32(facts + _LOW_TOTAL) + load_f32(facts + _HIGH_TOTAL))
            x += 4 * GROUP
            codes += GROUP
            facts += 4 * FACTS


@jit
def _products(words: Any, codes: Codes, x: int, second: int, facts: int, total: int) -> Any:
    """Σ (code - zero) · activation in float32, for words of 16 or 32 activations at `x`.

    Second digits lie `second` bytes behind `x`; `total` is the address of the activations' sum.
    """
    none = splat_i32(np.int32(0))
    sums = to_f32(dot(none, words, x, codes)) * splat_f32(load_f32(facts + _UNIT))
    if load_i32(facts + _SECOND_UNIT) != 0:
        digits = to_f32(dot(none, words, x + second, codes))
        sums = fma(digits, splat_f32(load_f32(facts + _SECOND_UNIT)), sums)
    return sums - splat_f32(load_f32(total)) * code_offset(codes)


def _add_group(acc: Any, weights: Any, codes: Codes, x: int, second: int, facts: int) -> Any:
    """acc + one group's products; `weights` as `unpack` returns them, `facts` of this group."""
    raise TypeError("for compiled code")


@overload(_add_group, jit_options={"forceinline": True})
def _choose_add_group(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
    def symmetric(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        words, scale = weights
        return fma(_products(words, codes, x, second, facts, facts + _TOTAL), scale, acc)

    def with_minimum(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        words, scale, minimum = weights
        acc = acc - minimum * splat_f32(load_f32(facts + _TOTAL))
        return fma(_products(words, codes, x, second, facts, facts + _TOTAL), scale, acc)

    def halves(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        low, high, scale_low, scale_high = weights
        acc = fma(_products(low, codes, x, second, facts, facts + _LOW_TOTAL), scale_low, acc)
        return fma(_products(high, codes, x + 16, second, facts, facts + _HIGH_TOTAL), scale_high, acc)

    def halves_with_minimum(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        low, high, scale_low, scale_high, minimum_low, minimum_high = weights
        acc = acc - minimum_low * splat_f32(load_f32(facts + _LOW_TOTAL))
        acc = acc - minimum_high * splat_f32(load_f32(facts + _HIGH_TOTAL))
        acc = fma(_products(low, codes, x, second, facts, facts + _LOW_TOTAL), scale_low, acc)
        return fma(_products(high, codes, x + 16, second, facts, facts + _HIGH_TOTAL), scale_high, acc)

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
    group_bytes = LANES * sum(p.n_bytes for p in PLANES[codes.name]) * GROUP // FORMATS[codes.name].block_size
    step_facts = 4 * FACTS

    @kernel
    def matmul(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        first, last = share(a.n_panels, thread, s.n_threads)
        n = s.n_wanted if a.on_wanted else s.n_rows
        groups, second = a.width // GROUP, a.width
        zero = splat_f32(np.float32(0.0))
        for panel in range(first, last):
            weights = a.weights + panel * a.panel_bytes
            token = 0
            while token + TILE <= n:
                x0 = a.x + token * a.x_stride
                x1, x2, x3 = x0 + a.x_stride, x0 + 2 * a.x_stride, x0 + 3 * a.x_stride
                f0 = x0 + 2 * a.width
                f1, f2, f3 = f0 + a.x_stride, f0 + 2 * a.x_stride, f0 + 3 * a.x_stride
                acc0, acc1, acc2, acc3 = zero, zero, zero, zero
                for g in range(groups):
                    w = unpack(codes, weights, a.n_blocks, g)
                    at, facts = g * GROUP, g * step_facts
                    acc0 = _add_group(acc0, w, codes, x0 + at, second, f0 + facts)
                    acc1 = _add_group(acc1, w, codes, x1 + at, second, f1 + facts)
                    acc2 = _add_group(acc2, w, codes, x2 + at, second, f2 + facts)
                    acc3 = _add_group(acc3, w, codes, x3 + at, second, f3 + facts)
                _write(a, token, panel, acc0)
                _write(a, token + 1, panel, acc1)
                _write(a, token + 2, panel, acc2)
                _write(a, token + 3, panel, acc3)
                token += TILE
            while token < n:
                x0 = a.x + token * a.x_stride
                f0 = x0 + 2 * a.width
                acc0 = zero
                ahead = weights + AHEAD
                for g in range(groups):
                    for line in range(0, group_bytes, 64):
                        prefetch(ahead + line)
                    ahead += group_bytes
                    w = unpack(codes, weights, a.n_blocks, g)
                    acc0 = _add_group(acc0, w, codes, x0 + g * GROUP, second, f0 + g * step_facts)
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
