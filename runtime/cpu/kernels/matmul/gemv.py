"""Matrix-vector products (gemv) of a decode step: out = W · x, reading the packed weights once.

W lies in panels of LANES rows side by side: each lane accumulates its own row, and activations are broadcast
to all lanes, so that no sum crosses lanes. Block-quantised weights are multiplied with the activations that
`quantize_row` made, as integers within a group of 32 columns and float32 across groups, in the order and with
the roundings of `simd/row_products.py`, so that a row is the same bits alone and beside others; float weights
with float32 activations. Threads partition the panels, of several products together where experts are alike
(`pooled`), and prefetch weights AHEAD bytes before they use them, but no other thread's, or leave that to the
processor (FOLLOWED).
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.extending import overload

from .....quant.formats import FORMATS
from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, splat_f32, splat_i32, to_f32
from .....quant.jit.simd.memory import load_f32, load_i32, prefetch, prefetch_far, storev_f32
from ...abi.sizes import FLOAT_BYTES
from ...simd.dot8 import Codes, code_offset, dot
from ...simd.tile_sizes import (
    GROUP,
    GROUP_STATS,
    GROUP_SUM,
    HIGH_SUM,
    LOW_SUM,
    RESIDUAL_SCALE,
    SCALE,
    VECTOR,
)
from ..common.access import step_at
from ..common.float_types import FLOATS, load_floats
from ..common.partition import pooled
from ..common.vector_math import constant
from .epilogue import finish, gated_outputs, matmul_at
from .unpack import CODES, unpack
from .unpack_words import group_bytes

# Prefetch distance in bytes. With 512-bit vectors it pays to prefetch into the L2 cache, which can wait for
# more lines at a time than the L1 cache; formats of small blocks gain from a second prefetch into that, NEAR
# bytes ahead (docs/performance.md).
AHEAD, early = (32768, prefetch_far) if LANES == 16 else (4096, prefetch)
NEAR = 1024 if LANES == 16 else 0
# Formats whose panels the processor's own prefetchers follow: AMD's Zen reads what lies in the order of use a
# fifth faster without prefetches, whatever their distance, and other blocks of 256 slower.
SMALL_BLOCKS = {name for name in CODES if FORMATS[name].block_size < 256}
FOLLOWED = SMALL_BLOCKS | {"Q6_K"} if llvm.get_host_cpu_name().startswith("znver") else set()
STATS_BYTES = 4 * GROUP_STATS


@jit
def _products(words: Any, codes: Codes, x: int, residual: int, stats: int, group_sum: int) -> Any:
    """Σ (code - zero) · activation of each lane's row as F32, over the 16 or 32 columns of `words`.

    `x` is the address of the int8 codes of the activations, `residual` the distance in bytes to their
    residual codes, `stats` the address of their group's GROUP_STATS, `group_sum` the address of their float32
    sum.
    """
    zero = splat_i32(np.int32(0))
    sums = to_f32(dot(zero, words, x, codes)) * splat_f32(load_f32(stats + SCALE))
    if load_i32(stats + RESIDUAL_SCALE) != 0:
        residuals = to_f32(dot(zero, words, x + residual, codes))
        sums = fma(residuals, splat_f32(load_f32(stats + RESIDUAL_SCALE)), sums)
    return fma(splat_f32(load_f32(group_sum)), constant(0.0) - code_offset(codes), sums)


def _add_group(acc: Any, weights: Any, codes: Codes, x: int, residual: int, stats: int) -> Any:
    """acc + the products of one group of 32 columns; `weights` as `unpack` returns them."""
    raise TypeError("for compiled code")


@overload(_add_group, jit_options={"forceinline": True})
def _choose_add_group(acc: Any, weights: Any, codes: Any, x: Any, residual: Any, stats: Any) -> Any:
    def symmetric(acc: Any, weights: Any, codes: Any, x: Any, residual: Any, stats: Any) -> Any:
        words, scale = weights
        return fma(_products(words, codes, x, residual, stats, stats + GROUP_SUM), scale, acc)

    def with_minimum(acc: Any, weights: Any, codes: Any, x: Any, residual: Any, stats: Any) -> Any:
        words, scale, minimum = weights
        acc = fma(constant(0.0) - minimum, splat_f32(load_f32(stats + GROUP_SUM)), acc)
        return fma(_products(words, codes, x, residual, stats, stats + GROUP_SUM), scale, acc)

    def halves(acc: Any, weights: Any, codes: Any, x: Any, residual: Any, stats: Any) -> Any:
        low, high, scale_low, scale_high = weights
        acc = fma(_products(low, codes, x, residual, stats, stats + LOW_SUM), scale_low, acc)
        return fma(_products(high, codes, x + 16, residual, stats, stats + HIGH_SUM), scale_high, acc)

    def halves_with_minimum(acc: Any, weights: Any, codes: Any, x: Any, residual: Any, stats: Any) -> Any:
        low, high, scale_low, scale_high, minimum_low, minimum_high = weights
        acc = fma(constant(0.0) - minimum_low, splat_f32(load_f32(stats + LOW_SUM)), acc)
        acc = fma(_products(low, codes, x, residual, stats, stats + LOW_SUM), scale_low, acc)
        acc = fma(constant(0.0) - minimum_high, splat_f32(load_f32(stats + HIGH_SUM)), acc)
        return fma(_products(high, codes, x + 16, residual, stats, stats + HIGH_SUM), scale_high, acc)

    if not isinstance(weights, types.BaseTuple):
        return None
    return {2: symmetric, 3: with_minimum, 4: halves, 6: halves_with_minimum}[len(weights)]


@jit
def _step(
    acc: Any, codes: Codes, panel: int, n_blocks: int, group: int, x: int, residual: int, stats: int
) -> Any:
    """acc + the products of group number `group` of the panel."""
    w = unpack(codes, panel, n_blocks, group)
    return _add_group(acc, w, codes, x + group * GROUP, residual, stats + group * STATS_BYTES)


@jit
def _step_ahead(
    acc: Any,
    codes: Codes,
    panel: int,
    n_blocks: int,
    block: int,
    i: int,
    x: int,
    residual: int,
    stats: int,
    ahead: int,
    n_bytes: int,
) -> Any:
    """acc + the products of group `i` of a block of 8; before them, prefetch the group's share of the lines
    of the block at address `ahead`, `n_bytes` a group."""
    for line in range((i * n_bytes + 63) & -64, (i + 1) * n_bytes, 64):
        early(ahead + line)
    return _step(acc, codes, panel, n_blocks, 8 * block + i, x, residual, stats)


@jit
def _by_group(codes: Codes, panel: int, end: int, a: Any, x: int, group_bytes: int, groups: int) -> Any:
    """Products of a panel with the quantised row at `x`, for formats with blocks of 32 or 64.

    A block has so many `groups`, each of which prefetches `group_bytes` bytes; `end` is the address behind
    the thread's part of the matrix.
    """
    stats, acc, ahead, last = x + 2 * a.width, constant(0.0), panel + AHEAD, end - group_bytes
    near = panel + NEAR
    for g in range(a.n_blocks * groups):
        ahead = min(ahead, last)
        for line in range(0, group_bytes, 64):
            early(ahead + line)
            if NEAR > 0:
                prefetch(near + line)
        ahead, near = ahead + group_bytes, near + group_bytes
        acc = _step(acc, codes, panel, a.n_blocks, g, x, a.width, stats)
    return acc


@jit
def _by_block(codes: Codes, panel: int, end: int, a: Any, x: int, group_bytes: int, groups: int) -> Any:
    """The same for formats with blocks of 256 (8 groups).

    The groups are unrolled, so that LLVM loads the shared parts of a block once. Each prefetches its share of
    a block, since many lines asked for at once keep all other loads waiting.
    """
    n, width = a.n_blocks, a.width
    stats, acc, ahead, last = x + 2 * width, constant(0.0), panel + AHEAD, end - 8 * group_bytes
    for block in range(n):
        ahead = min(ahead, last)
        acc = _step_ahead(acc, codes, panel, n, block, 0, x, width, stats, ahead, group_bytes)
        acc = _step_ahead(acc, codes, panel, n, block, 1, x, width, stats, ahead, group_bytes)
        acc = _step_ahead(acc, codes, panel, n, block, 2, x, width, stats, ahead, group_bytes)
        acc = _step_ahead(acc, codes, panel, n, block, 3, x, width, stats, ahead, group_bytes)
        acc = _step_ahead(acc, codes, panel, n, block, 4, x, width, stats, ahead, group_bytes)
        acc = _step_ahead(acc, codes, panel, n, block, 5, x, width, stats, ahead, group_bytes)
        acc = _step_ahead(acc, codes, panel, n, block, 6, x, width, stats, ahead, group_bytes)
        acc = _step_ahead(acc, codes, panel, n, block, 7, x, width, stats, ahead, group_bytes)
        ahead += 8 * group_bytes
    return acc


@jit
def _float_row(kind: Codes, panel: int, end: int, a: Any, x: int, stride: int) -> Any:
    """Products of a panel of floats with float32 [width] at `x`; a column of the panel has `stride` bytes.

    Four accumulators hide the latency of the multiply-adds.
    """
    acc0, acc1, acc2, acc3 = constant(0.0), constant(0.0), constant(0.0), constant(0.0)
    k = 0
    while k + 4 <= a.width:
        at = panel + k * stride
        early(min(at + AHEAD, end - 64))
        acc0 = fma(load_floats(kind, at), splat_f32(load_f32(x + 4 * k)), acc0)
        acc1 = fma(load_floats(kind, at + stride), splat_f32(load_f32(x + 4 * k + 4)), acc1)
        acc2 = fma(load_floats(kind, at + 2 * stride), splat_f32(load_f32(x + 4 * k + 8)), acc2)
        acc3 = fma(load_floats(kind, at + 3 * stride), splat_f32(load_f32(x + 4 * k + 12)), acc3)
        k += 4
    while k < a.width:
        acc0 = fma(load_floats(kind, panel + k * stride), splat_f32(load_f32(x + 4 * k)), acc0)
        k += 1
    return (acc0 + acc1) + (acc2 + acc3)


def _product(codes: Codes, panel: int, end: int, a: Any, x: int) -> Any:
    """Products of a panel with the row at `x`, F32: one output a lane; `end` as in `_by_group`."""
    raise TypeError("for compiled code")


@overload(_product, jit_options={"forceinline": True})
def _choose_product(codes: Any, panel: Any, end: Any, a: Any, x: Any) -> Any:
    name = codes.value.name
    if name in FLOATS:
        stride = FLOAT_BYTES[name] * LANES

        def float_row(codes: Any, panel: Any, end: Any, a: Any, x: Any) -> Any:
            return _float_row(codes, panel, end, a, x, stride)

        return float_row
    groups = FORMATS[name].block_size // GROUP
    product = _by_block if groups == 8 else _by_group
    size = 0 if name in FOLLOWED else group_bytes(name)

    def row(codes: Any, panel: Any, end: Any, a: Any, x: Any) -> Any:
        return product(codes, panel, end, a, x, size, groups)

    return row


def _gemv(codes: Codes) -> EntryPoint:
    """The kernel for one format."""
    at_first = 0 if codes.name in FOLLOWED else AHEAD  # bytes of a thread's part that are asked for at once

    @kernel
    def gemv(arguments: int, step: int, thread: int) -> None:
        """out [n_panels · LANES] = W · x, float32, with the epilogue of `epilogue`.

        With `expert`, W is the matrix of the expert whose number stands at that address.
        """
        a, s = matmul_at(arguments), step_at(step)
        x = a.x + thread * a.x_thread_stride
        first, last = pooled(a, thread, s.n_threads)
        if a.on_logits_rows and s.n_logits == 0:
            last = first
        e, weight_address = np.int64(0), 0
        if a.expert != 0:
            e = np.int64(load_f32(a.expert + thread * a.expert_thread_stride))
        if a.routing_weight != 0:
            weight_address = a.routing_weight + thread * a.expert_thread_stride
        weights, bias = a.weights + e * a.expert_stride, e * a.bias_stride
        end = weights + last * (a.pair_stride if a.gate else a.panel_bytes)
        start = weights + first * (a.pair_stride if a.gate else a.panel_bytes)
        for line in range(start, min(end, start + at_first), 64):
            early(line)
            if a.gate:
                early(line + a.second_offset)
        for panel in range(first, last):
            column = panel * VECTOR
            if a.gate:
                at = weights + panel * a.pair_stride
                value = _product(codes, at, end, a, x)
                other = _product(codes, at + a.second_offset, end + a.second_offset, a, x)
                storev_f32(a.out + column, gated_outputs(a, column, bias, value, other))
            else:
                value = _product(codes, weights + panel * a.panel_bytes, end, a, x)
                finish(a, a.out, column, bias, weight_address, value)

    return gemv


GEMVS: dict[str, EntryPoint] = {name: _gemv(codes) for name, codes in (CODES | FLOATS).items()}
