"""Products of a group of 32 columns in a register tile: integer sums, scaled and added to float32 totals.

The sums, of a group or of half of it:

=======================  ====================================================================================
levels of x86-64, plain  a word of each panel meets every token's four activations, broadcast (`dot8`)
neon                     the same for three tokens at a time; sdot takes a lane of 16 activations in place of
                         a broadcast, so that they are loaded once
i8mm                     smmla: 8 columns of two rows of weights meet 8 columns of two tokens
=======================  ====================================================================================

smmla makes the sums of two rows and two tokens, so that a panel's words lie in pairs of rows in a record
(`gemm_tile.in_tile_order`), activations in pairs of tokens (`tile_sizes.TOGETHER`), and the sums of a token
are joined out of two registers.

On arm64 the order of instructions is given by `keep_order`, since all 32 registers are in use: 12 totals, 12
integer sums, and what is multiplied next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from ....quant.jit.levels import ARM64, LEVEL
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    I8,
    I8V,
    I32_,
    I32V,
    all_lanes,
    beside,
    call,
    load,
    multiply_add,
    splat,
    vector_of,
)
from .dot8 import Sums, broadcast4, keep_order
from .matrix_products import joined, smmla
from .tile_sizes import GROUP, PANELS, TOGETHER, TOKENS, VECTOR

if TYPE_CHECKING:
    from .gemm_tile import TileCodes

_EIGHT = ir.VectorType(I8, 8)

# The sums by (panel, token), I32, or by (panel, half of its rows, even token), over words first …
# first + count - 1 of each panel. The arguments are the builder, a function that loads a vector by its number
# in the record of weights and its type, the addresses of the tokens' codes, whether those lie as in a record,
# the `TileCodes`, `first` and `count`.
TileSums = Callable[[Any, Callable[[int, Any], Any], list, bool, Any, int, int], dict]


def _by_words(
    builder: Any, vector: Any, xs: list, in_record: bool, codes: Any, first: int, count: int
) -> dict:
    """By one broadcast word of activations at a time."""
    cells = [(p, t) for p in range(PANELS) for t in range(TOKENS)]
    sums = Sums(builder, cells, codes.limit, codes.signed)
    for i in range(first, first + count):
        words = [sums.prepare(vector(8 * p + i, I8V)) for p in range(PANELS)]
        for t in range(TOKENS):
            x = broadcast4(builder, xs[t], 4 * i)
            for p in range(PANELS):
                sums.add((p, t), words[p], x)
        sums.keep_order()
    return {cell: sums.total(cell) for cell in cells}


def _by_lanes(
    builder: Any, vector: Any, xs: list, in_record: bool, codes: Any, first: int, count: int
) -> dict:
    """By sdot with the lanes of 16 activations: 3 registers of these leave room for all sums."""
    sums = {(p, t): all_lanes(I32V, 0) for p in range(PANELS) for t in range(TOKENS)}
    for start in range(first, first + count, 4):
        for tokens in (range(TOKENS // 2), range(TOKENS // 2, TOKENS)):
            cells = [(p, t) for p in range(PANELS) for t in tokens]
            x = {t: load(builder, beside(builder, xs[t], 4 * start), I32V, 4) for t in tokens}
            for i in range(4):
                for p in range(PANELS):
                    word = vector(8 * p + start + i, I8V)
                    for t in tokens:
                        four = builder.shuffle_vector(x[t], x[t], all_lanes(I32V, i))
                        product = (sums[p, t], word, builder.bitcast(four, I8V))
                        sums[p, t] = call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", I32V, *product)
                sums |= dict(zip(cells, keep_order(builder, [sums[c] for c in cells]), strict=True))
    return sums


def _by_pairs(
    builder: Any, vector: Any, xs: list, in_record: bool, codes: Any, first: int, count: int
) -> dict:
    """By smmla."""
    cells = [(p, r, t) for p in range(PANELS) for r in range(2) for t in range(0, TOKENS, 2)]
    sums = dict.fromkeys(cells, all_lanes(I32V, 0))
    for column in range(4 * first, 4 * (first + count), 8):
        x = {t: _two_tokens(builder, xs, t, column, in_record) for t in range(0, TOKENS, 2)}
        for p in range(PANELS):
            for r in range(2):
                rows = vector(8 * p + column // 4 + r, I8V)
                for t, tokens in x.items():
                    sums[p, r, t] = smmla(builder, sums[p, r, t], tokens, rows)
        sums = dict(zip(cells, keep_order(builder, list(sums.values())), strict=True))
    return sums


def _two_tokens(builder: Any, xs: list, t: int, column: int, in_record: bool) -> Any:
    """8 codes, from a column on, of token t, then of token t + 1."""
    if in_record:
        return load(builder, beside(builder, xs[t], 2 * column), I8V, 4)
    first, second = (load(builder, beside(builder, xs[i], column), _EIGHT, 4) for i in (t, t + 1))
    return builder.shuffle_vector(first, second, vector_of(ir.VectorType(I32_, 16), range(16)))


def joined_sums(builder: Any, sums: dict, p: int, t: int) -> list:
    """The sums, I32, of panel p with TOGETHER tokens from t on, out of what `tile_sums` returned."""
    if TOGETHER == 1:
        return [sums[p, t]]
    return list(joined(builder, sums[p, 0, t], sums[p, 1, t]))


def token_offset(t: int) -> int:
    """The byte offset of token t's codes in a record of activations."""
    return GROUP * (t - t % TOGETHER) + 8 * (t % TOGETHER)


