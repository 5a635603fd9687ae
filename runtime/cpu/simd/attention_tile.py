"""Register tiles: a few numbers a row (of queries, of weights) times vectors (of keys, of values).

A tile of T rows and `WIDTH` vectors is a tuple of T·WIDTH vectors, row by row, that LLVM keeps in registers.
Rows are a tuple of T addresses. The loops are written in LLVM's terms, which takes Numba no time to compile.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ....quant.jit.levels import LANES
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    HALF,
    I32_,
    I32V,
    I64,
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
from .dot16 import add_products, bytes_as_pairs, nibbles_as_pairs

WIDTH = 2  # vectors
STEPS = 2  # in one turn of a loop

# How vectors lie in memory, for each type of a cache: the bytes that a turn reads, and what gives the vectors
# of its steps, one after the other, and the next turn's address. `stride` leads to the next row of memory.


def _floats(half: bool) -> Any:
    size = 2 if half else 4

    def read(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
        vectors = []
        for row in (at, builder.add(at, stride)):
            for i in range(WIDTH):
                where = beside(builder, row, size * LANES * i)
                v = load(builder, where, ir.VectorType(HALF if half else FLOAT, LANES), size)
                vectors.append(builder.fpext(v, F32V) if half else v)
        return vectors, _rows(builder, at, stride, 2)

    return STEPS * WIDTH * LANES * size, read


def _bytes(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    vectors = [
        bytes_as_pairs(builder, beside(builder, row, 2 * LANES * i))
        for row in (at, builder.add(at, stride))
        for i in range(WIDTH)
    ]
    return vectors, _rows(builder, at, stride, 2)


def _nibbles(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """Low and high halves of the same bytes are the two vectors of a step."""
    vectors = [v for row in (at, builder.add(at, stride)) for v in nibbles_as_pairs(builder, row)]
    return vectors, _rows(builder, at, stride, 2)


def _nibble_steps(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """Low and high halves of the same bytes belong to two steps."""
    first, second = (nibbles_as_pairs(builder, beside(builder, at, 2 * LANES * i)) for i in range(WIDTH))
    return [first[0], second[0], first[1], second[1]], _rows(builder, at, stride, 1)


def _rows(builder: Any, at: Any, stride: Any, n: int) -> Any:
    return builder.add(at, builder.mul(stride, ir.Constant(I64, n)))


_PAIRS = STEPS * WIDTH * LANES * 2
KEYS = {
    "F32": _floats(False),
    "F16": _floats(True),
    "Q8_0": (_PAIRS, _bytes),
    "Q4_0": (_PAIRS // 2, _nibble_steps),
}
VALUES = KEYS | {"Q4_0": (_PAIRS // 2, _nibbles)}


def _zeros(kind: Any, vector: Any, rows: Any) -> Any:
    n = WIDTH * rows.count

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return cgutils.pack_array(builder, [ir.Constant(vector, None)] * n)

    return signature(types.UniTuple(kind, n), rows), codegen


@intrinsic
def int_tile(typingctx: Any, rows: Any) -> Any:
    """A tile of I32 zeros for these rows."""
    return _zeros(I32, I32V, rows)


@intrinsic
def float_tile(typingctx: Any, rows: Any) -> Any:
    """A tile of F32 zeros for these rows."""
    return _zeros(F32, F32V, rows)


def _add_floats(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return multiply_add(builder, a, b, total)


def _products(layouts: Any, tile: Any, kind: Any, rows: Any) -> Any:
    n_bytes, read = layouts[kind.value.name]
    n_rows = rows.count
    scalar, vector = (FLOAT, F32V) if tile.dtype == F32 else (I32_, I32V)
    add = _add_floats if tile.dtype == F32 else add_products

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        start, _, numbers, first_at, stride, turns, first_ahead = values
        begin = [ir.Constant(I64, 0), first_at, first_ahead, *cgutils.unpack_tuple(builder, numbers, n_rows)]
        begin += cgutils.unpack_tuple(builder, start, tile.count)
        before = builder.block
        loop, after = builder.append_basic_block("products"), builder.append_basic_block("products.end")
        builder.branch(loop)
        builder.position_at_end(loop)
        phis = [builder.phi(value.type) for value in begin]
        turn, at, ahead, addresses, total = *phis[:3], phis[3 : 3 + n_rows], phis[3 + n_rows :]
        vectors, next_at = read(builder, at, stride)
        for line in range(0, n_bytes, 64):
            fetch(builder, beside(builder, ahead, line))
        for step in range(STEPS):
            for row, address in enumerate(addresses):
                x = splat(builder, load(builder, beside(builder, address, 4 * step), scalar, 4), vector)
                for i in range(WIDTH):
                    j, v = WIDTH * row + i, vectors[WIDTH * step + i]
                    total[j] = add(builder, total[j], v, x)
        following = beside(builder, turn, 1)
        ends = [following, next_at, beside(builder, ahead, n_bytes)]
        ends += [beside(builder, address, 4 * STEPS) for address in addresses]
        for phi, first, end in zip(phis, begin, [*ends, *total], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(end, loop)
        builder.cbranch(builder.icmp_signed("<", following, turns), loop, after)
        builder.position_at_end(after)
        return cgutils.pack_array(builder, total)

    i64 = types.int64
    return signature(tile, tile, kind, rows, i64, i64, i64, i64), codegen


@intrinsic
def add_key_products(
    typingctx: Any, tile: Any, kind: Any, rows: Any, at: Any, stride: Any, turns: Any, ahead: Any
) -> Any:
    """tile + numbers · vectors of keys of type `kind` from `at` on, in `turns` (1 or more) of `STEPS` steps.

    The rows' numbers are 4 bytes a step: float32 for float types, else pairs of int16. As many bytes as are
    read are fetched into the cache from `ahead` on.
    """
    return _products(KEYS, tile, kind, rows)


@intrinsic
def add_value_products(
    typingctx: Any, tile: Any, kind: Any, rows: Any, at: Any, stride: Any, turns: Any, ahead: Any
) -> Any:
    """The same for vectors of values."""
    return _products(VALUES, tile, kind, rows)


@intrinsic
def advanced(typingctx: Any, rows: Any, n: Any) -> Any:
    """All of the addresses moved by n."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        moved = [builder.add(at, values[1]) for at in cgutils.unpack_tuple(builder, values[0], rows.count)]
        return cgutils.pack_array(builder, moved)

    return signature(rows, rows, types.int64), codegen


