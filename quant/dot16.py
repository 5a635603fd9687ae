"""Register tiles of a few numbers a row (queries, weights) times vectors (keys, values), and int16 products.

A tile of T rows and `WIDTH` vectors is a tuple of T·WIDTH vectors, row by row, that LLVM keeps in registers.
`multiply_tile` adds an outer product to it: each row's number is spread over all lanes and meets each vector.
The numbers are float32, or pairs of int16 that meet pairs of int16 in the lanes of an `I32`: this takes one
instruction a vector for two products a lane, twice the rate of float32, and the codes of a
quantised cache become int16 in one more.

=====================  =================================
level                  acc + a₀·b₀ + a₁·b₁
=====================  =================================
avx512vnni, avxvnni    vpdpwssd
avx512, avx2           vpmaddwd + vpaddd
neon, plain            widening multiplications, additions
=====================  =================================
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from .simd import F32, I32, LANES, LEVEL, instruction, intrinsic

WIDTH = 2  # vectors a tile

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_HALF, _FLOAT = ir.HalfType(), ir.FloatType()
_F32V, _I32V = ir.VectorType(_FLOAT, LANES), ir.VectorType(_I32, LANES)
_I16V, _WIDE = ir.VectorType(_I16, 2 * LANES), ir.VectorType(_I32, 2 * LANES)


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    fnty = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, fnty, name), args)


def _numbers(vector: Any, values: Any) -> ir.Constant:
    return ir.Constant(vector, [ir.Constant(vector.element, v) for v in values])


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def _load_vector(builder: Any, address: Any, offset: int) -> Any:
    return _load(builder, builder.add(address, ir.Constant(_I64, offset)), _F32V, 4)


def _store(builder: Any, value: Any, address: Any, align: int) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def _splat(builder: Any, scalar: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, vector.count), None))


def _dot(builder: Any, acc: Any, a: Any, b: Any) -> Any:
    """acc + a₀·b₀ + a₁·b₁ in each lane of I32 vectors that hold pairs of int16."""
    if LEVEL in ("avx512vnni", "avxvnni"):
        return _call(builder, f"llvm.x86.avx512.vpdpwssd.{32 * LANES}", _I32V, acc, a, b)
    a, b = builder.bitcast(a, _I16V), builder.bitcast(b, _I16V)
    if LEVEL in ("avx512", "avx2"):
        name = "llvm.x86.avx2.pmadd.wd" if LANES == 8 else "llvm.x86.avx512.pmaddw.d.512"
        return builder.add(acc, _call(builder, name, _I32V, a, b))
    products = builder.mul(builder.sext(a, _WIDE), builder.sext(b, _WIDE))
    half = ir.VectorType(_I32, LANES)
    even, odd = (
        builder.shuffle_vector(products, products, _numbers(half, range(i, 2 * LANES, 2))) for i in (0, 1)
    )
    return builder.add(acc, builder.add(even, odd))


@instruction(I32, I32, I32, I32)
def dot_pairs(builder: Any, acc: Any, a: Any, b: Any) -> Any:
    """acc + a₀·b₀ + a₁·b₁ in each lane; a and b hold pairs of int16. vpmaddwd + vpaddd, vpdpwssd."""
    return _dot(builder, acc, a, b)


# --- scalars ---------------------------------------------------------------------------------------------


@instruction(types.float32, types.int64)
def load_f16(builder: Any, address: Any) -> Any:
    """The fp16 at an address, widened."""
    return builder.fpext(_load(builder, address, _HALF, 2), _FLOAT)


@instruction(types.int64, types.int64)
def load_i8(builder: Any, address: Any) -> Any:
    """The int8 at an address."""
    return builder.sext(_load(builder, address, _I8, 1), _I64)


@instruction(types.none, types.int64, types.int64)
def store_i8(builder: Any, address: Any, value: Any) -> None:
    """Write the low byte of a number."""
    _store(builder, builder.trunc(value, _I8), address, 1)


@instruction(types.int64, types.int64)
def load_i64(builder: Any, address: Any) -> Any:
    """The int64 at an address."""
    return _load(builder, address, _I64, 8)


@instruction(types.none, types.int64, types.int64)
def store_i64(builder: Any, address: Any, value: Any) -> None:
    """Write an int64."""
    _store(builder, value, address, 8)


# --- vectors ---------------------------------------------------------------------------------------------


@instruction(types.none, types.int64, I32)
def storev_i16(builder: Any, address: Any, value: Any) -> None:
    """Write the low half of each lane."""
    _store(builder, builder.trunc(value, ir.VectorType(_I16, LANES)), address, 2)


@instruction(F32, F32, types.int64, types.int64, types.float32)
def keep_lanes(builder: Any, a: Any, first: Any, last: Any, other: Any) -> Any:
    """a in the lanes first … last-1, `other` in the rest; vpcmpgtd + vblendvps."""
    lanes = _numbers(_I32V, range(LANES))
    low, high = (_splat(builder, builder.trunc(i, _I32), _I32V) for i in (first, last))
    inside = builder.and_(builder.icmp_signed(">=", lanes, low), builder.icmp_signed("<", lanes, high))
    return builder.select(inside, a, _splat(builder, other, _F32V))


@instruction(F32, F32, F32)
def times_power(builder: Any, a: Any, n: Any) -> Any:
    """a · 2^n for whole numbers n, by adding to the exponent: only while the result is a normal number."""
    power = builder.shl(builder.fptosi(n, _I32V), _numbers(_I32V, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(a, _I32V), power), _F32V)


@instruction(types.float32, F32)
def first_lane(builder: Any, a: Any) -> Any:
    """The first lane."""
    return builder.extract_element(a, ir.Constant(_I32, 0))


_TWO = types.UniTuple(I32, 2)
_FOUR = types.UniTuple(I32, 4)


def _bytes_as_pairs(builder: Any, address: Any) -> Any:
    """2·LANES int8 as int16."""
    return builder.sext(_load(builder, address, ir.VectorType(_I8, 2 * LANES), 1), _I16V)


def _nibbles(builder: Any, address: Any) -> list:
    """The low and the high signed nibbles of 2·LANES bytes as int16 pairs."""
    wide = _bytes_as_pairs(builder, address)
    four, twelve = (_numbers(_I16V, [i] * 2 * LANES) for i in (4, 12))
    low = builder.ashr(builder.shl(wide, twelve), twelve)
    return [builder.bitcast(v, _I32V) for v in (low, builder.ashr(wide, four))]


@instruction(_TWO, types.int64)
def load_byte_pairs(builder: Any, address: Any) -> Any:
    """4·LANES int8 as two vectors of int16 pairs; vpmovsxbw."""
    second = builder.add(address, ir.Constant(_I64, 2 * LANES))
    pairs = [_bytes_as_pairs(builder, at) for at in (address, second)]
    return cgutils.pack_array(builder, [builder.bitcast(v, _I32V) for v in pairs])


@instruction(_TWO, types.int64)
def load_nibble_pairs(builder: Any, address: Any) -> Any:
    """The signed nibbles of 2·LANES bytes as two vectors of int16 pairs, the low ones first."""
    return cgutils.pack_array(builder, _nibbles(builder, address))


@instruction(_FOUR, types.int64)
def load_two_nibble_pairs(builder: Any, address: Any) -> Any:
    """The signed nibbles of 4·LANES bytes: the low ones of both halves, then the high ones."""
    low, high = _nibbles(builder, address)
    second_low, second_high = _nibbles(builder, builder.add(address, ir.Constant(_I64, 2 * LANES)))
    return cgutils.pack_array(builder, [low, second_low, high, second_high])


# --- tiles -----------------------------------------------------------------------------------------------


def _zeros(kind: Any, vector: Any, rows: Any) -> Any:
    n = WIDTH * rows.count

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return cgutils.pack_array(builder, [ir.Constant(vector, None)] * n)

    return signature(types.UniTuple(kind, n), rows), codegen


@intrinsic
def int_tile(typingctx: Any, rows: Any) -> Any:
    """A tile of I32 zeros with as many rows as the tuple `rows` has members."""
    return _zeros(I32, _I32V, rows)


@intrinsic
def float_tile(typingctx: Any, rows: Any) -> Any:
    """A tile of F32 zeros with as many rows as the tuple `rows` has members."""
    return _zeros(F32, _F32V, rows)


@intrinsic
def multiply_tile(typingctx: Any, tile: Any, vectors: Any, rows: Any, offset: Any) -> Any:
    """tile + numbers · vectors.

    `vectors` are `WIDTH` vectors, or several times as many for several steps at once; each row's numbers, 4
    bytes a step, lie at its address in `rows` plus `offset`. F32: float32; I32: pairs of int16.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        total = cgutils.unpack_tuple(builder, values[0], tile.count)
        vs = cgutils.unpack_tuple(builder, values[1], vectors.count)
        ats = [builder.add(at, values[3]) for at in cgutils.unpack_tuple(builder, values[2], rows.count)]
        scalar, vector = (_FLOAT, _F32V) if tile.dtype == F32 else (_I32, _I32V)
        for step in range(vectors.count // WIDTH):
            for row, at in enumerate(ats):
                number = _load(builder, builder.add(at, ir.Constant(_I64, 4 * step)), scalar, 4)
                x = _splat(builder, number, vector)
                for i in range(WIDTH):
                    j, v = WIDTH * row + i, vs[WIDTH * step + i]
                    if tile.dtype == F32:
                        total[j] = _call(builder, f"llvm.fmuladd.v{LANES}f32", _F32V, x, v, total[j])
                    else:
                        total[j] = _dot(builder, total[j], v, x)
        return cgutils.pack_array(builder, total)

    return signature(tile, tile, vectors, rows, types.int64), codegen


@intrinsic
def scale_tile(typingctx: Any, tile: Any, sums: Any, first: Any, second: Any) -> Any:
    """tile + sums · (first, second): an F32 tile, an I32 tile, and a factor for each of its columns."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        total, ints = (cgutils.unpack_tuple(builder, v, tile.count) for v in values[:2])
        for j in range(tile.count):
            x = builder.sitofp(ints[j], _F32V)
            total[j] = _call(builder, f"llvm.fmuladd.v{LANES}f32", _F32V, x, values[2 + j % WIDTH], total[j])
        return cgutils.pack_array(builder, total)

    return signature(tile, tile, sums, F32, F32), codegen


@intrinsic
def load_tile(typingctx: Any, rows: Any, gap: Any, factors: Any) -> Any:
    """The F32 tile at addresses `rows`, its columns `gap` bytes apart, times float32 [rows] at `factors`."""
    kind = types.UniTuple(F32, WIDTH * rows.count)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        tile = []
        for row, at in enumerate(cgutils.unpack_tuple(builder, values[0], rows.count)):
            number = _load(builder, builder.add(values[2], ir.Constant(_I64, 4 * row)), _FLOAT, 4)
            factor = _splat(builder, number, _F32V)
            for where in (at, builder.add(at, values[1])):
                tile.append(builder.fmul(_load(builder, where, _F32V, 4), factor))
        return cgutils.pack_array(builder, tile)

    return signature(kind, rows, types.int64, types.int64), codegen


@intrinsic
def add_scaled(typingctx: Any, tile: Any, sums: Any, factors: Any, stride: Any) -> Any:
    """tile + sums · factor of its row; the float32 factors lie `stride` bytes apart."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        total, ints = (cgutils.unpack_tuple(builder, v, tile.count) for v in values[:2])
        at = values[2]
        for row in range(tile.count // WIDTH):
            factor = _splat(builder, _load(builder, at, _FLOAT, 4), _F32V)
            for j in range(WIDTH * row, WIDTH * row + WIDTH):
                x = builder.sitofp(ints[j], _F32V)
                total[j] = _call(builder, f"llvm.fmuladd.v{LANES}f32", _F32V, x, factor, total[j])
            at = builder.add(at, values[3])
        return cgutils.pack_array(builder, total)

    return signature(tile, tile, sums, types.int64, types.int64), codegen


@intrinsic
def store_tile(typingctx: Any, tile: Any, rows: Any, gap: Any) -> Any:
    """Write an F32 tile to the addresses `rows`, its columns `gap` bytes apart."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        vectors = cgutils.unpack_tuple(builder, values[0], tile.count)
        for row, at in enumerate(cgutils.unpack_tuple(builder, values[1], rows.count)):
            _store(builder, vectors[WIDTH * row], at, 4)
            _store(builder, vectors[WIDTH * row + 1], builder.add(at, values[2]), 4)
        return context.get_dummy_value()

    return signature(types.none, tile, rows, types.int64), codegen


@intrinsic
def store_scores(typingctx: Any, tile: Any, rows: Any, gap: Any, factors: Any, highest: Any) -> Any:
    """`store_tile` of the tile times float32 [rows] at `factors`; returns the larger of that and `highest`.

    `highest` is a tuple of an F32 for each row. NaN is passed over.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        vectors = cgutils.unpack_tuple(builder, values[0], tile.count)
        tops = cgutils.unpack_tuple(builder, values[4], rows.count)
        for row, at in enumerate(cgutils.unpack_tuple(builder, values[1], rows.count)):
            number = _load(builder, builder.add(values[3], ir.Constant(_I64, 4 * row)), _FLOAT, 4)
            factor = _splat(builder, number, _F32V)
            for i, where in enumerate((at, builder.add(at, values[2]))):
                x = builder.fmul(vectors[WIDTH * row + i], factor)
                _store(builder, x, where, 4)
                tops[row] = builder.select(builder.fcmp_ordered(">", x, tops[row]), x, tops[row])
        return cgutils.pack_array(builder, tops)

    return signature(highest, tile, rows, types.int64, types.int64, highest), codegen


@intrinsic
def store_highest(typingctx: Any, vectors: Any, address: Any) -> Any:
    """The largest lane of each F32 of a tuple, as float32 one after the other."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        for i, v in enumerate(cgutils.unpack_tuple(builder, values[0], vectors.count)):
            width = LANES
            while width > 1:
                width //= 2
                order = ir.VectorType(_I32, width)
                low, high = (
                    builder.shuffle_vector(v, v, _numbers(order, range(start, start + width)))
                    for start in (0, width)
                )
                v = builder.select(builder.fcmp_ordered(">", low, high), low, high)
            at = builder.add(values[1], ir.Constant(_I64, 4 * i))
            _store(builder, builder.extract_element(v, ir.Constant(_I32, 0)), at, 4)
        return context.get_dummy_value()

    return signature(types.none, vectors, types.int64), codegen


@intrinsic
def same_for_each(typingctx: Any, value: Any, rows: Any) -> Any:
    """A tuple that has the F32 once for each member of the tuple `rows`."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return cgutils.pack_array(builder, [values[0]] * rows.count)

    return signature(types.UniTuple(F32, rows.count), value, rows), codegen
