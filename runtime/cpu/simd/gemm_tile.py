"""The register tile of a gemm: PANELS panels of 8-bit weight codes times TOKENS rows of activations.

Both operands are packed into records at constant offsets, the same for all block formats of 8-bit codes:

* weights, one record a group of 32 columns: for each panel 8 I32 of codes, then for each panel its factors
  (`TileCodes.factors` of them, see `store_factor`): scale(s), then negative minimum(s), if there are any;
* activations, one record a group: for each token 32 int8 codes, or for each TOGETHER tokens 8 codes of each
  in turn; then, float32 [TOKENS] each, the scales, the sums of the 32 values, of the first 16 and of the last
  16.

At levels avx512 and avx2 products of signed 8-bit codes take four instructions, two of them to keep sums of
two from overflowing 16 bits. As int16 (`TileCodes.wide`) half as many take two: weights of such a format are
unpacked to 16 I32 of int16 pairs a panel, and records of activations are made anew for each pair of panels
(`widen_record`). `dot16.signed_halves` has the order. The sums are the same integers.

With 16 vector registers a tile is 2 panels x 3 tokens: six integer sums, six float32 accumulators, two words
of weights and one broadcast word of activations. With 32 registers it is 2 panels x 6 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ....quant.jit.levels import ARM64, AVX_WITHOUT_VNNI
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    I8V,
    I16,
    I16V,
    I32V,
    I64,
    all_lanes,
    beside,
    load,
    store,
)
from ....quant.jit.simd.vectors import F32, I32, compile_time, instruction, intrinsic
from .dot8 import VNNI, Codes
from .dot16 import signed_halves
from .matrix_products import in_pairs, joined
from .tile_group import CELLS, Factors, Group, by_part, by_token, token_offset, wide_offset
from .tile_sizes import (
    GROUP,
    GROUP_SUMS,
    HIGH_SUMS,
    LOW_SUMS,
    PANELS,
    SCALES,
    TOGETHER,
    TOKENS,
    VECTOR,
    WIDE_SCALES,
    weights_record,
)


@compile_time
@dataclass(frozen=True)
class TileCodes:
    """A compile-time constant: the packed codes of a block format, in 0…limit, or -128…127 if `signed`."""

    limit: int
    signed: bool
    halves: bool  # one scale for each 16 columns instead of 32
    minimum: bool  # a negative minimum is added to each weight
    offset: int = 0  # packed code of the number 0, which the minimum accounts for
    shift: int = 0  # packed code minus the format's own code
    wide: bool = False  # packed as int16

    @property
    def factors(self) -> int:
        """Multipliers and minima of a group of a panel."""
        return (1 + self.halves) * (1 + self.minimum)

    @property
    def vectors(self) -> int:
        """Vectors of codes of a group of a panel."""
        return 16 if self.wide else 8

    @property
    def record(self) -> int:
        """Bytes of a group of packed weights of all panels."""
        return weights_record(self.factors, self.vectors)


def tile_codes(codes: Codes, halves: bool, minimum: bool) -> TileCodes:
    """The packed form of the codes of a block format.

    `halves`: the format has a scale for each 16 columns; `minimum`: it has minima.
    """
    limit, signed, offset = codes.limit, codes.signed, codes.zero
    if signed and VNNI:
        limit, signed, offset = 255, False, 128  # vpdpbusd takes unsigned weights
    elif signed and codes.limit < 64 and AVX_WITHOUT_VNNI:
        limit, signed, offset = 2 * codes.limit, False, codes.limit  # unsigned ones can be summed in 16 bits
    elif ARM64:
        signed, offset = True, 0  # sdot and smmla take signed ones, so that no offset is left
    wide = signed and not halves and AVX_WITHOUT_VNNI
    return TileCodes(limit, signed, halves, minimum or offset != 0, offset, offset - codes.zero, wide)


@intrinsic
def add_products(typingctx: Any, sums: Any, weights: Any, x: Any, codes: Any) -> Any:
    """sums + the products of one group; `sums` is a tuple of PANELS · TOKENS F32 (`tile_group.CELLS`).

    `weights` and `x` are the addresses of the records of weights and of activations, both wide or neither.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        before, w, at, _ = values
        totals = dict(zip(CELLS, cgutils.unpack_tuple(builder, before, len(CELLS)), strict=True))
        offset, scales = (wide_offset, WIDE_SCALES) if codes.value.wide else (token_offset, SCALES)
        xs = [beside(builder, at, offset(t)) for t in range(TOKENS)]
        group = Group(builder, w, xs, Factors(builder, beside(builder, at, scales)), codes.value)
        for half in range(1 + codes.value.halves):
            first = (LOW_SUMS, HIGH_SUMS)[half] if codes.value.halves else GROUP_SUMS
            sums_of_x = Factors(builder, beside(builder, at, first)) if codes.value.minimum else None
            totals = group.add(totals, half, sums_of_x)
        return context.make_tuple(builder, sig.return_type, [totals[cell] for cell in CELLS])

    return signature(sums, sums, types.int64, types.int64, codes), codegen


