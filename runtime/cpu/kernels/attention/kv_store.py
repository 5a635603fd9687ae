"""Writes keys and values to the paged KV cache, quantising them if the cache is Q8_0 or Q4_0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import lane_max, lane_sum, maximum, minimum, round_even, splat_f32, to_i32
from .....quant.jit.simd.memory import (
    load_f32,
    load_i32,
    loadv_f32,
    store_f16,
    store_f32,
    storev_f32,
    storev_i8,
)
from ...abi.sizes import CACHE_TYPES, FLOAT_BYTES
from ...simd.dot8 import Codes
from ...simd.dot16 import load_f16, load_i8, store_i8
from ...simd.tile_sizes import GROUP
from ..common.access import step_at
from ..common.float_types import store_float
from ..common.partition import partition_rows
from ..common.vector_math import constant
from .kv_cache import KINDS, arguments_at, limit_of, padded_dim, pieces, value_row
from .rotation import rotate_head

NAN: Any = np.float32(np.nan)
ZERO: Any = np.float32(0.0)


@jit
def copy_padded(source: int, out: int, n: int, dim: int) -> None:
    """Copy float32 [n] from `source` to `out`, padded with zeros to [dim]."""
    for i in range(n):
        store_f32(out + 4 * i, load_f32(source + 4 * i))
    for i in range(n, dim):
        store_f32(out + 4 * i, ZERO)


@jit
def _subtract(x: int, offset: int, dim: int) -> None:
    """x - offset, float32 [dim], in place."""
    for d in range(0, 4 * dim, 4 * LANES):
        storev_f32(x + d, loadv_f32(x + d) - loadv_f32(offset + d))


@jit
def _all_finite(x: int, dim: int) -> bool:
    """Whether float32 [dim] at `x` has neither NaN nor infinity."""
    total = constant(0.0)
    for i in range(0, 4 * dim, 4 * LANES):
        total = total + loadv_f32(x + i) * constant(0.0)
    return lane_sum(total) == 0


@jit
def _quantize_group(kind: Codes, x: int, codes: int, scale: int) -> bool:
    """Quantise 32 float32 at `x`: int8 codes to address `codes`, the fp16 scale to address `scale`.

    Q8_0: codes -127…127, the largest magnitude at an end. Q4_0: codes -8…7, the largest magnitude at -8, as
    in the GGUF format. Returns False, with a scale of NaN, if a value or the scale is not finite.
    """
    highest, lowest, total = constant(0.0), constant(0.0), constant(0.0)
    for i in range(0, 4 * GROUP, 4 * LANES):
        values = loadv_f32(x + i)
        highest, lowest = maximum(values, highest), minimum(values, lowest)
        total = total + values * constant(0.0)
    high, low = lane_max(highest), lane_max(constant(0.0) - lowest)
    if limit_of(kind) == 8:
        step = -high / np.float32(8.0) if high > low else low / np.float32(8.0)
        least, most = constant(-8.0), constant(7.0)
    else:
        step = max(high, low) / np.float32(127.0)
        least, most = constant(-127.0), constant(127.0)
    store_f16(scale, step)
    step = load_f16(scale)  # the codes are for the scale as it is stored
    finite = lane_sum(total) + step * ZERO == 0
    if not finite:
        store_f16(scale, NAN)
    inverse = splat_f32(np.float32(1.0) / step if finite and step != 0 else ZERO)
    for i in range(0, GROUP, LANES):
        code = round_even(loadv_f32(x + 4 * i) * inverse)
        storev_i8(codes + i, to_i32(maximum(least, minimum(most, code))))
    return finite


@jit
def _quantize_pair(
    kind: Codes, x: int, codes: int, n: int, keys: int, values: int, page_size: int, slot: int, scales: int
) -> None:
    """Quantise a key and then its value, n float32 at `x`: codes to address `codes`, scales to the pieces.

    `keys` and `values` are the addresses of the pieces, `slot` the token's number in the page, `scales` the
    byte offset of the scales in a piece. If the value is not finite, its scale becomes 0 and the key's NaN.
    """
    finite = True
    first = keys + scales + 2 * slot
    for g in range(0, n, GROUP):
        group, is_value = g // GROUP, 2 * g >= n
        scale = first + 2 * group * page_size
        if is_value:
            scale = values + scales + 2 * ((group - n // 2 // GROUP) * page_size + slot)
        group_finite = _quantize_group(kind, x + 4 * g, codes + g, scale)
        if is_value and not group_finite:
            finite = False
            store_f16(scale, ZERO)
    if not finite:
        store_f16(first, NAN)


def _store_token(
    kind: Codes, a: Any, keys: int, values: int, page_size: int, slot: int, k: int, v: int, codes: int
) -> None:
    """Write a key and a value to `slot` of the pieces at `keys` and `values`.

    `k` and `v` are addresses of float32 [dim], padded with zeros, v right behind k; `codes` is scratch of
    2 · dim bytes.
    """
    raise TypeError("for compiled code")


@overload(_store_token, jit_options={"forceinline": True})
def _choose_store_token(
    kind: Any, a: Any, keys: Any, values: Any, page_size: Any, slot: Any, k: Any, v: Any, codes: Any
) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)

    def floats(
        kind: Any, a: Any, keys: Any, values: Any, page_size: Any, slot: Any, k: Any, v: Any, codes: Any
    ) -> Any:
        dim = padded_dim(a)
        finite = _all_finite(v, dim)
        value = values + slot * dim * size
        for d in range(a.head_dim):
            x = load_f32(v + 4 * d)
            if size == 2 and abs(x) > np.float32(65504.0):
                finite = False
            store_float(kind, keys + (d * page_size + slot) * size, load_f32(k + 4 * d))
        for d in range(a.head_dim):
            x = load_f32(v + 4 * d)
            store_float(kind, value + d * size, x if finite else ZERO)
        if not finite:
            store_float(kind, keys + slot * size, NAN)

    def bytes_(
        kind: Any, a: Any, keys: Any, values: Any, page_size: Any, slot: Any, k: Any, v: Any, codes: Any
    ) -> Any:
        dim = padded_dim(a)
        value = values + value_row(slot) * dim * 2 + slot % 32 // 16
        _quantize_pair(kind, k, codes, 2 * dim, keys, values, page_size, slot, dim * page_size)
        for d in range(dim):
            store_i8(keys + (d // 2 * page_size + slot) * 2 + d % 2, load_i8(codes + d))
            store_i8(value + 2 * d, load_i8(codes + dim + d))

    def nibbles(
        kind: Any, a: Any, keys: Any, values: Any, page_size: Any, slot: Any, k: Any, v: Any, codes: Any
    ) -> Any:
        dim = padded_dim(a)
        value = values + value_row(slot) * dim + slot % 32 // 16
        _quantize_pair(kind, k, codes, 2 * dim, keys, values, page_size, slot, dim // 2 * page_size)
        for i in range(dim // 2):
            d = codes + i // 2 * 4 + i % 2
            key = keys + (i // 2 * page_size + slot) * 2 + i % 2
            store_i8(key, (load_i8(d) & 15) | (load_i8(d + 2) << 4))
            d = codes + dim + i // 16 * GROUP + i % 16
            store_i8(value + 2 * i, (load_i8(d) & 15) | (load_i8(d + 16) << 4))

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.value.name]


@jit
def store_token(
    kind: Codes, a: Any, s: Any, sequence: int, position: int, h: int, k: int, v: int, codes: int
) -> None:
    """Write key and value of kv head `h` at a position of a sequence; the rest as in `_store_token`.

    Where the cache is rotated, k and v are changed in place.
    """
    if limit_of(kind) != 0 and a.rotation > 0:
        if a.key_offsets != 0:
            _subtract(k, a.key_offsets + 4 * h * padded_dim(a), padded_dim(a))
        rotate_head(k, a.head_dim, a.rotation)
        rotate_head(v, a.value_dim, a.rotation)
    keys, values = pieces(kind, a, s, sequence, position, h)
    _store_token(kind, a, keys, values, s.page_size, position % s.page_size, k, v, codes)


def _store_kernel(kind: Codes) -> EntryPoint:
    """The kernel for one cache type."""

    @kernel
    def store_kv(arguments: int, step: int, thread: int) -> None:
        """Write k [rows, kv_heads · head_dim] and v [rows, kv_heads · value_step], float32, to the cache.

        Threads partition the rows.
        """
        a, s = arguments_at(arguments), step_at(step)
        first, last = partition_rows(s.n_rows, thread, s)
        dim = padded_dim(a)
        k = a.scratch + thread * a.scratch_stride
        v = k + 4 * dim
        codes = v + 4 * dim
        for t in range(first, last):
            sequence, position = load_i32(s.sequences + 4 * t), load_i32(s.positions + 4 * t)
            for h in range(a.kv_heads):
                copy_padded(a.k + t * a.k_stride + 4 * h * a.head_dim, k, a.head_dim, dim)
                copy_padded(a.v + t * a.v_stride + 4 * h * a.value_step, v, a.value_dim, dim)
                store_token(kind, a, s, sequence, position, h, k, v, codes)

    return store_kv


KV_STORES = {name: _store_kernel(KINDS[name]) for name in CACHE_TYPES}
