"""The codes of a block of keys and values as pairs of int16 in scratch memory, for all queries of a tile.

At the levels of `sizes.UNPACK_TILES` a product of pairs of int16 takes two instructions. To widen 8-bit codes
for each ROWS queries anew would be one more in nine, on CPUs with two or three ports for all of them.
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.levels import LANES
from .....quant.jit.simd.memory import prefetch_far, storev_i32
from ...abi.sizes import KEY_BLOCK, Scratch
from ...simd.dot8 import Codes
from ...simd.dot16 import load_bytes, load_nibbles
from ...simd.tile_sizes import GROUP
from .kv_cache import padded_dim, unpacks
from .tile_scores import Block


def unpack_keys(kind: Codes, heights: tuple, a: Any, m: Scratch, b: Block) -> None:
    """Write the keys of the block to `m.unpacked_keys`, and prefetch as many; nothing if not `unpacks`."""
    raise TypeError("for compiled code")


def unpack_values(kind: Codes, heights: tuple, a: Any, m: Scratch, b: Block) -> None:
    """The same of its values, to `m.unpacked_values`."""
    raise TypeError("for compiled code")


def _nothing(kind: Any, heights: Any, a: Any, m: Any, b: Any) -> Any:
    pass


@overload(unpack_keys, jit_options={"forceinline": True})
def _choose_unpack_keys(kind: Any, heights: Any, a: Any, m: Any, b: Any) -> Any:
    def of_bytes(kind: Any, heights: Any, a: Any, m: Any, b: Any) -> Any:
        at, ahead, out = b.keys + 2 * b.slot, b.next_keys, m.unpacked_keys
        for _ in range(padded_dim(a) // 2):
            for j in range(0, b.n, LANES):
                storev_i32(out + 4 * j, load_bytes(at + 2 * j))
            prefetch_far(ahead)
            prefetch_far(ahead + b.n)
            at, ahead, out = at + 2 * b.page_size, ahead + 2 * b.n, out + 4 * KEY_BLOCK

    def of_nibbles(kind: Any, heights: Any, a: Any, m: Any, b: Any) -> Any:
        at, ahead, out = b.keys + 2 * b.slot, b.next_keys, m.unpacked_keys
        for _ in range(padded_dim(a) // 4):
            for j in range(0, b.n, LANES):
                low, high = load_nibbles(at + 2 * j)
                storev_i32(out + 4 * j, low)
                storev_i32(out + 4 * (KEY_BLOCK + j), high)
            prefetch_far(ahead)
            prefetch_far(ahead + b.n)
            at, ahead, out = at + 2 * b.page_size, ahead + 2 * b.n, out + 8 * KEY_BLOCK

    if not unpacks(kind, heights):
        return _nothing
    return of_bytes if kind.value.name == "Q8_0" else of_nibbles


@overload(unpack_values, jit_options={"forceinline": True})
def _choose_unpack_values(kind: Any, heights: Any, a: Any, m: Any, b: Any) -> Any:
    def of_bytes(kind: Any, heights: Any, a: Any, m: Any, b: Any) -> Any:
        size = b.n * padded_dim(a)
        at, ahead, out = b.values + b.slot * padded_dim(a), b.next_values, m.unpacked_values
        for i in range(0, size, 64):
            for j in range(i, i + 64, 2 * LANES):
                storev_i32(out + 2 * j, load_bytes(at + j))
            prefetch_far(ahead + i)

    def of_nibbles(kind: Any, heights: Any, a: Any, m: Any, b: Any) -> Any:
        size = b.n * padded_dim(a) // 2
        at, ahead, out = b.values + b.slot * padded_dim(a) // 2, b.next_values, m.unpacked_values
        for i in range(0, size, GROUP):
            for j in range(0, GROUP, 2 * LANES):
                low, high = load_nibbles(at + i + j)
                storev_i32(out + 4 * i + 2 * j, low)
                storev_i32(out + 4 * i + 2 * j + 64, high)
            prefetch_far(ahead + i)

    if not unpacks(kind, heights):
        return _nothing
    return of_bytes if kind.value.name == "Q8_0" else of_nibbles
