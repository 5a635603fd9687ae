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
from numba.core.typing.templates import signature

from ....quant.jit.levels import LEVEL
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    I8V,
    I32V,
    I64,
    all_lanes,
    beside,
    load,
    multiply_add,
    splat,
    store,
)
from ....quant.jit.simd.vectors import F32, I32, compile_time, intrinsic
from .dot8 import VNNI, Codes, Sums, broadcast4
from .tile_sizes import GROUP, HIGH_TOTALS, LOW_TOTALS, PANELS, TOKENS, TOTALS, UNITS, VECTOR, weights_record


@compile_time
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
        return weights_record(self.factors)


def tile_codes(codes: Codes, halves: bool, minimum: bool) -> TileCodes:
    """What the codes of a block format become; `halves` and `minimum` tell what the format has itself."""
    limit, signed, offset = codes.limit, codes.signed, codes.zero
    if signed and VNNI:
        limit, signed, offset = 255, False, 128  # vpdpbusd takes unsigned weights
    elif signed and codes.limit < 64 and LEVEL in ("avx512", "avx2"):
        limit, signed, offset = 2 * codes.limit, False, codes.limit  # unsigned ones can be summed in 16 bits
    return TileCodes(limit, signed, halves, minimum or offset != 0, offset, offset - codes.zero)


@intrinsic
def add_products(typingctx: Any, sums: Any, weights: Any, x: Any, codes: Any) -> Any:
    """sums + the products of one group; `sums` is a tuple of PANELS · TOKENS F32, panel by panel."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        before, w, at, _ = values
        totals = cgutils.unpack_tuple(builder, before, PANELS * TOKENS)
        xs = [beside(builder, at, GROUP * t) for t in range(TOKENS)]
        units = [beside(builder, at, UNITS + 4 * t) for t in range(TOKENS)]
        group = _Group(builder, w, xs, units, codes.value)
        for half in range(1 + codes.value.halves):
            first = (LOW_TOTALS, HIGH_TOTALS)[half] if codes.value.halves else TOTALS
            minima = [beside(builder, at, first + 4 * t) for t in range(TOKENS)]
            totals = group.add(totals, half, minima if codes.value.minimum else None)
        return context.make_tuple(builder, sig.return_type, totals)

    return signature(sums, sums, types.int64, types.int64, codes), codegen


@intrinsic
def layout(typingctx: Any, codes: Any) -> Any:
    """(bytes of a record, factors of a panel, whether there is a scale for each 16 columns)."""
    c = codes.value
    kinds = types.Tuple((types.int64, types.int64, types.boolean))

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        numbers = [ir.Constant(I64, c.record), ir.Constant(I64, c.factors)]
        return context.make_tuple(builder, kinds, [*numbers, ir.Constant(ir.IntType(1), int(c.halves))])

    return signature(kinds, codes), codegen


@intrinsic
def raise_codes(typingctx: Any, word: Any, codes: Any) -> Any:
    """Four codes a lane as `TileCodes` wants them: signed ones raised above zero."""
    raised = codes.value.raised

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        if not raised:
            return values[0]
        # Adding 128 is flipping the top bit, which carries nothing into the next byte; the difference borrows
        # nothing.
        word = builder.xor(builder.bitcast(values[0], I8V), all_lanes(I8V, 128))
        return builder.bitcast(builder.sub(word, all_lanes(I8V, 128 - raised)), I32V)

    return signature(I32, I32, codes), codegen


SUMS = types.UniTuple(F32, PANELS * TOKENS)


@intrinsic
def no_sums(typingctx: Any) -> Any:
    """A tile of zeros."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        zero = all_lanes(F32V, 0.0)
        return context.make_tuple(builder, SUMS, [zero] * len(SUMS))

    return signature(SUMS), codegen


@intrinsic
def load_sums(typingctx: Any, address: Any) -> Any:
    """A tile from memory, as `store_sums` wrote it."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        at = [beside(builder, values[0], i * VECTOR) for i in range(len(SUMS))]
        return context.make_tuple(builder, SUMS, [load(builder, a, F32V, 4) for a in at])

    return signature(SUMS, types.int64), codegen


@intrinsic
def store_sums(typingctx: Any, address: Any, sums: Any) -> Any:
    """Write a tile: PANELS · TOKENS vectors, panel by panel."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        for i, value in enumerate(cgutils.unpack_tuple(builder, values[1], len(SUMS))):
            at = beside(builder, values[0], i * VECTOR)
            store(builder, value, at, 4)
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
        rows = [load(builder, beside(builder, table, 8 * i), I64, 8) for i in range(2 * TOKENS)]
        xs, slots = rows[:TOKENS], rows[TOKENS:]
        at = [beside(builder, slots[t], p * TOKENS * VECTOR) for p in range(PANELS) for t in range(TOKENS)]
        totals = [load(builder, a, F32V, 4) for a in at]
        group = _Group(builder, w, xs, [beside(builder, x, GROUP) for x in xs], codes.value)
        for half in range(1 + codes.value.halves):
            totals = group.add(totals, half, None)
        for a, total in zip(at, totals, strict=True):
            store(builder, total, a, 4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, types.int64, codes), codegen


class _Group:
    """The products of a group: weights' record at `w`, each token's codes at `xs`, its unit at `units`."""

    def __init__(self, builder: Any, w: Any, xs: list, units: list, codes: TileCodes) -> None:
        self.builder, self.w, self.xs, self.units, self.codes = builder, w, xs, units, codes

    def _vector(self, index: int, kind: Any) -> Any:
        return load(self.builder, beside(self.builder, self.w, index * VECTOR), kind, 4)

    def _fact(self, address: Any) -> Any:
        b = self.builder
        return splat(b, load(b, address, FLOAT, 4), F32V)

    def add(self, totals: list, half: int, minima_of: list | None) -> list:
        """totals + the products of the whole group or of one half of it; with the minima times what is at the
        addresses `minima_of`, if given."""
        b, codes = self.builder, self.codes
        count = 4 if codes.halves else 8
        cells = [(p, t) for p in range(PANELS) for t in range(TOKENS)]
        sums = Sums(b, cells, codes.limit, codes.signed)
        for i in range(half * count, half * count + count):
            words = [sums.prepare(self._vector(8 * p + i, I8V)) for p in range(PANELS)]
            for t in range(TOKENS):
                x = broadcast4(b, self.xs[t], 4 * i)
                for p in range(PANELS):
                    sums.add((p, t), words[p], x)
            sums.keep_order()
        out = list(totals)
        first = [8 * PANELS + p * codes.factors + half for p in range(PANELS)]
        scales = [self._vector(at, F32V) for at in first]
        if minima_of is not None:
            minima = [self._vector(at + 1 + codes.halves, F32V) for at in first]
        for t in range(TOKENS):
            unit = self._fact(self.units[t])
            total = self._fact(minima_of[t]) if minima_of is not None else None
            for p in range(PANELS):
                k = p * TOKENS + t
                value = b.sitofp(sums.total((p, t)), F32V)
                out[k] = multiply_add(b, value, b.fmul(scales[p], unit), out[k])
                if total is not None:
                    out[k] = multiply_add(b, minima[p], total, out[k])
        return out
