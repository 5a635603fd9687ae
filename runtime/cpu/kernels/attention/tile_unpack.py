"""Keys and values of a run of 32 tokens, from every type of cache, as the second operands of products in
matrix tiles: pairs of bfloat16 (`simd.amx`).

Keys become tiles [group of 32 dimensions, 2 tiles of 16 tokens], whose rows are pairs of dimensions; values
become tiles [group of 32 dimensions, RUNS, 2 tiles of 16 dimensions], whose rows are pairs of tokens i and
i + 16. In caches that keep more bits than bfloat16, numbers are split (`KEY_PARTS`, `VALUE_PARTS`), and tiles
of the rest follow at a distance.
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.simd.arithmetic import splat_f32
from .....quant.jit.simd.memory import loadv_f16
from ...abi.sizes import FLOAT_BYTES
from ...abi.tile_scratch import RUN, RUNS
from ...simd.amx_operands import load_byte_pairs, load_nibble_pairs, store_split
from ...simd.amx_sizes import ROWS, TILE
from ...simd.dot8 import Codes
from ...simd.dot16 import load_f16
from ...simd.tile_sizes import GROUP
from ..common.float_types import load_floats
from ..common.vector_math import constant
from .kv_cache import codes_bytes, padded_dim, value_row


def unpack_keys(kind: Codes, a: Any, page_size: int, keys: int, slot: int, rest: int, out: int) -> None:
    """Write the tiles of a run of keys to address `out`.

    `keys` is the address of the page's piece, `slot` the number of the run's first token in the page, `rest`
    as in `store_split`.
    """
    raise TypeError("for compiled code")


@overload(unpack_keys, jit_options={"forceinline": True})
def _choose_unpack_keys(kind: Any, a: Any, page_size: Any, keys: Any, slot: Any, rest: Any, out: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)

    def floats(kind: Any, a: Any, page_size: Any, keys: Any, slot: Any, rest: Any, out: Any) -> Any:
        row = page_size * size
        for d in range(0, padded_dim(a), 2):
            at, to = keys + d * row + slot * size, out + d // GROUP * 2 * TILE + d % GROUP * 32
            for tile in range(2):
                first, second = constant(0.0), constant(0.0)
                if d < a.head_dim:
                    first = load_floats(kind, at + tile * ROWS * size)
                    second = load_floats(kind, at + row + tile * ROWS * size)
                store_split(to + tile * TILE, rest, first, second)

    def bytes_(kind: Any, a: Any, page_size: Any, keys: Any, slot: Any, rest: Any, out: Any) -> Any:
        scales = keys + codes_bytes(kind, a, page_size)
        for g in range(padded_dim(a) // GROUP):
            for tile in range(2):
                token, to = slot + tile * ROWS, out + (2 * g + tile) * TILE
                scale = loadv_f16(scales + 2 * (g * page_size + token))
                at = keys + 2 * (g * (GROUP // 2) * page_size + token)
                for pair in range(GROUP // 2):
                    first, second = load_byte_pairs(at)
                    store_split(to + 64 * pair, rest, first * scale, second * scale)
                    at += 2 * page_size

    def nibbles(kind: Any, a: Any, page_size: Any, keys: Any, slot: Any, rest: Any, out: Any) -> Any:
        scales = keys + codes_bytes(kind, a, page_size)
        for g in range(padded_dim(a) // GROUP):
            for tile in range(2):
                token, to = slot + tile * ROWS, out + (2 * g + tile) * TILE
                scale = loadv_f16(scales + 2 * (g * page_size + token))
                at = keys + 2 * (g * (GROUP // 4) * page_size + token)
                for _ in range(GROUP // 4):
                    d0, d1, d2, d3 = load_nibble_pairs(at)
                    store_split(to, rest, d0 * scale, d1 * scale)
                    store_split(to + 64, rest, d2 * scale, d3 * scale)
                    at, to = at + 2 * page_size, to + 128

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.value.name]


def unpack_values(kind: Codes, a: Any, page_size: int, values: int, slot: int, rest: int, out: int) -> None:
    """Write the tiles of a run of values to address `out`; arguments as those of `unpack_keys`."""
    raise TypeError("for compiled code")


@overload(unpack_values, jit_options={"forceinline": True})
def _choose_unpack_values(
    kind: Any, a: Any, page_size: Any, values: Any, slot: Any, rest: Any, out: Any
) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)

    def floats(kind: Any, a: Any, page_size: Any, values: Any, slot: Any, rest: Any, out: Any) -> Any:
        row = padded_dim(a) * size
        for d in range(0, a.value_dim, ROWS):
            to = out + d // GROUP * RUNS * 2 * TILE + d % GROUP // ROWS * TILE
            at = values + slot * row + d * size
            for i in range(RUN // 2):
                first, second = load_floats(kind, at), load_floats(kind, at + ROWS * row)
                store_split(to + 64 * i, rest, first, second)
                at += row

    def bytes_(kind: Any, a: Any, page_size: Any, values: Any, slot: Any, rest: Any, out: Any) -> Any:
        dim, scales = padded_dim(a), values + codes_bytes(kind, a, page_size)
        for g in range((a.value_dim + GROUP - 1) // GROUP):
            to, scale = out + g * RUNS * 2 * TILE, scales + 2 * (g * page_size + slot)
            at = values + 2 * (value_row(slot) * dim + g * GROUP)
            for i in range(RUN // 2):
                low, high = splat_f32(load_f16(scale)), splat_f32(load_f16(scale + 2 * ROWS))
                for tile in range(2):
                    first, second = load_byte_pairs(at + tile * 2 * ROWS)
                    store_split(to + tile * TILE + 64 * i, rest, first * low, second * high)
                at, scale = at + 2 * dim, scale + 2

    def nibbles(kind: Any, a: Any, page_size: Any, values: Any, slot: Any, rest: Any, out: Any) -> Any:
        dim, scales = padded_dim(a), values + codes_bytes(kind, a, page_size)
        for g in range((a.value_dim + GROUP - 1) // GROUP):
            to, scale = out + g * RUNS * 2 * TILE, scales + 2 * (g * page_size + slot)
            at = values + value_row(slot) * dim + g * GROUP
            for i in range(RUN // 2):
                low, high = splat_f32(load_f16(scale)), splat_f32(load_f16(scale + 2 * ROWS))
                d0, e0, d1, e1 = load_nibble_pairs(at)
                store_split(to + 64 * i, rest, d0 * low, e0 * high)
                store_split(to + TILE + 64 * i, rest, d1 * low, e1 * high)
                at, scale = at + dim, scale + 2

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.value.name]
