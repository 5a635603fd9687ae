"""Products of a group of 32 columns in a register tile: integer sums, scaled and added to float32 totals.

The sums, of a group or of half of it:

=======================  ====================================================================================
levels of x86-64, plain  a word of each panel meets every token's four activations, broadcast (`dot8`)
avx512, avx2             the same for codes of int16, two by two (`dot16`), where 8-bit ones are signed
neon                     the same for three tokens at a time; sdot takes a lane of 16 activations in place of
                         a broadcast, so that they are loaded once
i8mm                     smmla: 8 columns of two rows of weights meet 8 columns of two tokens
=======================  ====================================================================================

smmla makes the sums of two rows and two tokens, so that a panel's words lie in pairs of rows in a record
(`gemm_tile.in_tile_order`), activations in pairs of tokens (`tile_sizes.TOGETHER`), and a register of totals
is of two rows and two tokens, too.

On arm64 the order of instructions is given by `keep_order`, since all 32 registers are in use: 12 totals, 12
integer sums, and what is multiplied next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from ....quant.jit.levels import ARM64, LANES, LEVEL
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    I8,
    I8V,
    I16V,
    I32_,
    I32V,
    all_lanes,
    beside,
    load,
    multiply_add,
    splat,
    vector_of,
)
from .dot8 import Sums, broadcast4, keep_order, sdot
from .dot16 import add_products, signed_halves
from .matrix_products import first_halves, joined, smmla
from .tile_sizes import GROUP, PANELS, TOGETHER, TOKENS, VECTOR

if TYPE_CHECKING:
    from .gemm_tile import TileCodes

_EIGHT = ir.VectorType(I8, 8)

# A register of sums or totals is that of a part of a panel and of TOGETHER tokens from t on: (panel, part,
# t). With one token a part is the whole panel, with a lane for each row. With two it is two rows: two lanes
# of the first token and two of the second.
TS = range(0, TOKENS, TOGETHER)
PARTS = [(p, r) for p in range(PANELS) for r in range(TOGETHER)]
CELLS = [(p, r, t) for p, r in PARTS for t in TS]

# The sums, I32 by cell, over words first … first + count - 1 of each panel. The arguments are the builder, a
# function that loads a vector by its number in the record of weights and its type, the addresses of the
# tokens' codes, whether those lie as in a record, the `TileCodes`, `first` and `count`.
TileSums = Callable[[Any, Callable[[int, Any], Any], list, bool, Any, int, int], dict]


def _by_words(
    builder: Any, vector: Any, xs: list, in_record: bool, codes: Any, first: int, count: int
) -> dict:
    """By one broadcast word of activations at a time.

    Where sums are of two kinds (`dot8.Sums.kinds`), all of them and the totals are more than the registers
    hold: half of the tokens are done after the other half then, which reads the words of weights twice.
    """
    done: dict = {}
    for tokens in _passes(codes, count):
        sums = Sums(builder, [cell for cell in CELLS if cell[2] in tokens], codes.limit, codes.signed)
        for i in range(first, first + count):
            words = [sums.prepare(vector(8 * p + i, I8V)) for p in range(PANELS)]
            for t in tokens:
                x = broadcast4(builder, xs[t], 4 * i)
                for p in range(PANELS):
                    sums.add((p, 0, t), words[p], x)
            sums.keep_order()
        done |= {cell: sums.total(cell) for cell in CELLS if cell[2] in tokens}
    return done


def _passes(codes: Any, count: int) -> list[range]:
    """The tokens of a tile in the parts that are multiplied with a group's words one after the other."""
    if LANES == 16 and not codes.signed and Sums.kinds(codes.limit, count) > 1:
        return [range(TOKENS // 2), range(TOKENS // 2, TOKENS)]
    return [range(TOKENS)]


def _by_int16(
    builder: Any, vector: Any, xs: list, in_record: bool, codes: Any, first: int, count: int
) -> dict:
    """By pairs of int16; `xs` are the addresses of codes that `gemm_tile.widen_record` wrote, or of int8."""
    sums = dict.fromkeys(CELLS, all_lanes(I32V, 0))
    for i in range(first, first + count):
        for odd in range(2):
            words = [vector(codes.vectors * p + 2 * i + odd, I32V) for p in range(PANELS)]
            for t in range(TOKENS):
                if in_record:
                    x = broadcast4(builder, xs[t], GROUP * odd + 4 * i)
                else:
                    x = signed_halves(builder, builder.bitcast(broadcast4(builder, xs[t], 4 * i), I16V))[odd]
                for p in range(PANELS):
                    cell = p, 0, t
                    sums[cell] = add_products(builder, sums[cell], words[p], builder.bitcast(x, I32V))
            sums = dict(zip(CELLS, keep_order(builder, list(sums.values())), strict=True))
    return sums


def _by_lanes(
    builder: Any, vector: Any, xs: list, in_record: bool, codes: Any, first: int, count: int
) -> dict:
    """By sdot with the lanes of 16 activations: 3 registers of these leave room for all sums."""
    sums = dict.fromkeys(CELLS, all_lanes(I32V, 0))
    for start in range(first, first + count, 4):
        for tokens in (range(TOKENS // 2), range(TOKENS // 2, TOKENS)):
            cells = [(p, 0, t) for p in range(PANELS) for t in tokens]
            x = {t: load(builder, beside(builder, xs[t], 4 * start), I32V, 4) for t in tokens}
            for i in range(4):
                for p in range(PANELS):
                    word = vector(8 * p + start + i, I8V)
                    for t in tokens:
                        four = builder.shuffle_vector(x[t], x[t], all_lanes(I32V, i))
                        sums[p, 0, t] = sdot(builder, sums[p, 0, t], word, builder.bitcast(four, I8V))
                sums |= dict(zip(cells, keep_order(builder, [sums[c] for c in cells]), strict=True))
    return sums


def _by_pairs(
    builder: Any, vector: Any, xs: list, in_record: bool, codes: Any, first: int, count: int
) -> dict:
    """By smmla."""
    sums = dict.fromkeys(CELLS, all_lanes(I32V, 0))
    for column in range(4 * first, 4 * (first + count), 8):
        x = {t: _two_tokens(builder, xs, t, column, in_record) for t in TS}
        for p, r in PARTS:
            rows = vector(8 * p + column // 4 + r, I8V)
            for t, tokens in x.items():
                sums[p, r, t] = smmla(builder, sums[p, r, t], tokens, rows)
        sums = dict(zip(CELLS, keep_order(builder, list(sums.values())), strict=True))
    return sums


def _two_tokens(builder: Any, xs: list, t: int, column: int, in_record: bool) -> Any:
    """8 codes, from a column on, of token t, then of token t + 1."""
    if in_record:
        return load(builder, beside(builder, xs[t], 2 * column), I8V, 4)
    first, second = (load(builder, beside(builder, xs[i], column), _EIGHT, 4) for i in (t, t + 1))
    return builder.shuffle_vector(first, second, vector_of(ir.VectorType(I32_, 16), range(16)))


def token_offset(t: int) -> int:
    """The byte offset of token t's codes in a record of activations."""
    return GROUP * (t - t % TOGETHER) + 8 * (t % TOGETHER)


def wide_offset(t: int) -> int:
    """The same in a record of int16 codes."""
    return 2 * GROUP * t


tile_sums: TileSums = {"i8mm": _by_pairs, "neon": _by_lanes}.get(LEVEL, _by_words)


class Factors:
    """A float32 of each token to multiply totals with, at consecutive addresses or a list of addresses."""

    def __init__(self, builder: Any, at: Any) -> None:
        self._builder, self._at = builder, at

    def of(self, t: int) -> Any:
        """The number of token t in every lane."""
        b = self._builder
        at = self._at[t] if isinstance(self._at, list) else beside(b, self._at, 4 * t)
        return splat(b, load(b, at, FLOAT, 4), F32V)

    def every(self) -> dict:
        """By t, the numbers of TOGETHER tokens from t on, each in as many lanes as the others.

        On arm64 multiplications take a lane of a register, so that one load serves four of them.
        """
        b = self._builder
        if isinstance(self._at, list):
            each = [self.of(t) for t in range(TOKENS)]
            pairs = [each[t : t + TOGETHER] for t in range(0, TOKENS, TOGETHER)]
            return {
                t: pair[0] if TOGETHER == 1 else first_halves(b, *pair)
                for t, pair in zip(TS, pairs, strict=True)
            }
        kinds = [ir.VectorType(FLOAT, min(4, TOKENS - t)) for t in range(0, TOKENS, 4)]
        loaded = [load(b, beside(b, self._at, 16 * i), kind, 4) for i, kind in enumerate(kinds)]
        lanes = {t: [t % 4 + i * TOGETHER // LANES for i in range(LANES)] for t in TS}
        return {t: b.shuffle_vector(loaded[t // 4], loaded[t // 4], vector_of(I32V, lanes[t])) for t in TS}


class Group:
    """LLVM IR of the products of one group of 32 columns.

    `w` is the address of the record of weights, `xs` the addresses of the tokens' codes, which lie as in a
    record of activations or one behind the other, `scales` the tokens' scales.
    """

    def __init__(
        self, builder: Any, w: Any, xs: list, scales: Factors, codes: TileCodes, in_record: bool = True
    ) -> None:
        self.builder, self.w, self.xs, self.scales, self.codes = builder, w, xs, scales, codes
        self.in_record = in_record

    def _vector(self, index: int, kind: Any) -> Any:
        """Vector number `index` of the record of weights."""
        return load(self.builder, beside(self.builder, self.w, index * VECTOR), kind, 4)

    def _factor(self, number: int, part: tuple[int, int]) -> Any:
        """Scale or minimum `number` of the rows of a part of a panel."""
        first = self.codes.vectors * PANELS + (part[0] * self.codes.factors + number) * TOGETHER
        return self._vector(first + part[1], F32V)

    def _factors(self, number: int) -> dict:
        """The same of all parts."""
        return {part: self._factor(number, part) for part in PARTS}

    def add(self, totals: dict, half: int, sums_of_x: Factors | None) -> dict:
        """totals + the products of the whole group, or of half number `half` of it.

        With `sums_of_x`, the tokens' sums of activations, also adds minimum · sum.
        """
        b, codes = self.builder, self.codes
        count = 4 if codes.halves else 8
        multiply = _by_int16 if codes.wide else tile_sums
        sums = multiply(b, self._vector, self.xs, self.in_record, codes, half * count, count)
        out = dict(totals)
        (self._add_by_part if ARM64 else self._add_by_token)(sums, half, sums_of_x, out)
        return out

    def _add_by_token(self, sums: dict, half: int, sums_of_x: Factors | None, out: dict) -> None:
        """Add scale · integer sum, and minimum · sum of activations, for one token after the other."""
        b, scales = self.builder, self._factors(half)
        if sums_of_x is not None:
            minima = self._factors(half + 1 + self.codes.halves)
        for t in TS:
            scale = self.scales.of(t)
            total = sums_of_x.of(t) if sums_of_x is not None else None
            for p, r in PARTS:
                value = b.sitofp(sums[p, r, t], F32V)
                out[p, r, t] = multiply_add(b, value, b.fmul(scales[p, r], scale), out[p, r, t])
                if total is not None:
                    out[p, r, t] = multiply_add(b, minima[p, r], total, out[p, r, t])

    def _add_by_part(self, sums: dict, half: int, sums_of_x: Factors | None, out: dict) -> None:
        """The same for one part of a panel after the other, and for minima when no integer sums are left."""
        b, factors = self.builder, self.scales.every()
        for part in PARTS:
            scale, done = self._factor(half, part), [cell for cell in CELLS if cell[:2] == part]
            for cell in done:
                value = b.sitofp(sums[cell], F32V)
                out[cell] = multiply_add(b, value, b.fmul(scale, factors[cell[2]]), out[cell])
            later = [cell for cell in CELLS if cell[:2] > part]
            kept = keep_order(b, [out[cell] for cell in done] + [sums[cell] for cell in later])
            out.update(zip(done, kept, strict=False))
            sums.update(zip(later, kept[len(done) :], strict=True))
        if sums_of_x is not None:
            minima, factors = self._factors(half + 1 + self.codes.halves), sums_of_x.every()
            for cell in CELLS:
                out[cell] = multiply_add(b, minima[cell[:2]], factors[cell[2]], out[cell])
            out.update(zip(CELLS, keep_order(b, [out[cell] for cell in CELLS]), strict=True))


def by_part(builder: Any, by_token: list) -> dict:
    """Totals as `Group.add` takes them, out of F32 with a token each: PANELS · TOKENS, panel by panel."""
    if TOGETHER == 1:
        return {cell: by_token[cell[0] * TOKENS + cell[2]] for cell in CELLS}
    out = dict.fromkeys(CELLS)
    for p in range(PANELS):
        for t in TS:
            at = p * TOKENS + t
            out[p, 0, t], out[p, 1, t] = joined(builder, by_token[at], by_token[at + 1])
    return out


def by_token(builder: Any, totals: dict) -> list:
    """The reverse of `by_part`."""
    out: list = [None] * (PANELS * TOKENS)
    for p in range(PANELS):
        for t in TS:
            parts = [totals[p, r, t] for r in range(TOGETHER)]
            at = p * TOKENS + t
            out[at : at + TOGETHER] = parts if TOGETHER == 1 else joined(builder, *parts)
    return out
