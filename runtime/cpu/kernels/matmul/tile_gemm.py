"""Matrix products (gemm) in matrix tiles, for prefill steps.

out = x · Wᵀ + bias, or with a gated activation f out = f(x · Wᵀ) · (x · Vᵀ), as `gemm` computes it, but with
weights and activations rounded to bfloat16, products and sums in float32. For weights in bfloat16 or fp16,
activations are split in two bfloat16, and weights in fp16 too; the products of both rests are dropped (2⁻¹⁶).

`tile_rows` rounds activations. A thread unpacks a pair of panels, GROUPS groups of 32 columns at a time, to
bfloat16 that stays in its L1 cache, and multiplies it with all its blocks of rows. Where the rows do not fit
into the L2 cache, PAIRS pairs meet one part of their columns before the next, and their sums are kept
meanwhile. Blocks of rows are split as far as that keeps a thread's rows in its cache, or there are too few
pairs of panels for all threads; then some pairs and a split are a task, and threads draw tasks one by one,
since processors are not always equally fast. The order of sums does not depend on that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.simd.memory import loadv_f32, prefetch, storev_f32
from .....quant.jit.simd.threads import atomic_add
from ...abi.sizes import FLOAT_BYTES
from ...simd.amx import AMX, TileUnit, store_columns, tile_functions
from ...simd.amx_operands import high_part
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
from ..common.partition import partition, partition_rows, rows_within
from ..common.vector_math import constant
from .epilogue import expert_tiles, finish, gated_outputs, matmul_at
from .quantize import quantize_at
from .tile_weights import TILE_KINDS, unpack_tile

MIN_BLOCKS = 4  # blocks of rows that an unpacked pair of panels should at least be multiplied with
# Threads from which on activations are prefetched: a quarter faster where two threads share each core, 7 %
# slower where they do not (docs/performance.md).
BUSY = 8
TASKS = 4  # tasks for each thread at least, if that is possible


class Matrix(NamedTuple):
    """A matrix, and the rows that it is multiplied with."""

    weights: int  # address of its panels
    bias: int  # byte offset of its bias in `a.bias`
    first: int  # number of the first tile of rows
    last: int  # number behind the last one
    end_row: int  # number behind the last row, in the last tile
    busy: bool  # whether other threads may keep the core's other half busy


@jit
def row_blocks(tiles: int) -> int:
    """Blocks of BLOCK_ROWS rows that so many tiles of ROWS rows make."""
    return (tiles + 1) // 2


@jit
def end_tasks(a: Any, s: Any, ticket: int, tasks: int) -> None:
    """Note that a thread drew a ticket behind the last task. The last thread sets the counter back: every
    thread draws one such ticket, and draws again only after a barrier."""
    if ticket == tasks + s.n_threads - 1:
        atomic_add(a.tickets, -ticket - 1)


@kernel
def tile_rows(arguments: int, step: int, thread: int) -> None:
    """Round x, float32 [rows, width], to bfloat16 tiles [tiles of ROWS rows, groups, TILE], padded with
    zeros, or split it in two such matrices, `rest` bytes apart. Threads partition the rows."""
    a, s = quantize_at(arguments), step_at(step)
    n = rows_within(a, s)
    first, last = partition_rows(n, thread, s)
    if last == n and first < n:
        last = (n + ROWS - 1) // ROWS * ROWS
    groups, zero = a.width // GROUP, constant(0.0)
    for row in range(first, last):
        at = a.out + row // ROWS * groups * TILE + row % ROWS * 64
        x = a.x + row * a.x_stride
        for _ in range(groups):
            low, high = zero, zero
            if row < n:
                low, high = loadv_f32(x), loadv_f32(x + VECTOR)
            if a.rest != 0:
                store_columns(at + a.rest, low - high_part(low), high - high_part(high))
                low, high = high_part(low), high_part(high)
            store_columns(at, low, high)
            x += 4 * GROUP
            at += TILE


def tile_gemm(kind: Codes, unit: TileUnit) -> EntryPoint:
    """The kernel for one format of weights, with the instructions of a unit."""
    begin, end, zero_sums, load_sums, store_sums, multiply, multiply_first = tile_functions(unit)
    floats, parts = kind.name in FLOAT_BYTES, 2 if kind.name == "F16" else 1
    at_once = GROUPS // parts  # groups of a pair of panels that are unpacked at a time
    rest = at_once * STEP_BYTES if parts == 2 else 0  # from unpacked weights to what they lack

    @jit
    def unpack_pair(a: Any, left: int, right: int, start: int, n_groups: int, weights: int) -> None:
        """Write n_groups groups of both panels from group number `start` on to address `weights`."""
        for g in range(n_groups):
            at = weights + g * STEP_BYTES
            unpack_tile(kind, a, left, start + g, rest, at)
            unpack_tile(kind, a, right, start + g, rest, at + TILE)

    @jit
    def add_products(state: int, x: int, second: int, n_groups: int, weights: int, busy: bool) -> None:
        """Add the products of n_groups tiles of x, and of as many `second` bytes further on unless that is 0,
        with pairs of tiles of weights to the sums in registers; `busy`: prefetch x two tiles ahead."""
        if second and busy:
            for _ in range(n_groups):
                for line in range(2 * TILE, 3 * TILE, 64):
                    prefetch(x + line)
                    prefetch(x + second + line)
                multiply(state, x, x + second, weights)
                x += TILE
                weights += STEP_BYTES
        elif second:
            for _ in range(n_groups):
                multiply(state, x, x + second, weights)
                x += TILE
                weights += STEP_BYTES
        else:
            for _ in range(n_groups):
                multiply_first(state, x, weights)
                x += TILE
                weights += STEP_BYTES

    @jit
    def add_groups(
        a: Any, m: Matrix, state: int, fresh: bool, x: int, second: int, n_groups: int, sums: int
    ) -> None:
        """Add n_groups groups of the unpacked pair of panels and a block of rows to their sums.

        `fresh`: sums are 0. `second` is the distance in bytes from the block's first tile to its second, 0 if
        it has none.
        """
        weights = state + UNIT_BYTES
        if fresh:
            zero_sums(state)
        else:
            load_sums(state, sums)
        add_products(state, x, second, n_groups, weights, m.busy)
        if floats:
            add_products(state, x + a.x_rest, second, n_groups, weights, m.busy)
        if parts == 2:
            add_products(state, x, second, n_groups, weights + rest, m.busy)
        store_sums(state, sums)

    @jit
    def finish_block(a: Any, m: Matrix, pair: int, tile: int, sums: int) -> None:
        """Write the outputs of a pair of panels and the block of rows that begins with a tile."""
        alone = a.gate == 0 and 2 * pair + 1 == a.n_panels
        for t in range(min(m.end_row - tile * ROWS, BLOCK_ROWS)):
            at = sums + t // ROWS * 2 * TILE + t % ROWS * 64
            value, other = loadv_f32(at), loadv_f32(at + TILE)
            out = a.out + (tile * ROWS + t) * a.out_stride
            if a.gate:
                column = pair * VECTOR
                storev_f32(out + column, gated_outputs(a, column, m.bias, value, other))
            else:
                finish(a, out, 2 * pair * VECTOR, m.bias, 0, value)
                if not alone:
                    finish(a, out, (2 * pair + 1) * VECTOR, m.bias, 0, other)

    @jit
    def multiply_part(a: Any, m: Matrix, state: int, pair: int, start: int, end: int, slots: int) -> None:
        """Add groups start … end - 1 of a pair of panels and all blocks of `m` to their sums at `slots`."""
        groups, tiles = a.width // GROUP, m.last - m.first
        left = m.weights + pair * a.pair_stride
        alone = a.gate == 0 and 2 * pair + 1 == a.n_panels
        right = left if alone else left + a.second_offset
        for group in range(start, end, at_once):
            n_groups = min(at_once, end - group)
            unpack_pair(a, left, right, group, n_groups, state + UNIT_BYTES)
            for i in range(row_blocks(tiles)):
                x = a.x + ((m.first + 2 * i) * groups + group) * TILE
                second = groups * TILE if 2 * i + 1 < tiles else 0
                add_groups(a, m, state, group == 0, x, second, n_groups, slots + i * SUM_BYTES)

    @jit
    def multiply_pairs(a: Any, rows: Matrix, state: int, first_pair: int, last_pair: int) -> None:
        """The outputs of the pairs of panels first_pair … last_pair - 1 of a matrix, for its rows."""
        groups = a.width // GROUP
        sums = state + UNIT_BYTES + GROUPS * STEP_BYTES
        for tile in range(rows.first, rows.last, 2 * BLOCKS):
            last = min(rows.last, tile + 2 * BLOCKS)
            m = Matrix(rows.weights, rows.bias, tile, last, rows.end_row, rows.busy)
            blocks, part = row_blocks(m.last - m.first), groups
            if blocks * groups * STEP_BYTES > PART_BYTES:
                part = max(GROUPS, PART_BYTES // (blocks * STEP_BYTES) // GROUPS * GROUPS)
            for some in range(first_pair, last_pair, PAIRS):
                for group in range(0, groups, part):
                    end_group = min(groups, group + part)
                    for pair in range(some, min(last_pair, some + PAIRS)):
                        slots = sums + (pair - some) * (BLOCKS * SUM_BYTES)
                        multiply_part(a, m, state, pair, group, end_group, slots)
                        if end_group == groups:
                            for i in range(blocks):
                                finish_block(a, m, pair, m.first + 2 * i, slots + i * SUM_BYTES)

    @jit
    def multiply_dense(a: Any, s: Any, state: int, n: int, pairs: int) -> None:
        """A thread's part of the product of one matrix with n rows."""
        tiles, groups = (n + ROWS - 1) // ROWS, a.width // GROUP
        blocks, splits = row_blocks(tiles), 1
        while blocks >= 2 * splits * MIN_BLOCKS and (
            pairs * splits < TASKS * s.n_threads
            or (splits < s.n_threads and blocks * groups * STEP_BYTES > splits * PART_BYTES)
        ):
            splits *= 2
        some = PAIRS
        if blocks * groups * STEP_BYTES <= splits * PART_BYTES:
            some = max(1, min(PAIRS, pairs * splits // (TASKS * s.n_threads)))
        chunks = (pairs + some - 1) // some
        task = atomic_add(a.tickets, 1)
        while task < chunks * splits:
            split, first = task // chunks, task % chunks * some
            low, high = partition(blocks, split, splits)
            m = Matrix(a.weights, 0, 2 * low, min(tiles, 2 * high), n, s.n_threads >= BUSY)
            multiply_pairs(a, m, state, first, min(pairs, first + some))
            task = atomic_add(a.tickets, 1)
        end_tasks(a, s, task, chunks * splits)

    @jit
    def multiply_experts(a: Any, s: Any, state: int, pairs: int) -> None:
        """A thread's part of the products of all experts, each with its own rows."""
        used = 0
        for e in range(a.n_experts):
            low, high = expert_tiles(a, e, 0)
            used += 1 if low < high else 0
        some = max(1, min(PAIRS, pairs * used // (TASKS * s.n_threads)))
        chunks = (pairs + some - 1) // some
        task, before = atomic_add(a.tickets, 1), 0
        for e in range(a.n_experts):
            low, high = expert_tiles(a, e, 0)
            if low == high:
                continue
            weights, bias = a.weights + e * a.expert_stride, e * a.bias_stride
            m = Matrix(weights, bias, low, high, high * ROWS, s.n_threads >= BUSY)
            while task < before + chunks:
                first = (task - before) * some
                multiply_pairs(a, m, state, first, min(pairs, first + some))
                task = atomic_add(a.tickets, 1)
            before += chunks
        end_tasks(a, s, task, before)

    @kernel
    def gemm(arguments: int, step: int, thread: int) -> None:
        """out [rows, n_panels · LANES], float32; with experts, each matrix on the tiles of its rows."""
        a, s = matmul_at(arguments), step_at(step)
        n = rows_within(a, s)
        if n == 0:
            return
        state = a.scratch + thread * a.scratch_stride
        pairs = a.n_panels if a.gate else (a.n_panels + 1) // 2
        begin(state)
        if a.n_experts > 0:
            multiply_experts(a, s, state, pairs)
        else:
            multiply_dense(a, s, state, n, pairs)
        end(state)

    return gemm


TILE_GEMMS: dict[str, EntryPoint] = {name: tile_gemm(kind, AMX) for name, kind in TILE_KINDS.items()}
