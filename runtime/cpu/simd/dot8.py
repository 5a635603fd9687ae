"""Integer dot products of 8-bit weight codes with 8-bit activations, by the instructions of the SIMD level.

An I32 lane holds four consecutive 8-bit codes of its row; they are multiplied with four activations that are
broadcast to all lanes. `dot` makes one vector of sums for a gemv; `gemm_tile` makes a tile of them.

=====================  ========================================
level                  acc + Σ of 4 products a lane
=====================  ========================================
avx512vnni, avxvnni    vpdpbusd
avx512, avx2           vpmaddubsw, vpaddw, later vpmaddwd
i8mm, neon             sdot
plain, plain16         widening multiplications
=====================  ========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ....quant.jit.levels import ARM64, AVX_WITHOUT_VNNI, LANES, LEVEL
from ....quant.jit.llvm_ir import F32V, I8, I8V, I16V, I32_, I32V, all_lanes, beside, call, load, splat
from ....quant.jit.simd.vectors import F32, I32, compile_time, intrinsic

VNNI = LEVEL in ("avx512vnni", "avxvnni")
REGISTER = "w" if ARM64 else {"plain": "", "plain16": ""}.get(LEVEL, "v")  # LLVM's name for a vector register


@compile_time
@dataclass(frozen=True)
class Codes:
    """A compile-time constant: the range of the unpacked 8-bit codes of the format `name`.

    A code represents the number code - zero. It lies in 0…limit, or in -limit…limit if `signed`. Float types
    have limit 0.
    """

    name: str
    limit: int
    zero: int = 0
    signed: bool = False


def broadcast4(builder: Any, address: Any, offset: int) -> Any:
    """The four bytes at `address` + `offset` in every lane; vpbroadcastd from memory."""
    if ARM64:  # sdot takes a lane of a register, so that one load serves four broadcasts
        x = load(builder, beside(builder, address, offset // 16 * 16), I32V, 4)
        lane = all_lanes(I32V, offset % 16 // 4)
        return builder.bitcast(builder.shuffle_vector(x, x, lane), I8V)
    four = load(builder, beside(builder, address, offset), I32_, 4)
    return builder.bitcast(splat(builder, four, I32V), I8V)


def keep_order(builder: Any, values: list) -> list:
    """The same values, opaque to the optimiser: it would otherwise hoist all loads and spill registers.

    An empty inline assembly that claims to change the values; it adds no instruction.
    """
    if not REGISTER:  # levels plain and plain16: vectors may be split over registers
        return values
    n, kinds = len(values), [v.type for v in values]
    result = ir.LiteralStructType(kinds)
    constraints = ",".join([f"={REGISTER}"] * n + [str(i) for i in range(n)])
    asm = ir.InlineAsm(ir.FunctionType(result, kinds), "", constraints, side_effect=True)
    packed = builder.call(asm, values)
    return [builder.extract_value(packed, i) for i in range(n)]


class _DirectSums:
    """Sums of products at levels whose instructions accumulate in 32 bits. `cells` are their keys."""

    def __init__(self, builder: Any, cells: list, limit: int, signed: bool) -> None:
        self._builder, self._signed = builder, signed
        self._sums = dict.fromkeys(cells, all_lanes(I32V, 0))

    @staticmethod
    def kinds(limit: int, count: int) -> int:
        """How many vectors a sum is kept in while `count` words of codes up to `limit` are added to it."""
        return 1

    def prepare(self, word: Any) -> Any:
        """The word of codes in the form that `add` takes. vpdpbusd needs unsigned codes: signed ones are
        shifted by 128, which `code_offset` accounts for.
        """
        return self._builder.xor(word, all_lanes(I8V, 0x80)) if VNNI and self._signed else word

    def add(self, cell: Any, word: Any, x: Any) -> None:
        """Add the products of a prepared word and broadcast activations `x` to a sum."""
        self._sums[cell] = _ADDS[LEVEL](self._builder, self._sums[cell], word, x, self._signed)

    def keep_order(self) -> None:
        """Keep LLVM from moving loads across this point."""
        kept = keep_order(self._builder, list(self._sums.values()))
        self._sums = dict(zip(self._sums, kept, strict=True))

    def total(self, cell: Any) -> Any:
        """The finished sum, I32."""
        return self._sums[cell]


def _add_vnni(builder: Any, total: Any, word: Any, x: Any, signed: bool) -> Any:
    """total + 4 products a lane by vpdpbusd."""
    arguments = (total, builder.bitcast(word, I32V), builder.bitcast(x, I32V))
    return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", I32V, *arguments)


def sdot(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """total + 4 products a lane of signed bytes, on arm64."""
    return call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", I32V, total, a, b)


def _add_neon(builder: Any, total: Any, word: Any, x: Any, signed: bool) -> Any:
    """sdot takes signed bytes; unsigned codes are at most 127."""
    return sdot(builder, total, word, x)


def _add_plain(builder: Any, total: Any, word: Any, x: Any, signed: bool) -> Any:
    """Four multiplications a lane, of bytes extracted by shifts."""

    def byte(v: Any, i: int, signed: bool) -> Any:
        v = builder.shl(builder.bitcast(v, I32V), all_lanes(I32V, 24 - 8 * i))
        return (builder.ashr if signed else builder.lshr)(v, all_lanes(I32V, 24))

    for i in range(4):
        total = builder.add(total, builder.mul(byte(word, i, signed), byte(x, i, True)))
    return total


_ADDS = {
    "avx512vnni": _add_vnni,
    "avxvnni": _add_vnni,
    "i8mm": _add_neon,
    "neon": _add_neon,
    "plain": _add_plain,
    "plain16": _add_plain,
}


class _PairSums:
    """Sums of products by vpmaddubsw, in 16 bits while they cannot overflow, then in 32 by vpmaddwd."""

    def __init__(self, builder: Any, cells: list, limit: int, signed: bool) -> None:
        self._builder, self._signed = builder, signed
        self._run = self._longest_run(limit)
        self._wide: dict = dict.fromkeys(cells)
        self._narrow: dict = dict.fromkeys(cells)
        self._count: dict = dict.fromkeys(cells, 0)

    @staticmethod
    def _longest_run(limit: int) -> int:
        """The number of words of codes whose products can be summed in 16 bits."""
        return max(1, 32767 // (2 * 127 * limit))

    @staticmethod
    def kinds(limit: int, count: int) -> int:
        """How many vectors a sum is kept in while `count` words of codes up to `limit` are added to it."""
        return 1 if _PairSums._longest_run(limit) >= count else 2

    def prepare(self, word: Any) -> Any:
        """The word of codes in the form that `add` takes: signed codes as magnitudes and signs."""
        if not self._signed:
            return word
        b = self._builder
        if LANES == 8:
            return call(b, "llvm.abs.v32i8", I8V, word, ir.Constant(ir.IntType(1), 0)), word
        negative = b.icmp_signed("<", word, all_lanes(I8V, 0))
        return b.select(negative, b.neg(word), word), negative

    def add(self, cell: Any, word: Any, x: Any) -> None:
        """Add the products of a prepared word and broadcast activations `x` to a sum."""
        b = self._builder
        if self._signed:  # |w| · (x with the sign of w); -128 never meets more than 127
            word, signs = word
            if LANES == 8:
                x = call(b, "llvm.x86.avx2.psign.b", I8V, x, signs)
            else:  # a masked vpsubb; LLVM would share the negation, and need a blend for each panel as well
                own, word = keep_order(b, [x, word])
                x = b.select(signs, b.neg(own), own)
        name = "llvm.x86.avx2.pmadd.ub.sw" if LANES == 8 else "llvm.x86.avx512.pmaddubs.w.512"
        product = call(b, name, I16V, word, x)
        before = self._narrow[cell]
        self._narrow[cell] = product if before is None else b.add(before, product)
        self._count[cell] += 1
        if self._count[cell] == self._run:
            self._widen(cell)

    def keep_order(self) -> None:
        """Keep LLVM from moving loads across this point."""
        for values in (self._narrow, self._wide):
            cells = [c for c in values if values[c] is not None]
            if cells:
                kept = keep_order(self._builder, [values[c] for c in cells])
                values.update(zip(cells, kept, strict=True))

    def _widen(self, cell: Any) -> None:
        """Move the 16-bit part of a sum to its 32-bit part."""
        if self._narrow[cell] is None:
            return
        name = "llvm.x86.avx2.pmadd.wd" if LANES == 8 else "llvm.x86.avx512.pmaddw.d.512"
        wide = call(self._builder, name, I32V, self._narrow[cell], all_lanes(I16V, 1))
        self._wide[cell] = wide if self._wide[cell] is None else self._builder.add(self._wide[cell], wide)
        self._narrow[cell], self._count[cell] = None, 0

    def total(self, cell: Any) -> Any:
        """The finished sum, I32."""
        self._widen(cell)
        return self._wide[cell]


Sums: Any = _PairSums if AVX_WITHOUT_VNNI else _DirectSums


@intrinsic
def dot(typingctx: Any, start: Any, words: Any, address: Any, codes: Any) -> Any:
    """start + Σ codes · activations in each lane, I32.

    `words` is a tuple of n I32, each holding 4 codes a lane; the 4n int8 activations at `address` are shared
    by all lanes. `codes` is a `Codes` constant. Activations are in -127…127.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        before, packed, at, _ = values
        sums = Sums(builder, [0], codes.value.limit, codes.value.signed)
        for i, word in enumerate(cgutils.unpack_tuple(builder, packed, words.count)):
            sums.add(0, sums.prepare(builder.bitcast(word, I8V)), broadcast4(builder, at, 4 * i))
        return builder.add(before, sums.total(0))

    return signature(I32, I32, words, types.int64, codes), codegen


