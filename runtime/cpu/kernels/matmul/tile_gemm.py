"""Matrix products (gemm) of block-quantised weights in matrix tiles, for prefill steps.

out = x · Wᵀ + bias, or with a gated activation f out = f(x · Wᵀ) · (x · Vᵀ), as `gemm` computes it, but with
weights and activations rounded to bfloat16, products and sums in float32.

`tile_rows` rounds activations. A thread unpacks a pair of panels, GROUPS groups of 32 columns at a time, to
bfloat16 that stays in its L1 cache, and multiplies it with all blocks of rows. Where the rows do not fit into
the L2 cache, PAIRS pairs meet one part of their columns before the next, and their sums are kept meanwhile.
Threads partition the pairs of panels, and the blocks of rows too where there are few pairs. The order of sums
does not depend on that.
"""

from __future__ import annotations

from typing import Any

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.simd.memory import loadv_f32, storev_f32
from ...simd.amx import AMX, TileUnit, store_columns, store_weights, tile_functions
from ...simd.amx_sizes import (
    BLOCK_ROWS,
    BLOCKS,
    GROUPS,
    PAIRS,
    PART_BYTES,
    ROWS,
    STEP_BYTES,
    SUM_BYTES,
    TILE,
    UNIT_BYTES,
)
from ...simd.dot8 import Codes
from ...simd.tile_sizes import GROUP, VECTOR
from ..common.access import step_at
from ..common.partition import n_rows_of, partition, partition_rows
from ..common.vector_math import constant
from .epilogue import finish, gated_outputs, matmul_at
from .quantize import quantize_at
from .unpack import CODES, unpack

MIN_BLOCKS = 4  # blocks of rows that an unpacked pair of panels should at least be multiplied with


@kernel
def tile_rows(arguments: int, step: int, thread: int) -> None:
    """Round x, float32 [rows, width], to bfloat16 tiles [blocks of BLOCK_ROWS rows, groups, 2, TILE], padded
    with zeros. Threads partition the rows."""
    a, s = quantize_at(arguments), step_at(step)
    n = n_rows_of(a, s)
    first, last = partition_rows(n, thread, s)
    if last == n and first < n:
        last = (n + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_ROWS
    groups, zero = a.width // GROUP, constant(0.0)
    for row in range(first, last):
        block, within = row // BLOCK_ROWS, row % BLOCK_ROWS
        at = a.out + block * groups * STEP_BYTES + within // ROWS * TILE + within % ROWS * 64
        x = a.x + row * a.x_stride
        for _ in range(groups):
            if row < n:
                store_columns(at, loadv_f32(x), loadv_f32(x + VECTOR))
            else:
                store_columns(at, zero, zero)
            x += 4 * GROUP
            at += STEP_BYTES


def tile_gemm(codes: Codes, unit: TileUnit) -> EntryPoint:
    """The kernel for one block format, with the instructions of a unit."""
    begin, end, zero_sums, load_sums, store_sums, multiply = tile_functions(unit)

    @jit
    def unpack_pair(a: Any, left: int, right: int, start: int, n_groups: int, weights: int) -> None:
        """Write n_groups groups of both panels from group number `start` on to address `weights`."""
        for g in range(n_groups):
            at = weights + g * STEP_BYTES
            store_weights(at, unpack(codes, left, a.n_blocks, start + g), codes)
            store_weights(at + TILE, unpack(codes, right, a.n_blocks, start + g), codes)

    @jit
    def add_groups(state: int, fresh: bool, x: int, weights: int, n_groups: int, sums: int) -> None:
        """Add n_groups groups of a pair of panels and a block of rows to their sums; `fresh`: sums are 0."""
        if fresh:
            zero_sums(state)
        else:
            load_sums(state, sums)
        for _ in range(n_groups):
            multiply(state, x, weights)
            x += STEP_BYTES
            weights += STEP_BYTES
        store_sums(state, sums)

    @jit
    def finish_block(a: Any, pair: int, alone: bool, row: int, end_row: int, sums: int) -> None:
        """Write the outputs of the rows row … end_row - 1, whose sums begin at address `sums`."""
        for t in range(end_row - row):
            at = sums + t // ROWS * 2 * TILE + t % ROWS * 64
            value, other = loadv_f32(at), loadv_f32(at + TILE)
            out = a.out + (row + t) * a.out_stride
            if a.gate:
                column = pair * VECTOR
                storev_f32(out + column, gated_outputs(a, column, 0, value, other))
            else:
                finish(a, out, 2 * pair * VECTOR, 0, 0, value)
                if not alone:
                    finish(a, out, (2 * pair + 1) * VECTOR, 0, 0, other)

    @kernel
    def gemm(arguments: int, step: int, thread: int) -> None:
        """out [rows, n_panels · LANES], float32."""
        a, s = matmul_at(arguments), step_at(step)
        n, groups = n_rows_of(a, s), a.width // GROUP
        n_blocks = (n + BLOCK_ROWS - 1) // BLOCK_ROWS
        state = a.scratch + thread * a.scratch_stride
        weights, sums = state + UNIT_BYTES, state + UNIT_BYTES + GROUPS * STEP_BYTES
        pairs = a.n_panels if a.gate else (a.n_panels + 1) // 2
        splits = 1
        while pairs * splits < 4 * s.n_threads and n_blocks >= 2 * splits * MIN_BLOCKS:
            splits *= 2
        first, last = partition(pairs * splits, thread, s.n_threads)
        begin(state)
        for first_block in range(0, n_blocks, BLOCKS):
            blocks = min(BLOCKS, n_blocks - first_block)
            part = groups
            if blocks * groups * STEP_BYTES > PART_BYTES:
                part = max(GROUPS, PART_BYTES // (blocks * STEP_BYTES) // GROUPS * GROUPS)
            for first_task in range(first, last, PAIRS):
                for first_group in range(0, groups, part):
                    end_group = min(groups, first_group + part)
                    for task in range(first_task, min(last, first_task + PAIRS)):
                        pair, split = task // splits, task % splits
                        low, high = partition(blocks, split, splits)
                        left = a.weights + pair * a.pair_stride
                        alone = a.gate == 0 and 2 * pair + 1 == a.n_panels
                        right = left if alone else left + a.second_offset
                        slots = sums + (task - first_task) * (BLOCKS * SUM_BYTES)
                        for start in range(first_group, end_group, GROUPS):
                            n_groups = min(GROUPS, end_group - start)
                            unpack_pair(a, left, right, start, n_groups, weights)
                            for i in range(low, high):
                                x = a.x + ((first_block + i) * groups + start) * STEP_BYTES
                                add_groups(state, start == 0, x, weights, n_groups, slots + i * SUM_BYTES)
                        if end_group == groups:
                            for i in range(low, high):
                                row = (first_block + i) * BLOCK_ROWS
                                end_row = min(n, row + BLOCK_ROWS)
                                finish_block(a, pair, alone, row, end_row, slots + i * SUM_BYTES)
        end(state)

    return gemm


TILE_GEMMS: dict[str, EntryPoint] = {name: tile_gemm(codes, AMX) for name, codes in CODES.items()}
