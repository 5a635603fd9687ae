"""Matrix-vector products, for steps of one row: packed weights are read once, at the speed of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from .....quant.formats import FORMATS
from .....quant.jit.jit import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import fma, load_f32, load_i32, prefetch, splat_f32, splat_i32, storev_f32, to_f32
from ...abi.sizes import FACTS, FLOAT_BYTES, HIGH_TOTAL, LOW_TOTAL, SECOND_UNIT, TOTAL, UNIT
from ...simd.dot8 import Codes, code_offset, dot
from ...simd.panels import PLANES
from ...simd.tile_sizes import GROUP, VECTOR
from ..common.access import share, step_at
from ..common.vector_math import FLOATS, constant, load_floats
from .epilogue import finish, gated_outputs, matmul_at
from .unpack import CODES, unpack

AHEAD = 4096  # bytes between what is read and what is fetched: weights come from memory, in order
FACTS_BYTES = 4 * FACTS


@jit
def _products(words: Any, codes: Codes, x: int, second: int, facts: int, total: int) -> Any:
    """Σ (code - zero) · activation in float32, for words of 16 or 32 activations at `x`.

    Second digits lie `second` bytes behind `x`; `total` is the address of the activations' sum.
    """
    none = splat_i32(np.int32(0))
    sums = to_f32(dot(none, words, x, codes)) * splat_f32(load_f32(facts + UNIT))
    if load_i32(facts + SECOND_UNIT) != 0:
        digits = to_f32(dot(none, words, x + second, codes))
        sums = fma(digits, splat_f32(load_f32(facts + SECOND_UNIT)), sums)
    return sums - splat_f32(load_f32(total)) * code_offset(codes)


def _add_group(acc: Any, weights: Any, codes: Codes, x: int, second: int, facts: int) -> Any:
    """acc + one group's products; `weights` as `unpack` returns them, `facts` of this group."""
    raise TypeError("for compiled code")


