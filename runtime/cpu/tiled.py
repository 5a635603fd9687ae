"""Matrix products of many rows: out[t] = W · x[t] + bias, or out[t] += …, or out[t] = f(W · x[t]) · (V · x[t]).

A thread unpacks a pair of panels, `BLOCK` groups of columns at a time, into records that stay in its first-level cache,
and takes all tiles of activations past them. Unpacking so costs once what it would cost for every tile, and the
loop that matters is the same for all block formats (`quant.tiles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...quant.jit import Kernel, jit, kernel
from ...quant.simd import (
    Codes,
    dot,
    fma,
    load_f32,
    load_i32,
    loadv_f32,
    loadv_i32,
    splat_f32,
    splat_i32,
    storev_f32,
    to_f32,
)
from ...quant.tiles import (
    GROUP,
    PANELS,
    RECORD,
    TOKENS,
    VECTOR,
    TileCodes,
    add_products,
    layout,
    load_sums,
    no_sums,
    store_sums,
)
from .activations import BLOCK, LIST, SECOND, SECOND_UNITS
from .matmul import MATMUL, finish, gated, matmul_at
from .prepare import TILE_CODES, store_group
from .records import share, step_at
from .unpack import CODES, unpack

SLOT = PANELS * TOKENS * VECTOR  # bytes of a tile of sums
MIN_TILES = 32  # that an unpacked pair of panels should meet


def scratch_bytes(max_rows: int) -> int:
    """What a thread needs: the unpacked block and the sums of all tiles."""
    record = max(tile.record for tile in TILE_CODES.values())
    return BLOCK * record + -(-max_rows // TOKENS) * SLOT


@jit
def _words(at: int) -> Any:
    return loadv_i32(at), loadv_i32(at + VECTOR), loadv_i32(at + 2 * VECTOR), loadv_i32(at + 3 * VECTOR)


@jit
def _second(slot: int, weights: int, scales: int, x: int, unit: Any, codes: Codes, halves: bool) -> None:
    """Add one group's products with second digits to the sums of one token and panel."""
    none = splat_i32(np.int32(0))
    low, high = _words(weights), _words(weights + 4 * VECTOR)
    if halves:
        total = to_f32(dot(none, low, x, codes)) * loadv_f32(scales)
        total = fma(to_f32(dot(none, high, x + 16, codes)), loadv_f32(scales + VECTOR), total)
    else:
        total = to_f32(dot(none, low + high, x, codes)) * loadv_f32(scales)
    storev_f32(slot, fma(total, unit, loadv_f32(slot)))


@jit
def _add_seconds(slot: int, weights: int, entries: int, digits: int, tile: TileCodes, codes: Codes) -> None:
    """Add the second digits that the list at `entries` names; `digits` are those of the block's first group."""
    record, factors, halves = layout(tile)
    for e in range(load_i32(entries)):
        entry = load_i32(entries + 4 * (e + 1))
        g, t = entry // TOKENS, entry % TOKENS
        x = digits + g * SECOND
        unit = splat_f32(load_f32(x + SECOND_UNITS + 4 * t))
        for p in range(PANELS):
            at, scales = weights + g * record + p * 8 * VECTOR, weights + g * record + PANELS * 8 * VECTOR
            to = slot + (p * TOKENS + t) * VECTOR
            _second(to, at, scales + p * factors * VECTOR, x + GROUP * t, unit, codes, halves)


def _tiled_matmul(codes: Codes) -> Kernel:
    """The kernel for one block format. All of them are this code with another `unpack`."""
    tile = TILE_CODES[codes.name]
    record = tile.record
    second_codes = Codes("second", tile.limit, signed=tile.signed)

    @kernel
    def tiled_matmul(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        n = s.n_wanted if a.on_wanted else s.n_rows
        groups, n_tiles = a.width // GROUP, (n + TOKENS - 1) // TOKENS
        blocks = (groups + BLOCK - 1) // BLOCK
        weights = a.scratch + thread * a.scratch_stride
        sums_at = weights + BLOCK * record
        pairs = a.n_panels if a.gate else (a.n_panels + 1) // 2
        # Few panels for many threads: they share the tiles as well.
        splits = 1
        while pairs * splits < 4 * s.n_threads and n_tiles >= 2 * splits * MIN_TILES:
            splits *= 2
        first, last = share(pairs * splits, thread, s.n_threads)
        for task in range(first, last):
            pair, split = task // splits, task % splits
            first_tile, last_tile = share(n_tiles, split, splits)
            left = a.weights + pair * a.pair_bytes
            alone = a.gate == 0 and 2 * pair + 1 == a.n_panels
            right = left if alone else left + a.other_bytes
            for block in range(blocks):
                start = block * BLOCK
                n_groups = min(BLOCK, groups - start)
                for g in range(n_groups):
                    at = weights + g * record
                    store_group(unpack(codes, left, a.n_blocks, start + g), codes, tile, at, 0)
                    store_group(unpack(codes, right, a.n_blocks, start + g), codes, tile, at, 1)
                for i in range(first_tile, last_tile):
                    slot = sums_at + (i - first_tile) * SLOT
                    sums = no_sums() if block == 0 else load_sums(slot)
                    x, at = a.x + (i * groups + start) * RECORD, weights
                    for _ in range(n_groups):
                        sums = add_products(sums, at, x, tile)
                        at += record
                        x += RECORD
                    store_sums(slot, sums)
                    entries = a.lists + (i * blocks + block) * LIST
                    digits = a.seconds + (i * groups + start) * SECOND
                    _add_seconds(slot, weights, entries, digits, tile, second_codes)
                    if block + 1 == blocks:
                        for t in range(min(TOKENS, n - i * TOKENS)):
                            value = loadv_f32(slot + t * VECTOR)
                            other = loadv_f32(slot + (TOKENS + t) * VECTOR)
                            row = a.out + (i * TOKENS + t) * a.out_stride
                            if a.gate:
                                storev_f32(row + pair * VECTOR, gated(a.gate, value, other))
                            else:
                                finish(a, row, 2 * pair * VECTOR, value)
                                if not alone:
                                    finish(a, row, (2 * pair + 1) * VECTOR, other)

    return tiled_matmul


TILED_MATMULS: dict[str, Kernel] = {name: _tiled_matmul(codes) for name, codes in CODES.items()}
