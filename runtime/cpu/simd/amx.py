"""Products of bfloat16 in matrix tiles (AMX): registers of 16 rows x 64 bytes.

A product works on SUM_TILES = 2 x 2 tiles of sums: two tiles of 16 rows of activations, times two of 16
outputs. A step adds a group of 32 columns to them with four loads and four `tdpbf16ps`, as many products a
load as eight registers allow. Operands lie in memory as the registers hold them, TILE bytes each, without a
gap:

* weights, a tile a group of a panel: bfloat16 [16 pairs of columns, LANES outputs, 2];
* activations, a tile a group of 16 rows: bfloat16 [16 rows, 32 columns], a row of tiles behind the other;
* sums, float32 [16 rows, LANES outputs]; first the rows' first tile with both panels, then their second.

`unpack` gives words of four columns. Their first and third column make a pair and so do the second and the
fourth, which needs no shuffle of bytes; COLUMNS is the order of the activations that goes with it.

The instructions are emitted by a `TileUnit`. `AMX` is the CPU's own; tests have another whose registers are
in memory, so that the same kernels run on any CPU, at level `plain16` where there is no `avx512bf16`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ....quant.jit.levels import LEVEL
from ....quant.jit.llvm_ir import F32V, I8, I32_, I32V, I64, all_lanes, beside, call, multiply_add, store
from ....quant.jit.simd.vectors import F32, instruction, intrinsic
from .amx_sizes import ROWS, TILE, UNIT_BYTES

VOID = ir.VoidType()
WORDS = ir.VectorType(ir.IntType(16), 32)
COLUMNS = [4 * i + j for i in range(8) for j in (0, 2, 1, 3)]
# Numbers of the registers.
X, W, SUMS = (0, 1), (2, 3), ((4, 5), (6, 7))


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


class TileUnit(Protocol):
    """Emits the instructions on tile registers. `state` is the address of UNIT_BYTES bytes of the thread."""

    def begin(self, builder: Any, state: Any) -> None:
        """Make the registers usable, 16 rows of 64 bytes each."""

    def end(self, builder: Any, state: Any) -> None:
        """Give the registers back."""

    def zero(self, builder: Any, state: Any, tile: int) -> None:
        """Set a register to zeros."""

    def load(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        """Load a register from TILE bytes."""

    def load_once(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        """The same for memory that had better not displace what is in the L1 cache."""

    def store(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        """Store a register to TILE bytes."""

    def dot(self, builder: Any, state: Any, sums: int, x: int, w: int) -> None:
        """sums [16, 16] += x [16, 32] · w [16 pairs, 16, 2], float32 and bfloat16."""


class _Amx:
    """The tile registers of the CPU."""

    def _pointer(self, builder: Any, address: Any) -> Any:
        return builder.inttoptr(address, cgutils.voidptr_t)

    def _number(self, tile: int) -> Any:
        return ir.Constant(I8, tile)

    def begin(self, builder: Any, state: Any) -> None:
        """Write the configuration to `state` and load it: palette 1, then colsb as uint16, then rows."""
        numbers = bytearray(64)
        numbers[0] = 1
        for tile in range(8):
            numbers[16 + 2 * tile] = 64
            numbers[48 + tile] = ROWS
        for at in range(0, 64, 4):
            word = ir.Constant(I32_, int.from_bytes(numbers[at : at + 4], "little"))
            store(builder, word, beside(builder, state, at), 4)
        call(builder, "llvm.x86.ldtilecfg", VOID, self._pointer(builder, state))

    def end(self, builder: Any, state: Any) -> None:
        call(builder, "llvm.x86.tilerelease", VOID)

    def zero(self, builder: Any, state: Any, tile: int) -> None:
        call(builder, "llvm.x86.tilezero", VOID, self._number(tile))

    def load(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        pointer, stride = self._pointer(builder, address), ir.Constant(I64, 64)
        call(builder, "llvm.x86.tileloadd64", VOID, self._number(tile), pointer, stride)

    def load_once(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        pointer, stride = self._pointer(builder, address), ir.Constant(I64, 64)
        call(builder, "llvm.x86.tileloaddt164", VOID, self._number(tile), pointer, stride)

    def store(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        pointer, stride = self._pointer(builder, address), ir.Constant(I64, 64)
        call(builder, "llvm.x86.tilestored64", VOID, self._number(tile), pointer, stride)

    def dot(self, builder: Any, state: Any, sums: int, x: int, w: int) -> None:
        numbers = [self._number(tile) for tile in (sums, x, w)]
        call(builder, "llvm.x86.tdpbf16ps", VOID, *numbers)


AMX: TileUnit = _Amx()


class TileFunctions(NamedTuple):
    """Functions on 2 x 2 tiles of sums, for compiled code; arguments are addresses, `state` the unit's."""

    begin: Any  # (state)
    end: Any  # (state)
    zero_sums: Any  # (state)
    load_sums: Any  # (state, sums)
    store_sums: Any  # (state, sums)
    multiply: Any  # (state, x, second, w): add the products of one group; `second`: the second tile of rows
    multiply_first: Any  # (state, x, w): the same for the first tile of rows alone


