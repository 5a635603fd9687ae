"""Matrix products (gemm) in matrix tiles, for prefill steps.

out = x · Wᵀ + bias, or with a gated activation f out = f(x · Wᵀ) · (x · Vᵀ), as `gemm` computes it, but with
weights and activations rounded to bfloat16, products and sums in float32. For weights in bfloat16 or fp16,
activations are split in two bfloat16, and weights in fp16 too; the products of both rests are dropped (2⁻¹⁶).

`tile_rows` rounds activations. A thread unpacks a pair of panels, GROUPS groups of 32 columns at a time, to
bfloat16 that stays near, a chunk, and multiplies it with all its blocks of rows. While the unit for tiles is
at that, the rest of the core unpacks the following chunk, prefetches the one after that, and writes outputs
whose sums are complete, a little after each step. Where the rows do not fit
into the L2 cache, PAIRS pairs meet one part of their columns before the next, and their sums are kept
meanwhile. Blocks of rows are split as far as that keeps a thread's rows in its cache, or there are too few
pairs of panels for all threads; then some pairs and a split are a task, and threads draw tasks one by one,
since processors are not always equally fast. The order of sums does not depend on that.
"""

from __future__ import annotations

from typing import Any

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
from ..common.tile_places import Block, Chunk, Matrix, Place, end_tasks, next_place, row_blocks
from ..common.vector_math import constant
from .epilogue import expert_tiles, finish, gated_outputs, matmul_at
from .quantize import quantize_at
from .tile_weights import TILE_KINDS, prefetch_group, unpack_tile

