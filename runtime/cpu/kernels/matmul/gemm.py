"""Matrix products of many rows: out[t] = W · x[t] + bias, or out[t] += …, or f(W · x[t]) · (V · x[t]).

A thread unpacks a pair of panels, `BLOCK` groups of columns at a time, into records that stay in its
first-level cache, and takes all tiles of activations past them. Unpacking so costs once what it would cost
for every tile, and the loop that matters is the same for all block formats (`simd.gemm_tile`). Then come the
second digits, group by group, those rows that have one together in a tile.
"""

from __future__ import annotations

from typing import Any

from .....quant.jit.jit import EntryPoint, jit, kernel
from .....quant.jit.simd import load_i32, loadv_f32, store_i64, storev_f32
from ...abi.sizes import BLOCK, SLOT
from ...simd.dot8 import Codes
from ...simd.gemm_tile import TileCodes, add_products, add_seconds, load_sums, no_sums, store_sums
from ...simd.tile_sizes import GROUP, RECORD, SECOND, TOKENS, VECTOR
from ..common.access import rows_of, share, step_at
from .epilogue import expert_tiles, finish, gated_outputs, matmul_at
from .pack_tile import TILE_CODES, store_group
from .unpack import CODES, unpack

MIN_TILES = 32  # that an unpacked pair of panels should meet


@jit
def _first_at(entries: int, count: int, row: int) -> int:
    """How many of the list's rows stand before `row`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if load_i32(entries + 4 * (middle + 1)) < row:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def _add_listed(
    a: Any,
    g: int,
    groups: int,
    first_tile: int,
    last_tile: int,
    none: int,
    sums: int,
    at: int,
    tile: TileCodes,
) -> None:
    """Add the second digits of group `g` for rows of the tiles from first to last.

    `none` is the tile of zeros, `sums` where the first tile's sums are, with room for one more behind the
    last one's, and `at` the group's weights.
    """
    entries = a.lists + g * a.list_stride
    count = load_i32(entries)
    i, end = _first_at(entries, count, first_tile * TOKENS), _first_at(entries, count, last_tile * TOKENS)
    addresses = sums - 16 * TOKENS
    while i < end:
        for j in range(TOKENS):
            row, to = none * TOKENS + j, (last_tile - first_tile) * SLOT + j * VECTOR
            if i + j < end:
                row = load_i32(entries + 4 * (i + j + 1))
                to = (row // TOKENS - first_tile) * SLOT + row % TOKENS * VECTOR
            digits = (row // TOKENS * groups + g) * TOKENS + row % TOKENS
            store_i64(addresses + 8 * j, a.seconds + digits * SECOND)
            store_i64(addresses + 8 * (TOKENS + j), sums + to)
        add_seconds(addresses, at, tile)
        i += TOKENS


def _tiled_matmul(codes: Codes) -> EntryPoint:
    """The kernel for one block format. All of them are this code with another `unpack`."""
    tile = TILE_CODES[codes.name]
    record = tile.record

    @kernel
    def tiled_matmul(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        n = rows_of(a, s)
        groups, n_tiles = a.width // GROUP, (n + TOKENS - 1) // TOKENS
        zeros = (
            a.list_stride // 4 - 1 + TOKENS - 1
        ) // TOKENS  # a list has room for the most rows there can be
        blocks = (groups + BLOCK - 1) // BLOCK
        weights = a.scratch + thread * a.scratch_stride
        sums_at = weights + BLOCK * record + 16 * TOKENS
        pairs = a.n_panels if a.gate else (a.n_panels + 1) // 2
        # Few panels for many threads: they share the tiles as well.
        splits = 1
        while pairs * splits < 4 * s.n_threads and n_tiles >= 2 * splits * MIN_TILES and a.n_experts == 0:
            splits *= 2
        first, last = share(pairs * splits, thread, s.n_threads)
        for e in range(max(1, a.n_experts)):
            begin, end = expert_tiles(a, e, n_tiles)
            if begin == end:
                continue
            matrix, bias = a.weights + e * a.expert_bytes, e * a.bias_stride
            for task in range(first, last):
                pair, split = task // splits, task % splits
                first_tile, last_tile = share(end - begin, split, splits)
                first_tile += begin
                last_tile += begin
                left = matrix + pair * a.pair_bytes
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
                    for g in range(n_groups):
                        at = weights + g * record
                        _add_listed(a, start + g, groups, first_tile, last_tile, zeros, sums_at, at, tile)
                for i in range(first_tile, last_tile):
                    slot = sums_at + (i - first_tile) * SLOT
                    for t in range(min(TOKENS, n - i * TOKENS)):
                        value = loadv_f32(slot + t * VECTOR)
                        other = loadv_f32(slot + (TOKENS + t) * VECTOR)
                        row = a.out + (i * TOKENS + t) * a.out_stride
                        if a.gate:
                            column = pair * VECTOR
                            storev_f32(row + column, gated_outputs(a, column, bias, value, other))
                        else:
                            finish(a, row, 2 * pair * VECTOR, bias, 0, value)
                            if not alone:
                                finish(a, row, (2 * pair + 1) * VECTOR, bias, 0, other)

    return tiled_matmul


TILED_MATMULS: dict[str, EntryPoint] = {name: _tiled_matmul(codes) for name, codes in CODES.items()}
