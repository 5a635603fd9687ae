"""Writes unpacked weights of any block format as the records that `simd.gemm_tile` multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from .....quant.jit.decorators import jit
from .....quant.jit.simd.arithmetic import splat_f32
from .....quant.jit.simd.memory import storev_i32
from ...simd.dot8 import Codes
from ...simd.gemm_tile import TileCodes, in_tile_order, shift_codes, store_factor, tile_codes, wide_codes
from ...simd.tile_sizes import FACTOR, PANELS, VECTOR
from .unpack import CODES, HALVES, MINIMA

TILE_CODES: dict[str, TileCodes] = {
    name: tile_codes(codes, name in HALVES, name in MINIMA) for name, codes in CODES.items()
}


@jit
def _store_words(words: Any, codes: TileCodes, at: int) -> None:
    """Write four I32 of codes to address `at`."""
    first, second = in_tile_order(shift_codes(words[0], codes), shift_codes(words[1], codes))
    storev_i32(at, first)
    storev_i32(at + VECTOR, second)
    first, second = in_tile_order(shift_codes(words[2], codes), shift_codes(words[3], codes))
    storev_i32(at + 2 * VECTOR, first)
    storev_i32(at + 3 * VECTOR, second)


@jit
def _store_wide_words(words: Any, codes: TileCodes, at: int) -> None:
    """Write four I32 of signed codes as eight of int16 pairs to address `at`."""
    a, b, c, d = wide_codes(words[0]), wide_codes(words[1]), wide_codes(words[2]), wide_codes(words[3])
    storev_i32(at, a[0])
    storev_i32(at + VECTOR, a[1])
    storev_i32(at + 2 * VECTOR, b[0])
    storev_i32(at + 3 * VECTOR, b[1])
    storev_i32(at + 4 * VECTOR, c[0])
    storev_i32(at + 5 * VECTOR, c[1])
    storev_i32(at + 6 * VECTOR, d[0])
    storev_i32(at + 7 * VECTOR, d[1])


def store_group(weights: Any, codes: Codes, tile: TileCodes, record: int, panel: int) -> None:
    """Write one group of 32 columns to the record at address `record`, as panel number `panel` of the pair.

    `weights` as `unpack` returns them.
    """
    raise TypeError("for compiled code")


@overload(store_group, jit_options={"forceinline": True})
def _choose_store_group(weights: Any, codes: Any, tile: Any, record: Any, panel: Any) -> Any:
    if not isinstance(weights, types.BaseTuple):
        return None
    count, minimum, offset = tile.value.factors, tile.value.minimum, tile.value.offset
    own, half = tile.value.vectors * VECTOR, 4 * VECTOR  # bytes of codes of a panel, and of half a narrow one
    factors, store_words = PANELS * own, _store_wide_words if tile.value.wide else _store_words

    def negative_offset(scale: Any) -> Any:
        return scale * splat_f32(np.float32(-offset))

    offset_of = jit(negative_offset)
    zero = np.float32(0.0)

    def symmetric(weights: Any, codes: Any, tile: Any, record: Any, panel: Any) -> Any:
        words, scale = weights
        at, to = record + panel * own, record + factors + panel * count * FACTOR
        store_words(words[:4], tile, at)
        store_words(words[4:], tile, at + own // 2)
        store_factor(to, scale)
        if minimum:
            store_factor(to + FACTOR, offset_of(scale))

    def with_minimum(weights: Any, codes: Any, tile: Any, record: Any, panel: Any) -> Any:
        words, scale, lowest = weights
        at, to = record + panel * 8 * VECTOR, record + factors + panel * count * FACTOR
        _store_words(words[:4], tile, at)
        _store_words(words[4:], tile, at + half)
        store_factor(to, scale)
        store_factor(to + FACTOR, splat_f32(zero) - lowest)

    def halves(weights: Any, codes: Any, tile: Any, record: Any, panel: Any) -> Any:
        low, high, scale_low, scale_high = weights
        at, to = record + panel * 8 * VECTOR, record + factors + panel * count * FACTOR
        _store_words(low, tile, at)
        _store_words(high, tile, at + half)
        store_factor(to, scale_low)
        store_factor(to + FACTOR, scale_high)
        if minimum:
            store_factor(to + 2 * FACTOR, offset_of(scale_low))
            store_factor(to + 3 * FACTOR, offset_of(scale_high))

    def halves_with_minimum(weights: Any, codes: Any, tile: Any, record: Any, panel: Any) -> Any:
        low, high, scale_low, scale_high, minimum_low, minimum_high = weights
        at, to = record + panel * 8 * VECTOR, record + factors + panel * count * FACTOR
        _store_words(low, tile, at)
        _store_words(high, tile, at + half)
        store_factor(to, scale_low)
        store_factor(to + FACTOR, scale_high)
        store_factor(to + 2 * FACTOR, splat_f32(zero) - minimum_low)
        store_factor(to + 3 * FACTOR, splat_f32(zero) - minimum_high)

    return {2: symmetric, 3: with_minimum, 4: halves, 6: halves_with_minimum}[len(weights)]
