"""The register tile of a matrix product: `PANELS` panels of 8-bit weights meet `TOKENS` rows of activations.

Both sides come prepared, so that a step of the loop reads two records at constant offsets, whatever the block
format was:

* weights, one record a group of 32 columns: for each panel 8 I32 of codes, then for each panel its factors
  (`TileCodes.factors` of them, F32 with a lane a row): scale(s), then negative minimum(s), if there are any;
* activations, one record a group: for each token 32 int8 codes; then, `TOKENS` float32 each, the units, the
  sums of the 32 values, of the first 16 and of the last 16.

Sixteen vector registers hold 2 panels x 3 tokens: six sums in flight, six totals, the two weights and what
the activations are broadcast to. With 32 registers it is 6 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.core.typing.templates import signature
from numba.extending import models, register_model, typeof_impl

from . import simd
from .simd import F32, LANES, LEVEL, Codes, intrinsic

PANELS = 2
TOKENS = {"avx512vnni": 6, "avx512": 6, "avxvnni": 3, "avx2": 3, "neon": 6, "plain": 3}[LEVEL]
GROUP = 32
REGISTER = {"neon": "w", "plain": ""}.get(LEVEL, "v")  # LLVM's name for a vector register
VECTOR = 4 * LANES  # bytes
RECORD = TOKENS * (GROUP + 16)  # bytes of a group of activations
SECOND = GROUP + 4  # bytes of a token's second digits of a group: int8 codes and their float32 unit
UNITS, TOTALS, LOW_TOTALS, HIGH_TOTALS = (TOKENS * (GROUP + 4 * i) for i in range(4))


@dataclass(frozen=True)
class TileCodes:
    """A compile-time constant: prepared codes. They lie in 0…limit, or in -128…127 if `signed`."""

    limit: int
    signed: bool
    halves: bool  # a scale for each 16 columns
    minimum: bool  # a negative minimum is added for each value
    offset: int = 0  # code that stands for 0, less the format's own minimum
    raised: int = 0  # what was added to the format's codes

    @property
    def factors(self) -> int:
        return (1 + self.halves) * (1 + self.minimum)

    @property
    def record(self) -> int:
        """Bytes of a group of weights of all panels."""
        return PANELS * (8 + self.factors) * VECTOR


def tile_codes(codes: Codes, halves: bool, minimum: bool) -> TileCodes:
    """What the codes of a block format become; `halves` and `minimum` tell what the format has itself."""
    limit, signed, offset = codes.limit, codes.signed, codes.zero
    if signed and LEVEL in ("avx512vnni", "avxvnni"):
        limit, signed, offset = 255, False, 128  # vpdpbusd takes unsigned weights
    elif signed and codes.limit < 64 and LEVEL in ("avx512", "avx2"):
        limit, signed, offset = 2 * codes.limit, False, codes.limit  # unsigned ones can be summed in 16 bits
    return TileCodes(limit, signed, halves, minimum or offset != 0, offset, offset - codes.zero)


class TileCodesType(types.Type):
    def __init__(self, codes: TileCodes) -> None:
        super().__init__(name=repr(codes))
        self.codes = codes


register_model(TileCodesType)(models.OpaqueModel)


@typeof_impl.register(TileCodes)
def _typeof(value: TileCodes, context: Any) -> TileCodesType:
    return TileCodesType(value)


@lower_constant(TileCodesType)
def _lower(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@intrinsic
def add_products(typingctx: Any, sums: Any, weights: Any, x: Any, codes: Any) -> Any:
    """sums + the products of one group; `sums` is a tuple of PANELS · TOKENS F32, panel by panel."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        before, w, at, _ = values
        totals = cgutils.unpack_tuple(builder, before, PANELS * TOKENS)
        xs = [_plus(builder, at, GROUP * t) for t in range(TOKENS)]
        units = [_plus(builder, at, UNITS + 4 * t) for t in range(TOKENS)]
        group = _Group(builder, w, xs, units, codes.codes)
        for half in range(1 + codes.codes.halves):
            first = (LOW_TOTALS, HIGH_TOTALS)[half] if codes.codes.halves else TOTALS
            minima = [_plus(builder, at, first + 4 * t) for t in range(TOKENS)]
            totals = group.add(totals, half, minima if codes.codes.minimum else None)
        return context.make_tuple(builder, sig.return_type, totals)

    return signature(sums, sums, types.int64, types.int64, codes), codegen


@intrinsic
def layout(typingctx: Any, codes: Any) -> Any:
    """(bytes of a record, factors of a panel, whether there is a scale for each 16 columns)."""
    c = codes.codes
    kinds = types.Tuple((types.int64, types.int64, types.boolean))

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        numbers = [ir.Constant(simd._I64, c.record), ir.Constant(simd._I64, c.factors)]
        return context.make_tuple(builder, kinds, [*numbers, ir.Constant(ir.IntType(1), int(c.halves))])

    return signature(kinds, codes), codegen


