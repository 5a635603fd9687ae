"""Weighted sums of the values of a block, in register tiles of up to ROWS queries and TILE dimensions."""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from ...abi.sizes import FLOAT_BYTES, KEY_BLOCK, Scratch
from ...simd.attention_tile import (
    add_pair_products,
    add_scaled,
    add_value_products,
    advanced,
    int_tile,
    load_tile,
    store_tile,
)
from ...simd.cache_vectors import STEPS
from ...simd.dot8 import Codes
from ...simd.tile_sizes import GROUP
from .kv_cache import padded_dim, unpacks
from .softmax import score_rows, weight_rows
from .tile_scores import TILE, Block


def add_values(kind: Codes, heights: tuple, a: Any, m: Scratch, b: Block, i: int, count: int) -> None:
    """sums = rescale · sums + numerators · values, for `count` queries from i on and a block of values.

    `heights` are the heights of register tiles to compile.
    """
    raise TypeError("for compiled code")


@overload(add_values, jit_options={"forceinline": True})
def _choose_add_values(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
    def full(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = 4 * padded_dim(a)
        out = m.sums + i * width
        _add_rows(kind, a, m, b, (out, out + width, out + 2 * width, out + 3 * width))

    def full_unpacked(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = 4 * padded_dim(a)
        out = m.sums + i * width
        _add_unpacked(a, m, b, (out, out + width, out + 2 * width, out + 3 * width))

    def fitting(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = 4 * padded_dim(a)
        out = m.sums + i * width
        if count == 4:
            _add_rows(kind, a, m, b, (out, out + width, out + 2 * width, out + 3 * width))
        else:
            _add_rows(kind, a, m, b, (out, out + width, out + 2 * width))

    if unpacks(kind, heights):
        return full_unpacked
    return full if heights.count == 1 else fitting


@jit
def _add_unpacked(a: Any, m: Scratch, b: Block, outs: tuple) -> None:
    """The same for as many queries as `outs` has members, the addresses of their float32 [dim] sums, and for
    values that `unpack_values` unpacked."""
    dim = padded_dim(a)
    rows, at, gap = weight_rows(a, m, outs), m.unpacked_values, 4 * LANES
    for g in range(dim // GROUP):
        some = outs
        for _ in range(0, GROUP, TILE):
            sums = add_pair_products(int_tile(rows), rows, at, 4 * dim)
            if b.n > 32:
                sums = add_pair_products(sums, advanced(rows, 64), at + 64 * dim, 4 * dim)
            tile = load_tile(some, gap, m.rescale)
            store_tile(add_scaled(tile, sums, m.int_scales + 64 * g), some, gap)
            some, at = advanced(some, 4 * TILE), at + 4 * TILE
        outs, rows = advanced(outs, 4 * GROUP), advanced(rows, 2 * KEY_BLOCK)


def _add_rows(kind: Codes, a: Any, m: Scratch, b: Block, outs: tuple) -> None:
    """The same for as many queries as `outs` has members, the addresses of their float32 [dim] sums."""
    raise TypeError("for compiled code")


@overload(_add_rows, jit_options={"forceinline": True})
def _choose_add_rows(kind: Any, a: Any, m: Any, b: Any, outs: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)
    # The two vectors of a tile hold neighbouring dimensions, or the two nibbles of the same bytes.
    nibbles = kind.value.name == "Q4_0"
    shift, gap, skip = (1, 64, 4 * LANES) if nibbles else (0, 4 * LANES, 4 * TILE)

    def floats(kind: Any, a: Any, m: Any, b: Any, outs: Any) -> Any:
        dim = padded_dim(a)
        rows, ahead = score_rows(m, outs), b.next_values
        for at in range(0, dim * size, TILE * size):
            tile = load_tile(outs, gap, m.rescale)
            where = b.values + b.slot * dim * size + at
            tile = add_value_products(tile, kind, rows, where, dim * size, b.n // STEPS, ahead)
            store_tile(tile, outs, gap)
            outs, ahead = advanced(outs, skip), ahead + b.n * TILE * size

    def ints(kind: Any, a: Any, m: Any, b: Any, outs: Any) -> Any:
        dim = padded_dim(a)
        stride = (2 * dim) >> shift
        rows, ahead, at = weight_rows(a, m, outs), b.next_values, b.values + ((b.slot * dim) >> shift)
        for g in range(dim // GROUP):
            some = outs
            for _ in range(0, GROUP, TILE):
                sums = add_value_products(int_tile(rows), kind, rows, at, stride, b.n // 2 // STEPS, ahead)
                tile = load_tile(some, gap, m.rescale)
                store_tile(add_scaled(tile, sums, m.int_scales + 64 * g), some, gap)
                some, at = advanced(some, skip), at + ((2 * TILE) >> shift)
                ahead += (b.n * TILE) >> shift
            outs, rows = advanced(outs, 4 * GROUP), advanced(rows, 2 * KEY_BLOCK)

    return floats if size else ints