@instruction(types.none, types.int64, types.int64)
def widen_record(builder: Any, x: Any, to: Any) -> None:
    """Make a record of activations for wide codes of that at address `x`: the codes of each token as int16, 8
    pairs of even columns, then 8 of odd ones; then the scales."""
    for t in range(TOKENS):
        codes = load(builder, beside(builder, x, GROUP * t), ir.VectorType(I16, GROUP // 2), 4)
        for odd, part in enumerate(signed_halves(builder, codes)):
            store(builder, part, beside(builder, to, GROUP * (2 * t + odd)), 4)
        scale = load(builder, beside(builder, x, SCALES + 4 * t), FLOAT, 4)
        store(builder, scale, beside(builder, to, WIDE_SCALES + 4 * t), 4)


@instruction(types.UniTuple(I32, 2), I32)
def wide_codes(builder: Any, word: Any) -> Any:
    """A word of four signed codes a lane as two I32 of pairs of int16: the even and the odd ones."""
    parts = signed_halves(builder, builder.bitcast(word, I16V))
    return cgutils.pack_array(builder, [builder.bitcast(part, I32V) for part in parts])


@intrinsic
def tile_layout(typingctx: Any, codes: Any) -> Any:
    """(record, factors, halves) of a TileCodes constant, as numbers for compiled code."""
    c = codes.value
    kinds = types.Tuple((types.int64, types.int64, types.boolean))

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        numbers = [ir.Constant(I64, c.record), ir.Constant(I64, c.factors)]
        return context.make_tuple(builder, kinds, [*numbers, ir.Constant(ir.IntType(1), int(c.halves))])

    return signature(kinds, codes), codegen


@intrinsic
def shift_codes(typingctx: Any, word: Any, codes: Any) -> Any:
    """Pack a word of four codes a lane: add `codes.shift` to each byte."""
    shift = codes.value.shift

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        if not shift:
            return values[0]
        # Adding 128 flips the top bit, without a carry to the next byte; the subtraction then never borrows.
        word = builder.xor(builder.bitcast(values[0], I8V), all_lanes(I8V, 128))
        return builder.bitcast(builder.sub(word, all_lanes(I8V, 128 - shift)), I32V)

    return signature(I32, I32, codes), codegen


@intrinsic
def in_tile_order(typingctx: Any, first: Any, second: Any) -> Any:
    """Two consecutive words of codes in the order of the record of weights: (I32, I32).

    At level i8mm the first two rows come first, 8 columns of each, then the other two; elsewhere they stay.
    """
    kinds = types.UniTuple(I32, 2)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        if TOGETHER == 2:
            values = in_pairs(builder, *values)
        return context.make_tuple(builder, kinds, values)

    return signature(kinds, I32, I32), codegen


@intrinsic
def store_factor(typingctx: Any, address: Any, factor: Any) -> Any:
    """Write a scale or a minimum of each row of a panel as the record of weights has it: FACTOR bytes.

    That is a vector for each part of the panel: the rows of the part, for each of TOGETHER tokens.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        at, factor = values
        parts = [factor] if TOGETHER == 1 else joined(builder, factor, factor)
        for r, part in enumerate(parts):
            store(builder, part, beside(builder, at, r * VECTOR), 4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, F32), codegen


ACCUMULATORS = types.UniTuple(F32, PANELS * TOKENS)


@intrinsic
def zero_sums(typingctx: Any) -> Any:
    """A tile of zero accumulators."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        zero = all_lanes(F32V, 0.0)
        return context.make_tuple(builder, ACCUMULATORS, [zero] * len(ACCUMULATORS))

    return signature(ACCUMULATORS), codegen


@intrinsic
def load_sums(typingctx: Any, address: Any) -> Any:
    """The accumulators that `store_sums` wrote to an address."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        at = [beside(builder, values[0], i * VECTOR) for i in range(len(ACCUMULATORS))]
        totals = by_part(builder, [load(builder, a, F32V, 4) for a in at])
        return context.make_tuple(builder, ACCUMULATORS, [totals[cell] for cell in CELLS])

    return signature(ACCUMULATORS, types.int64), codegen


@intrinsic
def store_sums(typingctx: Any, address: Any, sums: Any) -> Any:
    """Write the accumulators of a tile to an address: of each panel a vector for each token, a lane a row."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        totals = dict(zip(CELLS, cgutils.unpack_tuple(builder, values[1], len(CELLS)), strict=True))
        for i, value in enumerate(by_token(builder, totals)):
            at = beside(builder, values[0], i * VECTOR)
            store(builder, value, at, 4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, ACCUMULATORS), codegen


@intrinsic
def add_residuals(typingctx: Any, addresses: Any, weights: Any, codes: Any) -> Any:
    """Add the products of one group with the residual codes of TOKENS tokens to their accumulators in memory.

    `addresses` is the address of int64 [2 · TOKENS]: the address of each token's residual codes, then the
    address of each token's accumulators in a tile that `store_sums` wrote. Tokens must be distinct.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        table, w, _ = values
        rows = [load(builder, beside(builder, table, 8 * i), I64, 8) for i in range(2 * TOKENS)]
        xs, slots = rows[:TOKENS], rows[TOKENS:]
        at = [beside(builder, slots[t], p * TOKENS * VECTOR) for p in range(PANELS) for t in range(TOKENS)]
        totals = by_part(builder, [load(builder, a, F32V, 4) for a in at])
        scales = Factors(builder, [beside(builder, x, GROUP) for x in xs])
        group = Group(builder, w, xs, scales, codes.value, in_record=False)
        for half in range(1 + codes.value.halves):
            totals = group.add(totals, half, None)
        for a, total in zip(at, by_token(builder, totals), strict=True):
            store(builder, total, a, 4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, types.int64, codes), codegen