def tile_functions(unit: TileUnit, rows_once: bool = False) -> TileFunctions:
    """The functions whose instructions a unit emits; `rows_once`: tiles of rows are loaded by `load_once`."""
    load_rows = unit.load_once if rows_once else unit.load
    number, nothing = types.int64, types.none

    @instruction(nothing, number)
    def begin(builder: Any, state: Any) -> None:
        unit.begin(builder, state)

    @instruction(nothing, number)
    def end(builder: Any, state: Any) -> None:
        unit.end(builder, state)

    @instruction(nothing, number)
    def zero_sums(builder: Any, state: Any) -> None:
        for tile in (*SUMS[0], *SUMS[1]):
            unit.zero(builder, state, tile)

    @instruction(nothing, number, number)
    def load_sums(builder: Any, state: Any, sums: Any) -> None:
        for i, tile in enumerate((*SUMS[0], *SUMS[1])):
            unit.load(builder, state, tile, beside(builder, sums, i * TILE))

    @instruction(nothing, number, number)
    def store_sums(builder: Any, state: Any, sums: Any) -> None:
        for i, tile in enumerate((*SUMS[0], *SUMS[1])):
            unit.store(builder, state, tile, beside(builder, sums, i * TILE))

    def add_products(builder: Any, state: Any, rows: list, w: Any) -> None:
        for i, x in enumerate(rows):
            load_rows(builder, state, X[i], x)
        for i in range(2):
            unit.load(builder, state, W[i], beside(builder, w, i * TILE))
        for i in range(len(rows)):
            for j in range(2):
                unit.dot(builder, state, SUMS[i][j], X[i], W[j])

    @instruction(nothing, number, number, number, number)
    def multiply(builder: Any, state: Any, x: Any, second: Any, w: Any) -> None:
        add_products(builder, state, [x, second], w)

    @instruction(nothing, number, number, number)
    def multiply_first(builder: Any, state: Any, x: Any, w: Any) -> None:
        add_products(builder, state, [x], w)

    return TileFunctions(begin, end, zero_sums, load_sums, store_sums, multiply, multiply_first)