@intrinsic
def raise_codes(typingctx: Any, word: Any, codes: Any) -> Any:
    """Four codes a lane as `TileCodes` wants them: signed ones raised above zero."""
    raised = codes.codes.raised

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        if not raised:
            return values[0]
        # Adding 128 is flipping the top bit, which carries nothing into the next byte; the difference borrows
        # nothing.
        word = builder.xor(builder.bitcast(values[0], simd._I8V), simd._constant(simd._I8V, 128))
        return builder.bitcast(builder.sub(word, simd._constant(simd._I8V, 128 - raised)), simd._I32V)

    return signature(simd.I32, simd.I32, codes), codegen


SUMS = types.UniTuple(F32, PANELS * TOKENS)


@intrinsic
def no_sums(typingctx: Any) -> Any:
    """A tile of zeros."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        zero = ir.Constant(simd._F32V, [ir.Constant(simd._FLOAT, 0.0)] * LANES)
        return context.make_tuple(builder, SUMS, [zero] * len(SUMS))

    return signature(SUMS), codegen


@intrinsic
def load_sums(typingctx: Any, address: Any) -> Any:
    """A tile from memory, as `store_sums` wrote it."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        at = [builder.add(values[0], ir.Constant(simd._I64, i * VECTOR)) for i in range(len(SUMS))]
        return context.make_tuple(builder, SUMS, [simd._load(builder, a, simd._F32V, 4) for a in at])

    return signature(SUMS, types.int64), codegen


