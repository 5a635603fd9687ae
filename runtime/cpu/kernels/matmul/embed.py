"""Embedding lookup in a table that is stored as panels, being the output matrix too (tied weights)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.jit.decorators import EntryPoint, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.memory import load_f32, load_i32, store_f32, storev_f32
from ...abi.records import EMBED
from ...abi.sizes import FLOAT_BYTES
from ...simd.dot8 import Codes
from ...simd.gemm_tile import tile_layout
from ...simd.tile_sizes import FACTOR, GROUP, PANELS, TOGETHER, VECTOR
from ..common.access import record_reader, step_at
from ..common.float_types import FLOATS, load_floats
from ..common.partition import partition_rows
from .pack_tile import TILE_CODES, store_group
from .unpack import CODES, unpack

embed_at = record_reader(EMBED)
FACTORS = PANELS * 8 * VECTOR  # byte offset of the scales in a record of `simd.gemm_tile`


def _look_up(codes: Codes, a: Any, panel: int, lane: int, scratch: int, out: int) -> None:
    """Write scale · one row of the table to float32 [width] at `out`.

    The row is lane number `lane` of the panel at address `panel`; `scratch` takes one unpacked group.
    """
    raise TypeError("for compiled code")


@overload(_look_up, jit_options={"forceinline": True})
def _choose_look_up(codes: Any, a: Any, panel: Any, lane: Any, scratch: Any, out: Any) -> Any:
    name = codes.value.name

    def floats(codes: Any, a: Any, panel: Any, lane: Any, scratch: Any, out: Any) -> Any:
        for k in range(a.width):
            storev_f32(scratch, load_floats(codes, panel + k * stride))
            store_f32(out + 4 * k, load_f32(scratch + 4 * lane) * np.float32(a.scale))

    def blocks(codes: Any, a: Any, panel: Any, lane: Any, scratch: Any, out: Any) -> Any:
        _, factors, halves = tile_layout(tile)
        for g in range(a.width // GROUP):
            store_group(unpack(codes, panel, a.n_blocks, g), codes, tile, scratch, 0)
            for i in range(8):
                first = scratch + FACTORS + 4 * lane + (i // 4 * FACTOR if halves else 0)
                at = scratch + i * VECTOR + 4 * lane
                if in_pairs:  # of rows: `simd.gemm_tile.in_tile_order`, `store_factor`
                    first += lane // 2 * (VECTOR - 8)
                    at = scratch + (i // 2 * 2 + lane // 2) * VECTOR + lane % 2 * 8 + i % 2 * 4
                scale, offset = load_f32(first), np.float32(0.0)
                if minimum:
                    offset = load_f32(first + (factors // 2) * FACTOR)
                word = load_i32(at)
                for b in range(4):
                    code = (word >> (8 * b)) & 255
                    if signed and code > 127:
                        code -= 256
                    value = (np.float32(code) * scale + offset) * np.float32(a.scale)
                    store_f32(out + 4 * (g * GROUP + 4 * i + b), value)

    if name in FLOATS:
        stride = FLOAT_BYTES[name] * LANES
        return floats
    tile = replace(TILE_CODES[name], wide=False)
    signed, minimum, in_pairs = tile.signed, tile.minimum, TOGETHER == 2
    return blocks


def _embed(codes: Codes) -> EntryPoint:
    """The kernel for one weight format."""

    @kernel
    def embed(arguments: int, step: int, thread: int) -> None:
        """out [rows, width] = scale · table[token], float32. Threads partition or replicate the rows."""
        a, s = embed_at(arguments), step_at(step)
        scratch = a.scratch + thread * a.scratch_stride
        first, last = partition_rows(s.n_rows, thread, s)
        if a.replicated:
            first, last = 0, 1
        for t in range(first, last):
            token = load_i32(s.tokens + 4 * t)
            if token >= a.tokens:
                token = np.int32(0)
            panel = a.panels + token // LANES * a.panel_bytes
            out = a.out + thread * a.out_thread_stride + t * a.out_stride
            _look_up(codes, a, panel, token % LANES, scratch, out)

    return embed


EMBEDS: dict[str, EntryPoint] = {name: _embed(codes) for name, codes in (CODES | FLOATS).items()}
