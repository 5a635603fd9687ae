"""Register tiles of attention: products of queries with keys, and of softmax numerators with values.

A tile of T rows and WIDTH vectors is a tuple of T · WIDTH vectors, row by row, that LLVM keeps in registers.
A row is a query; `rows` are a tuple of T addresses. In each step of a product, one scalar of every row (of a
query, or of its softmax numerators) is broadcast and multiplied with the step's vectors (of keys or of
values): an outer product. The loops are emitted as LLVM IR, which costs Numba no time for type inference.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ....quant.jit.levels import ARM64
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    I8V,
    I32_,
    I32V,
    I64,
    all_lanes,
    beside,
    fetch,
    fold,
    larger,
    load,
    multiply_add,
    splat,
    store,
)
from ....quant.jit.simd.vectors import F32, I32, intrinsic
from .cache_vectors import KEYS, STEPS, VALUES, WIDTH
from .dot8 import keep_order, sdot
from .dot16 import add_products
from .tile_sizes import GROUP, VECTOR


def _zeros(kind: Any, vector: Any, rows: Any) -> Any:
    """Signature and code of a tile of zeros of the vector type `kind`."""
    n = WIDTH * rows.count

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return cgutils.pack_array(builder, [ir.Constant(vector, None)] * n)

    return signature(types.UniTuple(kind, n), rows), codegen


@intrinsic
def int_tile(typingctx: Any, rows: Any) -> Any:
    """A tile of I32 zeros with as many rows as `rows` has members."""
    return _zeros(I32, I32V, rows)


@intrinsic
def float_tile(typingctx: Any, rows: Any) -> Any:
    """A tile of F32 zeros with as many rows as `rows` has members."""
    return _zeros(F32, F32V, rows)


def _add_floats(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """total + a · b of F32 vectors."""
    return multiply_add(builder, a, b, total)


# Where products prefetch to. On the way to the L1 cache, lines hold its few entries for misses until they
# come from memory, and products wait for their own loads (docs/performance.md).
L2 = 2


def _products(readers: Any, tile: Any, kind: Any, rows: Any) -> Any:
    """Signature and code of the product loop; `readers` is `KEYS` or `VALUES`."""
    n_bytes, read = readers[kind.value.name]
    n_rows = rows.count
    by_digits = ARM64 and tile.dtype == I32

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        start, _, numbers, first_at, stride, iterations, first_ahead = values
        begin = [ir.Constant(I64, 0), first_at, first_ahead, *cgutils.unpack_tuple(builder, numbers, n_rows)]
        begin += cgutils.unpack_tuple(builder, start, tile.count)
        if by_digits:
            begin += [ir.Constant(I32V, None)] * tile.count
        before = builder.block
        loop, after = builder.append_basic_block("products"), builder.append_basic_block("products.end")
        builder.branch(loop)
        builder.position_at_end(loop)
        phis = [builder.phi(value.type) for value in begin]
        iteration, at, ahead, addresses, total = *phis[:3], phis[3 : 3 + n_rows], phis[3 + n_rows :]
        vectors, next_at = read(builder, at, stride)
        for line in range(0, n_bytes, 64):
            fetch(builder, beside(builder, ahead, line), L2)
        if by_digits:
            _add_by_digits(builder, total, vectors, addresses)
        else:
            _add_by_steps(builder, total, vectors, addresses)
        following = beside(builder, iteration, 1)
        ends = [following, next_at, beside(builder, ahead, n_bytes)]
        ends += [beside(builder, address, 4 * STEPS) for address in addresses]
        for phi, first, end in zip(phis, begin, [*ends, *total], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(end, loop)
        builder.cbranch(builder.icmp_signed("<", following, iterations), loop, after)
        builder.position_at_end(after)
        if by_digits:
            total = _sums_of_digits(builder, total)
        return cgutils.pack_array(builder, total)

    i64 = types.int64
    return signature(tile, tile, kind, rows, i64, i64, i64, i64), codegen


def _add_by_steps(builder: Any, total: list, vectors: list, addresses: list) -> None:
    """Add STEPS steps to the totals, F32 or I32: a step is a float32, or a pair of int16, of each row."""
    floats = total[0].type == F32V
    scalar, vector, add = (FLOAT, F32V, _add_floats) if floats else (I32_, I32V, add_products)
    for step in range(STEPS):
        for row, address in enumerate(addresses):
            x = splat(builder, load(builder, beside(builder, address, 4 * step), scalar, 4), vector)
            for i in range(WIDTH):
                j, v = WIDTH * row + i, vectors[WIDTH * step + i]
                total[j] = add(builder, total[j], v, x)


def _add_by_digits(builder: Any, total: list, vectors: list, addresses: list) -> None:
    """Add products of four numbers of each row (`dot16.digits`) to totals of low, then of high digits."""
    of_low = len(total) // 2
    for row, address in enumerate(addresses):
        both = load(builder, address, ir.VectorType(I32_, 2), 4)
        for digit in range(2):
            x = builder.bitcast(builder.shuffle_vector(both, both, all_lanes(I32V, digit)), I8V)
            for i in range(WIDTH):
                j = digit * of_low + WIDTH * row + i
                total[j] = sdot(builder, total[j], vectors[i], x)


def _sums_of_digits(builder: Any, total: list) -> list:
    """low + 256 · high, of totals of low, then of high digits."""
    of_low, eight = len(total) // 2, all_lanes(I32V, 8)
    return [
        builder.add(low, builder.shl(high, eight))
        for low, high in zip(total[:of_low], total[of_low:], strict=True)
    ]


@intrinsic
def add_key_products(
    typingctx: Any, tile: Any, kind: Any, rows: Any, at: Any, stride: Any, iterations: Any, ahead: Any
) -> Any:
    """tile + queries · keys: the outer products of iterations · STEPS steps, 1 iteration or more.

    `rows` are the addresses of the queries, 4 bytes a step: float32 for float types, else what
    `dot16.store_numbers` wrote.
    Keys of cache type `kind` are read from address `at` on, rows of memory `stride` bytes apart. As many
    bytes are prefetched from `ahead` on, into the L2 cache.
    """
    return _products(KEYS, tile, kind, rows)


@intrinsic
def add_value_products(
    typingctx: Any, tile: Any, kind: Any, rows: Any, at: Any, stride: Any, iterations: Any, ahead: Any
) -> Any:
    """tile + softmax numerators · values; as `add_key_products`, `rows` being addresses of numerators."""
    return _products(VALUES, tile, kind, rows)


@intrinsic
def add_pair_products(typingctx: Any, tile: Any, rows: Any, at: Any, stride: Any) -> Any:
    """tile + the outer products of 16 steps with vectors of int16 pairs from `at` on, `stride` bytes apart.

    `rows` as in `add_key_products`. There is no loop, and the order of instructions needs few registers.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        start, numbers, where, distance = values
        total = cgutils.unpack_tuple(builder, start, tile.count)
        addresses = cgutils.unpack_tuple(builder, numbers, rows.count)
        for step in range(GROUP // 2):
            vectors = [load(builder, beside(builder, where, VECTOR * i), I32V, 4) for i in range(WIDTH)]
            for row, address in enumerate(addresses):
                x = splat(builder, load(builder, beside(builder, address, 4 * step), I32_, 4), I32V)
                for i, vector in enumerate(vectors):
                    j = WIDTH * row + i
                    total[j] = add_products(builder, total[j], vector, x)
            total, where = keep_order(builder, total), builder.add(where, distance)
        return cgutils.pack_array(builder, total)

    return signature(tile, tile, rows, types.int64, types.int64), codegen


@intrinsic
def advanced(typingctx: Any, rows: Any, n: Any) -> Any:
    """The addresses `rows`, each plus n bytes."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        moved = [builder.add(at, values[1]) for at in cgutils.unpack_tuple(builder, values[0], rows.count)]
        return cgutils.pack_array(builder, moved)

    return signature(rows, rows, types.int64), codegen


@intrinsic
def spaced(typingctx: Any, rows: Any, first: Any, distance: Any) -> Any:
    """As many addresses as `rows` has members: first, first + distance, …"""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        addresses = [
            builder.add(values[1], builder.mul(values[2], ir.Constant(I64, i))) for i in range(rows.count)
        ]
        return cgutils.pack_array(builder, addresses)

    return signature(rows, rows, types.int64, types.int64), codegen


@intrinsic
def scale_tile(typingctx: Any, tile: Any, sums: Any, first: Any, second: Any) -> Any:
    """tile + sums · (first, second): an F32 tile, an I32 tile, and an F32 factor of each vector of a row."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        total, ints = (cgutils.unpack_tuple(builder, v, tile.count) for v in values[:2])
        for j in range(tile.count):
            x = builder.sitofp(ints[j], F32V)
            total[j] = multiply_add(builder, x, values[2 + j % WIDTH], total[j])
        return cgutils.pack_array(builder, total)

    return signature(tile, tile, sums, F32, F32), codegen


@intrinsic
def load_tile(typingctx: Any, rows: Any, gap: Any, factors: Any) -> Any:
    """The F32 tile at addresses `rows`, its vectors `gap` bytes apart, times float32 [T] at `factors`."""
    kind = types.UniTuple(F32, WIDTH * rows.count)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        tile = []
        for row, at in enumerate(cgutils.unpack_tuple(builder, values[0], rows.count)):
            factor = splat(builder, load(builder, beside(builder, values[2], 4 * row), FLOAT, 4), F32V)
            for where in (at, builder.add(at, values[1])):
                tile.append(builder.fmul(load(builder, where, F32V, 4), factor))
        return cgutils.pack_array(builder, tile)

    return signature(kind, rows, types.int64, types.int64), codegen


@intrinsic
def add_scaled(typingctx: Any, tile: Any, sums: Any, factors: Any) -> Any:
    """tile + sums · factors: an F32 tile, an I32 tile, and float32 [T] (one a row) at address `factors`."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        total, ints = (cgutils.unpack_tuple(builder, v, tile.count) for v in values[:2])
        for row in range(tile.count // WIDTH):
            factor = splat(builder, load(builder, beside(builder, values[2], 4 * row), FLOAT, 4), F32V)
            for j in range(WIDTH * row, WIDTH * row + WIDTH):
                total[j] = multiply_add(builder, builder.sitofp(ints[j], F32V), factor, total[j])
        return cgutils.pack_array(builder, total)

    return signature(tile, tile, sums, types.int64), codegen


@intrinsic
def store_tile(typingctx: Any, tile: Any, rows: Any, gap: Any) -> Any:
    """Write an F32 tile to the addresses `rows`, the vectors of a row `gap` bytes apart."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        vectors = cgutils.unpack_tuple(builder, values[0], tile.count)
        for row, at in enumerate(cgutils.unpack_tuple(builder, values[1], rows.count)):
            store(builder, vectors[WIDTH * row], at, 4)
            store(builder, vectors[WIDTH * row + 1], builder.add(at, values[2]), 4)
        return context.get_dummy_value()

    return signature(types.none, tile, rows, types.int64), codegen


@intrinsic
def same_for_each(typingctx: Any, value: Any, rows: Any) -> Any:
    """A tuple of the same F32 for each row."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return cgutils.pack_array(builder, [values[0]] * rows.count)

    return signature(types.UniTuple(F32, rows.count), value, rows), codegen


@intrinsic
def store_scores(typingctx: Any, tile: Any, rows: Any, gap: Any, factors: Any, highest: Any) -> Any:
    """Store tile · factors (float32 [T] at an address) as `store_tile` does, and update the running maxima.

    `highest` is a tuple of an F32 for each row; returns the lane-wise maxima of it and the stored vectors.
    NaN is ignored.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        vectors = cgutils.unpack_tuple(builder, values[0], tile.count)
        tops = cgutils.unpack_tuple(builder, values[4], rows.count)
        for row, at in enumerate(cgutils.unpack_tuple(builder, values[1], rows.count)):
            factor = splat(builder, load(builder, beside(builder, values[3], 4 * row), FLOAT, 4), F32V)
            for i, where in enumerate((at, builder.add(at, values[2]))):
                x = builder.fmul(vectors[WIDTH * row + i], factor)
                store(builder, x, where, 4)
                tops[row] = larger(builder, x, tops[row])
        return cgutils.pack_array(builder, tops)

    return signature(highest, tile, rows, types.int64, types.int64, highest), codegen


@intrinsic
def store_highest(typingctx: Any, vectors: Any, address: Any) -> Any:
    """Write the largest lane of each F32 of a tuple: float32 [T] at an address."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        for i, v in enumerate(cgutils.unpack_tuple(builder, values[0], vectors.count)):
            top = fold(builder, v, lambda x, y: larger(builder, x, y))
            store(builder, top, beside(builder, values[1], 4 * i), 4)
        return context.get_dummy_value()

    return signature(types.none, vectors, types.int64), codegen
