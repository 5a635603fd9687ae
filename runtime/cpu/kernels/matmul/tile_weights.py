"""Weights of a panel as the second operands of products in matrix tiles, for every format of weights.

A tile is a group of 32 columns of a panel, pairs of bfloat16 (`simd.amx`). Weights in blocks are rounded.
Weights in bfloat16 or fp16 are not: activations are split in two, and so is fp16. Those in float32 stay with
`float_gemm`.
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.levels import LANES
from .....quant.jit.simd.memory import prefetch
from ...abi.sizes import FLOAT_BYTES
from ...simd.amx import store_weights
from ...simd.amx_operands import store_split
from ...simd.dot8 import Codes
from ...simd.tile_sizes import GROUP
from ..common.float_types import FLOATS, load_floats
from .unpack import CODES, unpack
from .unpack_words import group_bytes

TILE_KINDS = CODES | {name: FLOATS[name] for name in ("F16", "BF16")}


def unpack_tile(kind: Codes, a: Any, panel: int, group: int, rest: int, at: int) -> None:
    """Write the tile of group number `group` of the panel at address `panel` to address `at`.

    Of floats that are split, a tile of what the first one lacks goes to `rest` bytes further on.
    """
    raise TypeError("for compiled code")


@overload(unpack_tile, jit_options={"forceinline": True})
def _choose_unpack_tile(kind: Any, a: Any, panel: Any, group: Any, rest: Any, at: Any) -> Any:
    stride = FLOAT_BYTES.get(kind.value.name, 0) * LANES

    def blocks(kind: Any, a: Any, panel: Any, group: Any, rest: Any, at: Any) -> Any:
        store_weights(at, unpack(kind, panel, a.n_blocks, group), kind)

    def floats(kind: Any, a: Any, panel: Any, group: Any, rest: Any, at: Any) -> Any:
        column = panel + group * GROUP * stride
        for _ in range(GROUP // 4):  # in the order of `simd.amx.COLUMNS`
            first, second = load_floats(kind, column), load_floats(kind, column + stride)
            third, fourth = load_floats(kind, column + 2 * stride), load_floats(kind, column + 3 * stride)
            store_split(at, rest, first, third)
            store_split(at + 64, rest, second, fourth)
            column, at = column + 4 * stride, at + 128

    return floats if stride else blocks


def prefetch_group(kind: Codes, a: Any, panel: int, group: int) -> None:
    """Prefetch group number `group` of the panel at address `panel`."""
    raise TypeError("for compiled code")


@overload(prefetch_group, jit_options={"forceinline": True})
def _choose_prefetch_group(kind: Any, a: Any, panel: Any, group: Any) -> Any:
    name = kind.value.name
    n_bytes = FLOAT_BYTES[name] * LANES * GROUP if name in FLOAT_BYTES else group_bytes(name)

    def lines(kind: Any, a: Any, panel: Any, group: Any) -> Any:
        at = panel + group * n_bytes
        for line in range(at, at + n_bytes, 64):
            prefetch(line)

    return lines