def rounded(builder: Any, low: Any, high: Any) -> Any:
    """Two F32 rounded to bfloat16, to even, one behind the other: 32 words; vcvtne2ps2bf16."""
    if LEVEL == "plain16":
        order = ir.Constant(ir.VectorType(I32_, 32), [ir.Constant(I32_, i) for i in range(32)])
        return builder.shuffle_vector(*(_rounded_by_integers(builder, x) for x in (low, high)), order)
    pairs = ir.VectorType(_BFloat(), 32)
    return builder.bitcast(call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", pairs, high, low), WORDS)


def _rounded_by_integers(builder: Any, x: Any) -> Any:
    """An F32 rounded to bfloat16, to even, where the CPU has no instruction for it: 16 words."""
    bits = builder.bitcast(x, I32V)
    high = builder.lshr(bits, all_lanes(I32V, 16))
    odd = builder.and_(high, all_lanes(I32V, 1))
    even = builder.lshr(builder.add(builder.add(bits, odd), all_lanes(I32V, 0x7FFF)), all_lanes(I32V, 16))
    quiet = builder.or_(high, all_lanes(I32V, 0x40))
    words = builder.select(builder.fcmp_unordered("uno", x, x), quiet, even)
    return builder.trunc(words, ir.VectorType(ir.IntType(16), 16))


def in_order(builder: Any, words: Any, order: list[int]) -> Any:
    """The 32 words in another order; vpermw."""
    index = ir.Constant(ir.VectorType(I32_, 32), [ir.Constant(I32_, i) for i in order])
    return builder.shuffle_vector(words, words, index)


@instruction(types.none, types.int64, F32, F32)
def store_columns(builder: Any, address: Any, low: Any, high: Any) -> None:
    """Store the 32 columns of a group of a row, `low` and `high`, as bfloat16 in the order of COLUMNS."""
    store(builder, in_order(builder, rounded(builder, low, high), COLUMNS), address, 64)


@intrinsic
def store_weights(typingctx: Any, address: Any, weights: Any, codes: Any) -> Any:
    """Store one group of a panel as a tile of bfloat16 weights.

    `weights` is what `unpack` returned, `codes` the `Codes` of the format.
    """
    if not isinstance(weights, types.BaseTuple):
        return None
    kinds: Any = weights

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        at, packed, _ = values
        members = cgutils.unpack_tuple(builder, packed, len(kinds))
        parts = 2 if len(kinds) in (4, 6) else 1  # runs of columns with a scale of their own
        row = 0
        for part in range(parts):
            scale = members[parts + part]
            minimum = members[2 * parts + part] if len(kinds) > 2 * parts else None
            numbers = _Numbers(builder, codes.value, scale, minimum)
            for word in cgutils.unpack_tuple(builder, members[part], kinds[part].count):
                first, second, third, fourth = numbers.of(word)
                for low, high in ((first, third), (second, fourth)):
                    pairs = in_order(builder, rounded(builder, low, high), INTERLEAVED)
                    store(builder, pairs, beside(builder, at, 64 * row), 64)
                    row += 1
        return context.get_dummy_value()

    return signature(types.none, types.int64, weights, codes), codegen


INTERLEAVED = [i // 2 + 16 * (i % 2) for i in range(32)]


class _Numbers:
    """Emits the conversion of codes to the weights that they stand for.

    A code is put into the mantissa of a power of two, BASE + code, and a multiply-add does the rest.
    """

    def __init__(self, builder: Any, codes: Any, scale: Any, minimum: Any) -> None:
        self.builder, self.scale, self.signed = builder, scale, codes.signed
        # The lowest bit of a code has the weight 1 at bit 16 of 128.0 and at bit 15 of 256.0.
        self.shift, self.base, bits = (15, 256.0, 0x43800000) if codes.signed else (16, 128.0, 0x43000000)
        self.bits = all_lanes(I32V, bits)
        zero = self.base + codes.zero + (128 if codes.signed else 0)
        below = all_lanes(F32V, -zero)
        if minimum is None:
            self.offset = builder.fmul(scale, below)
        else:
            self.offset = multiply_add(builder, scale, below, builder.fneg(minimum))

    def of(self, word: Any) -> list:
        """The weights of the four codes of each lane, four F32."""
        b = self.builder
        if self.signed:  # -128…127 → 0…255
            word = b.xor(word, all_lanes(I32V, 0x80808080))
        mask = all_lanes(I32V, 0xFF << self.shift)
        numbers = []
        for byte in range(4):
            up = self.shift - 8 * byte
            moved = word
            if up:
                moved = (b.shl if up > 0 else b.lshr)(word, all_lanes(I32V, abs(up)))
            value = b.bitcast(b.or_(b.and_(moved, mask), self.bits), F32V)
            numbers.append(multiply_add(b, value, self.scale, self.offset))
        return numbers


assert UNIT_BYTES >= 64
