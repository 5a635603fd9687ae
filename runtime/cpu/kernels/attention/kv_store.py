"""Writes keys and values to the paged KV cache, quantising those whose type is Q8_0 or Q4_0."""

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
from .kv_cache import arguments_at, codes_bytes, kinds, limit_of, padded_dim, pieces, value_row
from .rotation import rotate_head, turn_key

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
def _quantize_head(kind: Codes, x: int, codes: int, dim: int, scales: int, page_size: int) -> bool:
    """Quantise float32 [dim] at `x`: codes to address `codes`, the fp16 scale of each 32 to `scales`, from
    where they are `page_size` numbers apart. Returns False if one of them is not finite."""
    finite = True
    for g in range(dim // GROUP):
        group = x + 4 * GROUP * g
        if not _quantize_group(kind, group, codes + GROUP * g, scales + 2 * page_size * g):
            finite = False
    return finite


def _store_key(kind: Codes, a: Any, keys: int, page_size: int, slot: int, k: int, codes: int) -> None:
    """Write a key to `slot` of the piece at `keys`.

    `k` is the address of float32 [dim], padded with zeros; `codes` is scratch of dim bytes.
    """
    raise TypeError("for compiled code")


@overload(_store_key, jit_options={"forceinline": True})
def _choose_store_key(kind: Any, a: Any, keys: Any, page_size: Any, slot: Any, k: Any, codes: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)

    def floats(kind: Any, a: Any, keys: Any, page_size: Any, slot: Any, k: Any, codes: Any) -> Any:
        for d in range(a.head_dim):
            store_float(kind, keys + (d * page_size + slot) * size, load_f32(k + 4 * d))

    def bytes_(kind: Any, a: Any, keys: Any, page_size: Any, slot: Any, k: Any, codes: Any) -> Any:
        dim, scales = padded_dim(a), keys + codes_bytes(kind, a, page_size)
        _quantize_head(kind, k, codes, dim, scales + 2 * slot, page_size)
        for d in range(dim):
            store_i8(keys + (d // 2 * page_size + slot) * 2 + d % 2, load_i8(codes + d))

    def nibbles(kind: Any, a: Any, keys: Any, page_size: Any, slot: Any, k: Any, codes: Any) -> Any:
        dim, scales = padded_dim(a), keys + codes_bytes(kind, a, page_size)
        _quantize_head(kind, k, codes, dim, scales + 2 * slot, page_size)
        for i in range(dim // 2):
            d = codes + i // 2 * 4 + i % 2
            key = keys + (i // 2 * page_size + slot) * 2 + i % 2
            store_i8(key, (load_i8(d) & 15) | (load_i8(d + 2) << 4))

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.value.name]


def _spoil_key(kind: Codes, a: Any, keys: int, page_size: int, slot: int) -> None:
    """Make the key in `slot` NaN."""
    raise TypeError("for compiled code")


@overload(_spoil_key, jit_options={"forceinline": True})
def _choose_spoil_key(kind: Any, a: Any, keys: Any, page_size: Any, slot: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)

    def floats(kind: Any, a: Any, keys: Any, page_size: Any, slot: Any) -> Any:
        store_float(kind, keys + slot * size, NAN)

    def ints(kind: Any, a: Any, keys: Any, page_size: Any, slot: Any) -> Any:
        store_f16(keys + codes_bytes(kind, a, page_size) + 2 * slot, NAN)

    return floats if size else ints


def _store_value(kind: Codes, a: Any, values: int, page_size: int, slot: int, v: int, codes: int) -> bool:
    """Write a value to `slot` of the piece at `values`; arguments as those of `_store_key`.

    Returns False, and writes zeros, if one of its numbers is not finite.
    """
    raise TypeError("for compiled code")


@overload(_store_value, jit_options={"forceinline": True})
def _choose_store_value(kind: Any, a: Any, values: Any, page_size: Any, slot: Any, v: Any, codes: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)

    def floats(kind: Any, a: Any, values: Any, page_size: Any, slot: Any, v: Any, codes: Any) -> Any:
        dim = padded_dim(a)
        finite = _all_finite(v, dim)
        for d in range(a.head_dim):
            if size == 2 and abs(load_f32(v + 4 * d)) > np.float32(65504.0):
                finite = False
        for d in range(a.head_dim):
            store_float(kind, values + (slot * dim + d) * size, load_f32(v + 4 * d) if finite else ZERO)
        return finite

    def bytes_(kind: Any, a: Any, values: Any, page_size: Any, slot: Any, v: Any, codes: Any) -> Any:
        finite, value = _quantize_value(kind, a, values, page_size, slot, v, codes)
        for d in range(padded_dim(a)):
            store_i8(value + 2 * d, load_i8(codes + d))
        return finite

    def nibbles(kind: Any, a: Any, values: Any, page_size: Any, slot: Any, v: Any, codes: Any) -> Any:
        finite, value = _quantize_value(kind, a, values, page_size, slot, v, codes)
        for i in range(padded_dim(a) // 2):
            d = codes + i // 16 * GROUP + i % 16
            store_i8(value + 2 * i, (load_i8(d) & 15) | (load_i8(d + 16) << 4))
        return finite

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.value.name]


@jit
def _quantize_value(kind: Codes, a: Any, values: int, page_size: int, slot: int, v: int, codes: int) -> Any:
    """(whether a value is finite, address of its first code): quantise it, and write its scales.

    They are 0 if it is not finite.
    """
    dim, all_codes = padded_dim(a), codes_bytes(kind, a, page_size)
    scales = values + all_codes + 2 * slot
    finite = _quantize_head(kind, v, codes, dim, scales, page_size)
    if not finite:
        for g in range(dim // GROUP):
            store_f16(scales + 2 * page_size * g, ZERO)
    return finite, values + value_row(slot) * (2 * all_codes // page_size) + slot % 32 // 16


@jit
def store_token(
    key_kind: Codes,
    value_kind: Codes,
    a: Any,
    s: Any,
    sequence: int,
    position: int,
    h: int,
    k: int,
    v: int,
    codes: int,
) -> None:
    """Write key and value of kv head `h` at a position of a sequence.

    `k` and `v` are addresses of float32 [dim], padded with zeros; `codes` is scratch of dim bytes. What the
    cache has rotated is changed in place.
    """
    slot = position % s.page_size
    if limit_of(key_kind) != 0:
        turn_key(a, k, h)
    if limit_of(value_kind) != 0 and a.value_rotation > 0:
        rotate_head(v, a.value_dim, a.value_rotation)
    keys, values = pieces(key_kind, value_kind, a, s, sequence, position, h)
    _store_key(key_kind, a, keys, s.page_size, slot, k, codes)
    if not _store_value(value_kind, a, values, s.page_size, slot, v, codes):
        _spoil_key(key_kind, a, keys, s.page_size, slot)


def _store_kernel(key_kind: Codes, value_kind: Codes) -> EntryPoint:
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
                store_token(key_kind, value_kind, a, s, sequence, position, h, k, v, codes)

    return store_kv


KV_STORES = {name: _store_kernel(*kinds(name)) for name in CACHE_TYPES}
