"""The paged KV cache in memory: how each type lays a page out, and the kernels that write tokens to it.

For each page and kv head, the pool of keys and the pool of values hold one piece (`sizes.pool_bytes`). Tokens
lie in the lanes of key vectors and dimensions in those of value vectors, so that neither scores nor sums
cross lanes:

======  =====================================  ==============================================
type    keys                                   values
======  =====================================  ==============================================
F32/16  [head_dim][token]                      [token][dim]
Q8_0    int8 [dim/2][token][2 dims]            int8 [pair of tokens][dim][2 tokens]
Q4_0    nibbles [dim/4][token][2 bytes]        nibbles [pair of tokens][dim/32][16][2 tokens]
======  =====================================  ==============================================

with dim = `sizes.padded(head_dim)`. A pair of tokens are two that lie 16 apart in their 32. Byte j of four
dimensions' nibbles holds dimension j in its low half and j + 2 in its high half; byte i of a value's 32
holds dimensions i and i + 16. Nibbles are signed. Behind the codes come fp16 scales [dim/32][token].

A pool starts zeroed. Values in it are always finite: a token whose value is not gets a NaN in its *key*,
which only those who may see the token notice. So whole blocks of values can be multiplied, with weight
zero for what must not be seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.jit.jit import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import (
    lane_max,
    lane_sum,
    load_f32,
    load_i32,
    loadv_f32,
    maximum,
    minimum,
    round_even,
    splat_f32,
    store_f16,
    store_f32,
    storev_i8,
    to_i32,
)
from ...abi.records import ATTENTION
from ...abi.sizes import CACHE_TYPES, FLOAT_BYTES
from ...simd.dot8 import Codes
from ...simd.dot16 import load_f16, load_i8, store_i8
from ...simd.tile_sizes import GROUP  # dimensions that share a scale
from ..common.access import reader, share_rows, step_at
from ..common.vector_math import FLOATS, constant, store_float

arguments_at = reader(ATTENTION)

KINDS = {
    "F32": FLOATS["F32"],
    "F16": FLOATS["F16"],
    "Q8_0": Codes("Q8_0", limit=127, signed=True),
    "Q4_0": Codes("Q4_0", limit=8, signed=True),
}
NAN: Any = np.float32(np.nan)
ZERO: Any = np.float32(0.0)


@jit
def page_of(s: Any, sequence: int, position: int) -> int:
    """The pool's page that holds `position` of a sequence."""
    return load_i32(s.blocks + sequence * s.blocks_stride + 4 * (position // s.page_size))


def pieces(kind: Codes, a: Any, s: Any, sequence: int, position: int, h: int) -> Any:
    """Addresses of the keys and the values of kv head `h` in the page that holds a position of a sequence."""
    raise TypeError("for compiled code")


@overload(pieces, jit_options={"forceinline": True})
def _choose_pieces(kind: Any, a: Any, s: Any, sequence: Any, position: Any, h: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)
    sixteenths = (
        17 if kind.value.name == "Q8_0" else 9
    )  # of a byte for each number, with its part of the scale

    def floats(kind: Any, a: Any, s: Any, sequence: Any, position: Any, h: Any) -> Any:
        i = (page_of(s, sequence, position) * a.kv_heads + h) * s.page_size * size
        return a.keys + i * a.head_dim, a.values + i * padded_dim(a)

    def ints(kind: Any, a: Any, s: Any, sequence: Any, position: Any, h: Any) -> Any:
        i = (page_of(s, sequence, position) * a.kv_heads + h) * s.page_size * padded_dim(a) * sixteenths // 16
        return a.keys + i, a.values + i

    return floats if size else ints


@jit
def copy_padded(source: int, out: int, n: int, dim: int) -> None:
    """float32 [n] to [dim], the rest zeros."""
    for i in range(n):
        store_f32(out + 4 * i, load_f32(source + 4 * i))
    for i in range(n, dim):
        store_f32(out + 4 * i, ZERO)


@jit
def _finite(x: int, dim: int) -> bool:
    total = constant(0.0)
    for i in range(0, 4 * dim, 4 * LANES):
        total = total + loadv_f32(x + i) * constant(0.0)
    return lane_sum(total) == 0


@jit
def _group_codes(kind: Codes, x: int, codes: int, scale: int) -> bool:
    """32 float32 → int8 codes and the fp16 at `scale`; False, and a scale of NaN, if they do not fit.

    Q8_0: -127…127, the largest at an end. Q4_0: -8…7, the one farthest from 0 at -8, as in the GGUF format.
    """
    highest, lowest, total = constant(0.0), constant(0.0), constant(0.0)
    for i in range(0, 4 * GROUP, 4 * LANES):
        values = loadv_f32(x + i)
        highest, lowest = maximum(values, highest), minimum(values, lowest)
        total = total + values * constant(0.0)
    high, low = lane_max(highest), lane_max(constant(0.0) - lowest)
    if limit_of(kind) == 8:
        unit = -high / np.float32(8.0) if high > low else low / np.float32(8.0)
        least, most = constant(-8.0), constant(7.0)
    else:
        unit = max(high, low) / np.float32(127.0)
        least, most = constant(-127.0), constant(127.0)
    store_f16(scale, unit)
    unit = load_f16(scale)  # codes are made for the scale as it is kept
    good = lane_sum(total) + unit * ZERO == 0
    if not good:
        store_f16(scale, NAN)
    inverse = splat_f32(np.float32(1.0) / unit if good and unit != 0 else ZERO)
    for i in range(0, GROUP, LANES):
        code = round_even(loadv_f32(x + 4 * i) * inverse)
        storev_i8(codes + i, to_i32(maximum(least, minimum(most, code))))
    return good


@jit
def _make_codes(
    kind: Codes, x: int, codes: int, n: int, keys: int, values: int, page_size: int, slot: int, scales: int
) -> None:
    """int8 codes of n float32 at `x`, a key and the value behind it; their scales go to the pieces.

    `scales` is where these begin in a piece.
    """
    good = True
    first = keys + scales + 2 * slot
    for g in range(0, n, GROUP):
        group, of_value = g // GROUP, 2 * g >= n
        scale = first + 2 * group * page_size
        if of_value:
            scale = values + scales + 2 * ((group - n // 2 // GROUP) * page_size + slot)
        fits = _group_codes(kind, x + 4 * g, codes + g, scale)
        if of_value and not fits:
            good = False
            store_f16(scale, ZERO)
    if not good:
        store_f16(first, NAN)


def limit_of(kind: Codes) -> int:
    """The kind's `limit`, a constant in compiled code."""
    raise TypeError("for compiled code")


@overload(limit_of, jit_options={"forceinline": True})
def _limit_of(kind: Any) -> Any:
    limit = kind.value.limit

    def constant_limit(kind: Any) -> Any:
        return limit

    return constant_limit


def _store_token(
    kind: Codes, a: Any, keys: int, values: int, page_size: int, slot: int, k: int, v: int, codes: int
) -> None:
    """Write float32 [dim] k and v, padded with zeros, to `slot` of a page's pieces.

    v lies behind k; `codes` is room for 2 · dim bytes.
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
        good = _finite(v, dim)
        value = values + slot * dim * size
        for d in range(a.head_dim):
            x = load_f32(v + 4 * d)
            if size == 2 and abs(x) > np.float32(65504.0):
                good = False
            store_float(kind, keys + (d * page_size + slot) * size, load_f32(k + 4 * d))
        for d in range(a.head_dim):
            x = load_f32(v + 4 * d)
            store_float(kind, value + d * size, x if good else ZERO)
        if not good:
            store_float(kind, keys + slot * size, NAN)

    def bytes_(
        kind: Any, a: Any, keys: Any, values: Any, page_size: Any, slot: Any, k: Any, v: Any, codes: Any
    ) -> Any:
        dim = padded_dim(a)
        value = values + value_row(slot) * dim * 2 + slot % 32 // 16
        _make_codes(kind, k, codes, 2 * dim, keys, values, page_size, slot, dim * page_size)
        for d in range(dim):
            store_i8(keys + (d // 2 * page_size + slot) * 2 + d % 2, load_i8(codes + d))
            store_i8(value + 2 * d, load_i8(codes + dim + d))

    def nibbles(
        kind: Any, a: Any, keys: Any, values: Any, page_size: Any, slot: Any, k: Any, v: Any, codes: Any
    ) -> Any:
        dim = padded_dim(a)
        value = values + value_row(slot) * dim + slot % 32 // 16
        _make_codes(kind, k, codes, 2 * dim, keys, values, page_size, slot, dim // 2 * page_size)
        for i in range(dim // 2):
            d = codes + i // 2 * 4 + i % 2
            key = keys + (i // 2 * page_size + slot) * 2 + i % 2
            store_i8(key, (load_i8(d) & 15) | (load_i8(d + 2) << 4))
            d = codes + dim + i // 16 * GROUP + i % 16
            store_i8(value + 2 * i, (load_i8(d) & 15) | (load_i8(d + 16) << 4))

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.value.name]


@jit
def padded_dim(a: Any) -> int:
    return (a.head_dim + GROUP - 1) // GROUP * GROUP


@jit
def value_row(slot: int) -> int:
    """Which pair of tokens a slot belongs to."""
    return slot // 32 * 16 + slot % 16


@jit
def store_token(
    kind: Codes, a: Any, s: Any, sequence: int, position: int, h: int, k: int, v: int, codes: int
) -> None:
    """Write the key and the value of kv head `h` at a position; see `_store_token`."""
    keys, values = pieces(kind, a, s, sequence, position, h)
    _store_token(kind, a, keys, values, s.page_size, position % s.page_size, k, v, codes)


def _store_kernel(kind: Codes) -> EntryPoint:
    @kernel
    def store_kv(arguments: int, step: int, thread: int) -> None:
        """Write the rows' keys and values into their pages."""
        a, s = arguments_at(arguments), step_at(step)
        first, last = share_rows(s.n_rows, thread, s.n_threads)
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


STORES = {name: _store_kernel(KINDS[name]) for name in CACHE_TYPES}