@intrinsic
def spaced(typingctx: Any, rows: Any, first: Any, distance: Any) -> Any:
    """As many addresses as there are rows, from `first` on."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        found = [
            builder.add(values[1], builder.mul(values[2], ir.Constant(I64, i))) for i in range(rows.count)
        ]
        return cgutils.pack_array(builder, found)

    return signature(rows, rows, types.int64, types.int64), codegen


@intrinsic
def scale_tile(typingctx: Any, tile: Any, sums: Any, first: Any, second: Any) -> Any:
    """tile + sums · (first, second): an F32 tile, an I32 tile, and a factor for each of its columns."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        total, ints = (cgutils.unpack_tuple(builder, v, tile.count) for v in values[:2])
        for j in range(tile.count):
            x = builder.sitofp(ints[j], F32V)
            total[j] = multiply_add(builder, x, values[2 + j % WIDTH], total[j])
        return cgutils.pack_array(builder, total)

    return signature(tile, tile, sums, F32, F32), codegen


@intrinsic
def load_tile(typingctx: Any, rows: Any, gap: Any, factors: Any) -> Any:
    """The F32 tile at addresses `rows`, its columns `gap` bytes apart, times float32 [rows] at `factors`."""
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
    """tile + sums · factor of its row, float32 [rows] at `factors`."""

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
    """Write an F32 tile to the addresses `rows`, its columns `gap` bytes apart."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        vectors = cgutils.unpack_tuple(builder, values[0], tile.count)
        for row, at in enumerate(cgutils.unpack_tuple(builder, values[1], rows.count)):
            store(builder, vectors[WIDTH * row], at, 4)
            store(builder, vectors[WIDTH * row + 1], builder.add(at, values[2]), 4)
        return context.get_dummy_value()

    return signature(types.none, tile, rows, types.int64), codegen


@intrinsic
def same_for_each(typingctx: Any, value: Any, rows: Any) -> Any:
    """A tuple that has the F32 once for each row."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return cgutils.pack_array(builder, [values[0]] * rows.count)

    return signature(types.UniTuple(F32, rows.count), value, rows), codegen


@intrinsic
def store_scores(typingctx: Any, tile: Any, rows: Any, gap: Any, factors: Any, highest: Any) -> Any:
    """`store_tile` of the tile times float32 [rows] at `factors`; returns the larger of that and `highest`.

    `highest` is a tuple of an F32 for each row. NaN is passed over.
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
    """The largest lane of each F32 of a tuple, as float32 one after the other."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        for i, v in enumerate(cgutils.unpack_tuple(builder, values[0], vectors.count)):
            top = fold(builder, v, lambda x, y: larger(builder, x, y))
            store(builder, top, beside(builder, values[1], 4 * i), 4)
        return context.get_dummy_value()

    return signature(types.none, vectors, types.int64), codegen