MIN_BLOCKS = 4  # blocks of rows that an unpacked pair of panels should at least be multiplied with
# Threads from which on activations are prefetched: a quarter faster where two threads share each core, 7 %
# slower where they do not (docs/performance.md).
BUSY = 8
TASKS = 4  # tasks for each thread at least, if that is possible


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
    begin, end, zero_sums, load_sums, store_sums, multiply, multiply_first = tile_functions(
        unit, rows_once=True
    )
    floats, parts = kind.name in FLOAT_BYTES, 2 if kind.name == "F16" else 1
    most = GROUPS // parts  # groups in a chunk at most
    rest = most * STEP_BYTES if parts == 2 else 0  # from unpacked weights to what they lack

    @jit
    def unpack_tiles(a: Any, chunk: Chunk, first: int, last: int) -> None:
        """Unpack the tiles first … last - 1 of a chunk; those of its two panels take turns."""
        for tile in range(first, last):
            panel = chunk.right if tile % 2 else chunk.left
            unpack_tile(kind, a, panel, chunk.group + tile // 2, rest, chunk.at + tile * TILE)

    @jit
    def prefetch_tile(a: Any, chunk: Chunk, tile: int) -> None:
        """Prefetch what a tile of a chunk is unpacked from."""
        if tile < 2 * chunk.n_groups:
            prefetch_group(kind, a, chunk.right if tile % 2 else chunk.left, chunk.group + tile // 2)

    @jit
    def add_products(state: int, x: int, second: int, n_groups: int, weights: int) -> None:
        """Add the products of n_groups tiles of x, and of as many `second` bytes further on unless that is 0,
        with pairs of tiles of weights to the sums in registers."""
        for _ in range(n_groups):
            if second:
                multiply(state, x, x + second, weights)
            else:
                multiply_first(state, x, weights)
            x += TILE
            weights += STEP_BYTES

    @jit
    def finish_rows(a: Any, m: Matrix, block: Block, first: int, last: int) -> None:
        """Write the outputs of rows first … last - 1 of a block whose sums are complete."""
        alone = a.gate == 0 and 2 * block.pair + 1 == a.n_panels
        for t in range(first, last):
            at = block.sums + t // ROWS * 2 * TILE + t % ROWS * 64
            value, other = loadv_f32(at), loadv_f32(at + TILE)
            out = a.out + (block.tile * ROWS + t) * a.out_stride
            if a.gate:
                column = block.pair * VECTOR
                storev_f32(out + column, gated_outputs(a, column, m.bias, value, other))
            else:
                finish(a, out, 2 * block.pair * VECTOR, m.bias, 0, value)
                if not alone:
                    finish(a, out, (2 * block.pair + 1) * VECTOR, m.bias, 0, other)

    @jit
    def multiply_chunk(
        a: Any,
        m: Matrix,
        state: int,
        chunk: Chunk,
        following: Chunk,
        after: Chunk,
        done: Block,
        pair: int,
        sums: int,
    ) -> Block:
        """Add the products of a chunk with all blocks of rows to their sums.

        Between them, unpack the following chunk, prefetch what the one after that is unpacked from, and write
        outputs whose sums are complete: first those of `done`, at last all but those of the returned block.
        """
        groups, tiles = a.width // GROUP, m.last - m.first
        blocks, complete = row_blocks(tiles), chunk.group + chunk.n_groups == groups
        steps, n_tiles, unpacked, credit = blocks * chunk.n_groups, 2 * following.n_groups, 0, 0
        some = (BLOCK_ROWS + chunk.n_groups - 1) // chunk.n_groups
        for i in range(blocks):
            x = a.x + ((m.first + 2 * i) * groups + chunk.group) * TILE
            second = groups * TILE if 2 * i + 1 < tiles else 0
            if chunk.group == 0:
                zero_sums(state)
            else:
                load_sums(state, sums)
            at, weights, row = x, chunk.at, 0
            for _ in range(chunk.n_groups):
                if second:
                    if m.busy:
                        for line in range(2 * TILE, 3 * TILE, 64):
                            prefetch(at + line)
                            prefetch(at + second + line)
                    multiply(state, at, at + second, weights)
                else:
                    multiply_first(state, at, weights)
                at += TILE
                weights += STEP_BYTES
                credit += n_tiles
                while credit >= steps:
                    unpack_tiles(a, following, unpacked, unpacked + 1)
                    prefetch_tile(a, after, unpacked)
                    unpacked += 1
                    credit -= steps
                if row < done.rows:
                    finish_rows(a, m, done, row, min(done.rows, row + some))
                    row += some
            if floats:
                add_products(state, x + a.x_rest, second, chunk.n_groups, chunk.at)
            if parts == 2:
                add_products(state, x, second, chunk.n_groups, chunk.at + rest)
            store_sums(state, sums)
            done = Block(0, 0, 0, 0)
            if complete:
                tile = m.first + 2 * i
                done = Block(pair, tile, min(BLOCK_ROWS, m.end_row - tile * ROWS), sums)
            sums += SUM_BYTES
        return done

    @jit
    def chunk_at(a: Any, m: Matrix, p: Place, at: int) -> Chunk:
        """The chunk at a place, empty behind the last one."""
        if p.some >= p.end:
            return Chunk(0, 0, 0, 0, at)
        size = chunk_groups(a)
        left = m.weights + p.pair * a.pair_stride
        alone = a.gate == 0 and 2 * p.pair + 1 == a.n_panels
        right = left if alone else left + a.second_offset
        return Chunk(left, right, p.chunk * size, min(size, a.width // GROUP - p.chunk * size), at)

    @jit
    def chunk_groups(a: Any) -> int:
        """Groups in all chunks but the last one of a panel."""
        groups = a.width // GROUP
        n_chunks = (groups + most - 1) // most
        return (groups + n_chunks - 1) // n_chunks

    @jit
    def multiply_pairs(a: Any, rows: Matrix, state: int, first_pair: int, last_pair: int) -> None:
        """The outputs of the pairs of panels first_pair … last_pair - 1 of a matrix, for its rows."""
        size, buffers = chunk_groups(a), state + UNIT_BYTES
        slots, n_chunks = buffers + 2 * GROUPS * STEP_BYTES, (a.width // GROUP + size - 1) // size
        for tile in range(rows.first, rows.last, 2 * BLOCKS):
            last = min(rows.last, tile + 2 * BLOCKS)
            m = Matrix(rows.weights, rows.bias, tile, last, rows.end_row, rows.busy)
            part = max(1, PART_BYTES // (row_blocks(m.last - m.first) * size * STEP_BYTES))
            here, done = Place(first_pair, first_pair, 0, last_pair), Block(0, 0, 0, 0)
            ahead = next_place(here, part, n_chunks)
            chunk = chunk_at(a, m, here, buffers)
            following = chunk_at(a, m, ahead, buffers + GROUPS * STEP_BYTES)
            unpack_tiles(a, chunk, 0, 2 * chunk.n_groups)
            while chunk.n_groups > 0:
                ahead = next_place(ahead, part, n_chunks)
                after = chunk_at(a, m, ahead, chunk.at)
                sums = slots + (here.pair - here.some) * (BLOCKS * SUM_BYTES)
                done = multiply_chunk(a, m, state, chunk, following, after, done, here.pair, sums)
                here = next_place(here, part, n_chunks)
                chunk, following = following, after
            finish_rows(a, m, done, 0, done.rows)

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