@intrinsic
def store_sums(typingctx: Any, address: Any, sums: Any) -> Any:
    """Write a tile: PANELS · TOKENS vectors, panel by panel."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        for i, value in enumerate(cgutils.unpack_tuple(builder, values[1], len(SUMS))):
            at = builder.add(values[0], ir.Constant(simd._I64, i * VECTOR))
            builder.store(value, builder.inttoptr(at, simd._F32V.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, SUMS), codegen


@intrinsic
def add_seconds(typingctx: Any, addresses: Any, weights: Any, codes: Any) -> Any:
    """Add one group's products with second digits, of `TOKENS` tokens from anywhere.

    int64 `addresses`: where each token's second digits are, then where each token's sums are in a tile that
    `store_sums` wrote. No two tokens have the same.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        table, w, _ = values
        rows = [simd._load(builder, _plus(builder, table, 8 * i), simd._I64, 8) for i in range(2 * TOKENS)]
        xs, slots = rows[:TOKENS], rows[TOKENS:]
        at = [_plus(builder, slots[t], p * TOKENS * VECTOR) for p in range(PANELS) for t in range(TOKENS)]
        totals = [simd._load(builder, a, simd._F32V, 4) for a in at]
        group = _Group(builder, w, xs, [_plus(builder, x, GROUP) for x in xs], codes.codes)
        for half in range(1 + codes.codes.halves):
            totals = group.add(totals, half, None)
        for a, total in zip(at, totals, strict=True):
            builder.store(total, builder.inttoptr(a, simd._F32V.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, types.int64, codes), codegen


def _plus(builder: Any, address: Any, offset: int) -> Any:
    return builder.add(address, ir.Constant(simd._I64, offset))


def keep_order(builder: Any, values: list) -> list:
    """The same values, opaque to the optimiser, which would load everything first and run out of registers.

    An empty piece of assembly that claims to change them: no instruction comes of it.
    """
    if not REGISTER:  # no telling what a vector becomes
        return values
    n, kinds = len(values), [v.type for v in values]
    result = ir.LiteralStructType(kinds)
    constraints = ",".join([f"={REGISTER}"] * n + [str(i) for i in range(n)])
    asm = ir.InlineAsm(ir.FunctionType(result, kinds), "", constraints, side_effect=True)
    packed = builder.call(asm, values)
    return [builder.extract_value(packed, i) for i in range(n)]


class _Group:
    """The products of a group: weights' record at `w`, each token's codes at `xs`, its unit at `units`."""

    def __init__(self, builder: Any, w: Any, xs: list, units: list, codes: TileCodes) -> None:
        self.builder, self.w, self.xs, self.units, self.codes = builder, w, xs, units, codes

    def _vector(self, index: int, kind: Any) -> Any:
        return simd._load(self.builder, _plus(self.builder, self.w, index * VECTOR), kind, 4)

    def _fact(self, address: Any) -> Any:
        b = self.builder
        return simd._splat(b, simd._load(b, address, simd._FLOAT, 4), simd._F32V)

    def add(self, totals: list, half: int, minima_of: list | None) -> list:
        """totals + the products of the whole group or of one half of it; with the minima times what is at the
        addresses `minima_of`, if given."""
        b, codes = self.builder, self.codes
        count = 4 if codes.halves else 8
        cells = [(p, t) for p in range(PANELS) for t in range(TOKENS)]
        sums = _SUMS[LEVEL](b, cells, codes)
        for i in range(half * count, half * count + count):
            words = sums.prepare([self._vector(8 * p + i, simd._I8V) for p in range(PANELS)])
            for t in range(TOKENS):
                x = simd._broadcast4(b, self.xs[t], 4 * i)
                for p in range(PANELS):
                    sums.add((p, t), words[p], x)
            sums.keep_order()
        fma, out = f"llvm.fmuladd.v{LANES}f32", list(totals)
        first = [8 * PANELS + p * codes.factors + half for p in range(PANELS)]
        scales = [self._vector(at, simd._F32V) for at in first]
        if minima_of is not None:
            minima = [self._vector(at + 1 + codes.halves, simd._F32V) for at in first]
        for t in range(TOKENS):
            unit = self._fact(self.units[t])
            total = self._fact(minima_of[t]) if minima_of is not None else None
            for p in range(PANELS):
                k = p * TOKENS + t
                value = b.sitofp(sums.total((p, t)), simd._F32V)
                out[k] = simd._call(b, fma, simd._F32V, value, b.fmul(scales[p], unit), out[k])
                if total is not None:
                    out[k] = simd._call(b, fma, simd._F32V, minima[p], total, out[k])
        return out


class _Madd:
    """vpmaddubsw into 16 bits, summed while they cannot overflow, then vpmaddwd to 32 bits."""

    def __init__(self, builder: Any, cells: list, codes: TileCodes) -> None:
        self.b, self.codes = builder, codes
        self.run = 1 if codes.signed else max(1, 32767 // (2 * 127 * codes.limit))
        self.wide: dict = dict.fromkeys(cells)
        self.narrow: dict = dict.fromkeys(cells)
        self.count: dict = dict.fromkeys(cells, 0)

    def prepare(self, words: list) -> list:
        if not self.codes.signed:
            return words
        b = self.b
        out = []
        for w in words:
            if LANES == 8:
                out.append((simd._call(b, "llvm.abs.v32i8", simd._I8V, w, ir.Constant(ir.IntType(1), 0)), w))
            else:
                negative = b.icmp_signed("<", w, simd._constant(simd._I8V, 0))
                out.append((b.select(negative, b.neg(w), w), negative))
        return out

    def add(self, cell: Any, w: Any, x: Any) -> None:
        b = self.b
        if self.codes.signed:
            w, sign = w
            if LANES == 8:
                x = simd._call(b, "llvm.x86.avx2.psign.b", simd._I8V, x, sign)
            else:
                x = b.select(sign, b.neg(x), x)
        name = "llvm.x86.avx2.pmadd.ub.sw" if LANES == 8 else "llvm.x86.avx512.pmaddubs.w.512"
        product = simd._call(b, name, simd._I16V, w, x)
        before = self.narrow[cell]
        self.narrow[cell] = product if before is None else b.add(before, product)
        self.count[cell] += 1
        if self.count[cell] == self.run:
            self._widen(cell)

    def keep_order(self) -> None:
        for values in (self.narrow, self.wide):
            cells = [c for c in values if values[c] is not None]
            if cells:
                values.update(zip(cells, keep_order(self.b, [values[c] for c in cells]), strict=True))

    def _widen(self, cell: Any) -> None:
        if self.narrow[cell] is None:
            return
        name = "llvm.x86.avx2.pmadd.wd" if LANES == 8 else "llvm.x86.avx512.pmaddw.d.512"
        wide = simd._call(self.b, name, simd._I32V, self.narrow[cell], simd._constant(simd._I16V, 1))
        self.wide[cell] = wide if self.wide[cell] is None else self.b.add(self.wide[cell], wide)
        self.narrow[cell], self.count[cell] = None, 0

    def total(self, cell: Any) -> Any:
        self._widen(cell)
        return self.wide[cell]


class _Direct:
    """One instruction that multiplies and adds to 32 bits."""

    def __init__(self, builder: Any, cells: list, codes: TileCodes) -> None:
        self.b, self.codes = builder, codes
        self.sums = dict.fromkeys(cells, simd._constant(simd._I32V, 0))

    def keep_order(self) -> None:
        self.sums = dict(zip(self.sums, keep_order(self.b, list(self.sums.values())), strict=True))

    def prepare(self, words: list) -> list:
        return words

    def add(self, cell: Any, w: Any, x: Any) -> None:
        c = Codes("", self.codes.limit, signed=self.codes.signed and LEVEL not in ("avx512vnni", "avxvnni"))
        self.sums[cell] = simd._DOTS[LEVEL](self.b, self.sums[cell], [w], [x], c)

    def total(self, cell: Any) -> Any:
        return self.sums[cell]


_SUMS: dict[str, Any] = {
    "avx512vnni": _Direct,
    "avx512": _Madd,
    "avxvnni": _Direct,
    "avx2": _Madd,
    "neon": _Direct,
    "plain": _Direct,
}
