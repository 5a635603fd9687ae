"""Matrix products (gemm) of block-quantised weights in a prefill step.

out = x · Wᵀ + bias, or with a gated activation f out = f(x · Wᵀ) · (x · Vᵀ).

The rows of x are quantised to tiles of TOKENS rows (`quantize_tiles`). A thread unpacks a pair of panels of
W, BLOCK groups of 32 columns at a time, into records that stay in its L1 cache, and multiplies them with all
tiles of x (`simd.gemm_tile`). So unpacking is paid once for all tiles, and the inner loop is the same for all
block formats. Then the residual codes are multiplied, group by group, with the rows that have them gathered
into tiles. Threads partition the pairs of panels, and the row tiles too where there are few pairs.
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.simd.memory import load_i32, loadv_f32, store_i64, storev_f32
from ...abi.sizes import BLOCK, SLOT
from ...simd.dot8 import Codes
from ...simd.gemm_tile import (
    TileCodes,
    add_products,
    add_residuals,
    load_sums,
    store_sums,
    widen_record,
    zero_sums,
)
from ...simd.tile_sizes import GROUP, RECORD, RESIDUAL, TOKENS, VECTOR, WIDE_RECORD
from ..common.access import step_at
from ..common.partition import n_rows_of, partition
from .epilogue import expert_tiles, finish, gated_outputs, matmul_at
from .pack_tile import TILE_CODES, store_group
from .unpack import CODES, unpack

MIN_TILES = 32  # row tiles that an unpacked pair of panels should at least be multiplied with


@jit
def _count_below(entries: int, count: int, row: int) -> int:
    """Number of rows below `row` in the ascending list at `entries` (int32 count, rows); binary search."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if load_i32(entries + 4 * (middle + 1)) < row:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def _add_listed_residuals(
    a: Any,
    g: int,
    groups: int,
    first_tile: int,
    last_tile: int,
    zeros: int,
    sums: int,
    at: int,
    tile: TileCodes,
) -> None:
    """Add the products of the residual codes of group `g` for rows of the tiles first_tile … last_tile - 1.

    `zeros` is the number of the tile of zero residuals, which pads the last gathered tile; `sums` the address
    of the first tile's accumulators, with a spare tile after the last one's; `at` the address of the group's
    unpacked weights. The table of addresses for `add_residuals` lies right before `sums`.
    """
    entries = a.residual_lists + g * a.residual_list_stride
    count = load_i32(entries)
    i, end = (
        _count_below(entries, count, first_tile * TOKENS),
        _count_below(entries, count, last_tile * TOKENS),
    )
    addresses = sums - 16 * TOKENS
    while i < end:
        for j in range(TOKENS):
            row, to = zeros * TOKENS + j, (last_tile - first_tile) * SLOT + j * VECTOR
            if i + j < end:
                row = load_i32(entries + 4 * (i + j + 1))
                to = (row // TOKENS - first_tile) * SLOT + row % TOKENS * VECTOR
            residual = (row // TOKENS * groups + g) * TOKENS + row % TOKENS
            store_i64(addresses + 8 * j, a.residuals + residual * RESIDUAL)
            store_i64(addresses + 8 * (TOKENS + j), sums + to)
        add_residuals(addresses, at, tile)
        i += TOKENS


def _operand(x: int, n_groups: int, widened: int, tile: TileCodes) -> int:
    """The address of the records of activations as `add_products` takes them: `x`, where they are.

    If `tile` is wide, `n_groups` records of int16 codes are made of them at `widened`.
    """
    raise TypeError("for compiled code")


@overload(_operand, jit_options={"forceinline": True})
def _choose_operand(x: Any, n_groups: Any, widened: Any, tile: Any) -> Any:
    def narrow(x: Any, n_groups: Any, widened: Any, tile: Any) -> Any:
        return x

    def wide(x: Any, n_groups: Any, widened: Any, tile: Any) -> Any:
        for g in range(n_groups):
            widen_record(x + g * RECORD, widened + g * WIDE_RECORD)
        return widened

    return wide if tile.value.wide else narrow


def _gemm(codes: Codes) -> EntryPoint:
    """The kernel for one block format; the formats differ in `unpack` alone."""
    tile = TILE_CODES[codes.name]
    record = tile.record
    # Groups of a block, bytes of a record of activations that are multiplied, and of those that are made.
    most, x_record, room = BLOCK, RECORD, 0
    if tile.wide:  # in the same memory, which has room for formats with more factors
        most, x_record, room = BLOCK // 2, WIDE_RECORD, BLOCK // 2 * WIDE_RECORD

    @kernel
    def gemm(arguments: int, step: int, thread: int) -> None:
        """out [rows, n_panels · LANES], float32; with experts, each matrix on the row tiles of its expert."""
        a, s = matmul_at(arguments), step_at(step)
        n = n_rows_of(a, s)
        groups, n_tiles = a.width // GROUP, (n + TOKENS - 1) // TOKENS
        # A residual list has room for the most rows there can be; the tile of zeros comes after their tiles.
        zeros = (a.residual_list_stride // 4 - 1 + TOKENS - 1) // TOKENS
        blocks = (groups + most - 1) // most
        weights = a.scratch + thread * a.scratch_stride
        widened = weights + most * record
        sums_at = widened + room + 16 * TOKENS
        pairs = a.n_panels if a.gate else (a.n_panels + 1) // 2
        # With few panels a thread, the row tiles are split over the threads as well.
        splits = 1
        while pairs * splits < 4 * s.n_threads and n_tiles >= 2 * splits * MIN_TILES and a.n_experts == 0:
            splits *= 2
        first, last = partition(pairs * splits, thread, s.n_threads)
        for e in range(max(1, a.n_experts)):
            begin, end = expert_tiles(a, e, n_tiles)
            if begin == end:
                continue
            matrix, bias = a.weights + e * a.expert_stride, e * a.bias_stride
            for task in range(first, last):
                pair, split = task // splits, task % splits
                first_tile, last_tile = partition(end - begin, split, splits)
                first_tile += begin
                last_tile += begin
                left = matrix + pair * a.pair_stride
                alone = a.gate == 0 and 2 * pair + 1 == a.n_panels
                right = left if alone else left + a.second_offset
                for block in range(blocks):
                    start = block * most
                    n_groups = min(most, groups - start)
                    for g in range(n_groups):
                        at = weights + g * record
                        store_group(unpack(codes, left, a.n_blocks, start + g), codes, tile, at, 0)
                        store_group(unpack(codes, right, a.n_blocks, start + g), codes, tile, at, 1)
                    for i in range(first_tile, last_tile):
                        slot = sums_at + (i - first_tile) * SLOT
                        sums = zero_sums() if block == 0 else load_sums(slot)
                        x, at = a.x + (i * groups + start) * RECORD, weights
                        x = _operand(x, n_groups, widened, tile)
                        for _ in range(n_groups):
                            sums = add_products(sums, at, x, tile)
                            at += record
                            x += x_record
                        store_sums(slot, sums)
                    for g in range(n_groups):
                        at = weights + g * record
                        _add_listed_residuals(
                            a, start + g, groups, first_tile, last_tile, zeros, sums_at, at, tile
                        )
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

    return gemm


GEMMS: dict[str, EntryPoint] = {name: _gemm(codes) for name, codes in CODES.items()}