tile_sums: TileSums = {"i8mm": _by_pairs, "neon": _by_lanes}.get(LEVEL, _by_words)


class Factors:
    """A float32 of each token to multiply vectors with, at consecutive addresses or a list of addresses."""

    def __init__(self, builder: Any, at: Any) -> None:
        self._builder, self._at, self._four = builder, at, None

    def of(self, t: int) -> Any:
        """The number of token t in every lane. To be asked for one token after the other."""
        b = self._builder
        if isinstance(self._at, list):
            return splat(b, load(b, self._at[t], FLOAT, 4), F32V)
        if not ARM64:
            return splat(b, load(b, beside(b, self._at, 4 * t), FLOAT, 4), F32V)
        if t % 4 == 0:  # multiplications take a lane, so that one load serves four of them
            kind = ir.VectorType(FLOAT, min(4, TOKENS - t))
            self._four = load(b, beside(b, self._at, 4 * t), kind, 4)
        return b.shuffle_vector(self._four, self._four, all_lanes(I32V, t % 4))


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

    def add(self, totals: list, half: int, sums_of_x: Factors | None) -> list:
        """totals + the products of the whole group, or of half number `half` of it.

        With `sums_of_x`, the tokens' sums of activations, also adds minimum · sum.
        """
        b, codes = self.builder, self.codes
        count = 4 if codes.halves else 8
        sums = tile_sums(b, self._vector, self.xs, self.in_record, codes, half * count, count)
        out = list(totals)
        first = [8 * PANELS + p * codes.factors + half for p in range(PANELS)]
        scales = [self._vector(at, F32V) for at in first]
        minima = [at + 1 + codes.halves for at in first]
        if sums_of_x is not None and not ARM64:
            minima = [self._vector(at, F32V) for at in minima]
        for start in range(0, TOKENS, TOGETHER):
            joined = [joined_sums(b, sums, p, start) for p in range(PANELS)]
            for t in range(start, start + TOGETHER):
                scale = self.scales.of(t)
                total = sums_of_x.of(t) if sums_of_x is not None and not ARM64 else None
                for p in range(PANELS):
                    k = p * TOKENS + t
                    value = b.sitofp(joined[p][t - start], F32V)
                    out[k] = multiply_add(b, value, b.fmul(scales[p], scale), out[k])
                    if total is not None:
                        out[k] = multiply_add(b, minima[p], total, out[k])
            if ARM64:
                self._finish_tokens(start, out, sums)
        if sums_of_x is not None and ARM64:
            self._add_minima(minima, sums_of_x, out)
        return out

    def _add_minima(self, minima: list, sums_of_x: Factors, out: list) -> None:
        """Add minimum · sum to all totals, at a time when no integer sums take registers."""
        b = self.builder
        loaded = [self._vector(at, F32V) for at in minima]
        for t in range(TOKENS):
            total = sums_of_x.of(t)
            for p in range(PANELS):
                k = p * TOKENS + t
                out[k] = multiply_add(b, loaded[p], total, out[k])
        out[:] = keep_order(b, out)

    def _finish_tokens(self, start: int, out: list, sums: dict) -> None:
        """Keep LLVM from mixing the work on TOGETHER tokens with that on the next, for lack of registers."""
        done = [p * TOKENS + t for p in range(PANELS) for t in range(start, start + TOGETHER)]
        later = [cell for cell in sums if cell[-1] > start]
        kept = keep_order(self.builder, [out[k] for k in done] + [sums[cell] for cell in later])
        for k, value in zip(done + later, kept, strict=True):
            (sums if k in sums else out)[k] = value