@overload(_add_group, jit_options={"forceinline": True})
def _choose_add_group(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
    def symmetric(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        words, scale = weights
        return fma(_products(words, codes, x, second, facts, facts + TOTAL), scale, acc)

    def with_minimum(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        words, scale, minimum = weights
        acc = acc - minimum * splat_f32(load_f32(facts + TOTAL))
        return fma(_products(words, codes, x, second, facts, facts + TOTAL), scale, acc)

    def halves(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        low, high, scale_low, scale_high = weights
        acc = fma(_products(low, codes, x, second, facts, facts + LOW_TOTAL), scale_low, acc)
        return fma(_products(high, codes, x + 16, second, facts, facts + HIGH_TOTAL), scale_high, acc)

    def halves_with_minimum(acc: Any, weights: Any, codes: Any, x: Any, second: Any, facts: Any) -> Any:
        low, high, scale_low, scale_high, minimum_low, minimum_high = weights
        acc = acc - minimum_low * splat_f32(load_f32(facts + LOW_TOTAL))
        acc = acc - minimum_high * splat_f32(load_f32(facts + HIGH_TOTAL))
        acc = fma(_products(low, codes, x, second, facts, facts + LOW_TOTAL), scale_low, acc)
        return fma(_products(high, codes, x + 16, second, facts, facts + HIGH_TOTAL), scale_high, acc)

    if not isinstance(weights, types.BaseTuple):
        return None
    return {2: symmetric, 3: with_minimum, 4: halves, 6: halves_with_minimum}[len(weights)]


@jit
def _step(
    acc: Any, codes: Codes, panel: int, n_blocks: int, group: int, x: int, second: int, facts: int
) -> Any:
    """acc + the products of group number `group`."""
    w = unpack(codes, panel, n_blocks, group)
    return _add_group(acc, w, codes, x + group * GROUP, second, facts + group * FACTS_BYTES)


@jit
def _by_group(codes: Codes, panel: int, a: Any, x: int, group_bytes: int) -> Any:
    """A panel's products with the row at `x`, for blocks of one group."""
    facts, acc, ahead = x + 2 * a.width, constant(0.0), panel + AHEAD
    for g in range(a.n_blocks):
        for line in range(0, group_bytes, 64):
            prefetch(ahead + line)
        ahead += group_bytes
        acc = _step(acc, codes, panel, a.n_blocks, g, x, a.width, facts)
    return acc


@jit
def _by_block(codes: Codes, panel: int, a: Any, x: int, group_bytes: int) -> Any:
    """The same for blocks of 8 groups: written out, so that groups share what they load of a block."""
    n, width = a.n_blocks, a.width
    facts, acc, ahead = x + 2 * width, constant(0.0), panel + AHEAD
    for block in range(n):
        for line in range(0, 8 * group_bytes, 64):
            prefetch(ahead + line)
        ahead += 8 * group_bytes
        g = 8 * block
        acc = _step(acc, codes, panel, n, g, x, width, facts)
        acc = _step(acc, codes, panel, n, g + 1, x, width, facts)
        acc = _step(acc, codes, panel, n, g + 2, x, width, facts)
        acc = _step(acc, codes, panel, n, g + 3, x, width, facts)
        acc = _step(acc, codes, panel, n, g + 4, x, width, facts)
        acc = _step(acc, codes, panel, n, g + 5, x, width, facts)
        acc = _step(acc, codes, panel, n, g + 6, x, width, facts)
        acc = _step(acc, codes, panel, n, g + 7, x, width, facts)
    return acc


@jit
def _float_row(kind: Codes, panel: int, a: Any, x: int, stride: int) -> Any:
    """A panel of floats. Four sums, so that the multiply-adds do not wait for each other."""
    acc0, acc1, acc2, acc3 = constant(0.0), constant(0.0), constant(0.0), constant(0.0)
    k = 0
    while k + 4 <= a.width:
        at = panel + k * stride
        prefetch(at + AHEAD)
        acc0 = fma(load_floats(kind, at), splat_f32(load_f32(x + 4 * k)), acc0)
        acc1 = fma(load_floats(kind, at + stride), splat_f32(load_f32(x + 4 * k + 4)), acc1)
        acc2 = fma(load_floats(kind, at + 2 * stride), splat_f32(load_f32(x + 4 * k + 8)), acc2)
        acc3 = fma(load_floats(kind, at + 3 * stride), splat_f32(load_f32(x + 4 * k + 12)), acc3)
        k += 4
    while k < a.width:
        acc0 = fma(load_floats(kind, panel + k * stride), splat_f32(load_f32(x + 4 * k)), acc0)
        k += 1
    return (acc0 + acc1) + (acc2 + acc3)


def _product(codes: Codes, panel: int, a: Any, x: int) -> Any:
    """A panel's products with the row at `x`, in the way of its format."""
    raise TypeError("for compiled code")


@overload(_product, jit_options={"forceinline": True})
def _choose_product(codes: Any, panel: Any, a: Any, x: Any) -> Any:
    name = codes.value.name
    if name in FLOATS:
        product, size = _float_row, FLOAT_BYTES[name] * LANES
    else:
        block = FORMATS[name].block_size
        product = _by_group if block == GROUP else _by_block
        size = LANES * sum(p.n_bytes for p in PLANES[name]) * GROUP // block

    def row(codes: Any, panel: Any, a: Any, x: Any) -> Any:
        return product(codes, panel, a, x, size)

    return row


def _matvec(codes: Codes) -> EntryPoint:
    """The kernel for one format."""

    @kernel
    def matvec(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        x = a.x + thread * a.x_private
        first, last = share(a.n_panels, thread, s.n_threads)
        if a.on_logits_rows and s.n_logits == 0:
            last = first
        e, share_at = np.int64(0), 0
        if a.choice != 0:
            e = np.int64(load_f32(a.choice + thread * a.choice_private))
        if a.share != 0:
            share_at = a.share + thread * a.choice_private
        weights, bias = a.weights + e * a.expert_bytes, e * a.bias_stride
        for panel in range(first, last):
            column = panel * VECTOR
            if a.gate:
                at = weights + panel * a.pair_bytes
                value = _product(codes, at, a, x)
                other = _product(codes, at + a.other_bytes, a, x)
                storev_f32(a.out + column, gated_outputs(a, column, bias, value, other))
            else:
                value = _product(codes, weights + panel * a.panel_bytes, a, x)
                finish(a, a.out, column, bias, share_at, value)

    return matvec


MATVECS: dict[str, EntryPoint] = {name: _matvec(codes) for name, codes in (CODES | FLOATS).items()}