@intrinsic
def code_offset(typingctx: Any, codes: Any) -> Any:
    """The offset of the codes as `dot` multiplies them, F32: Σ (code - zero) · x = dot - offset · Σ x."""
    offset = codes.value.zero + (128 if codes.value.signed and VNNI else 0)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return all_lanes(F32V, float(offset))

    return signature(F32, codes), codegen


@intrinsic
def lookup16(typingctx: Any, table: Any, index: Any) -> Any:
    """table[index] for every byte of an I32; `table` is a tuple of 16 ints, index bytes are 0…15; vpshufb."""
    if not isinstance(table, types.BaseTuple) or len(table) != 16:
        return None

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        entries = [builder.trunc(v, I8) for v in cgutils.unpack_tuple(builder, values[0], 16)]
        where = builder.bitcast(values[1], I8V)
        if LEVEL in ("plain", "plain16"):
            result = all_lanes(I8V, 0)
            for i, entry in enumerate(entries):
                hit = builder.icmp_unsigned("==", where, all_lanes(I8V, i))
                result = builder.select(hit, splat(builder, entry, I8V), result)
            return builder.bitcast(result, I32V)
        lut = ir.Constant(ir.VectorType(I8, 16), ir.Undefined)
        for i, entry in enumerate(entries):
            lut = builder.insert_element(lut, entry, ir.Constant(I32_, i))
        if ARM64:
            return builder.bitcast(call(builder, "llvm.aarch64.neon.tbl1.v16i8", I8V, lut, where), I32V)
        order = [ir.Constant(I32_, i % 16) for i in range(4 * LANES)]
        lut = builder.shuffle_vector(lut, lut, ir.Constant(ir.VectorType(I32_, 4 * LANES), order))
        name = "llvm.x86.avx2.pshuf.b" if LANES == 8 else "llvm.x86.avx512.pshuf.b.512"
        return builder.bitcast(call(builder, name, I8V, lut, where), I32V)

    return signature(I32, table, I32), codegen
