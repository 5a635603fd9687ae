"""Integer sums of the products of a group, or of half of it, in a register tile: the core of `gemm_tile`.

=========================  ==================================================================================
levels of x86-64, plain    a word of each panel meets every token's four activations, broadcast (`dot8`)
neon                       the same for three tokens at a time; sdot takes a lane of 16 activations in place
                           of a broadcast, so that they are loaded once
i8mm                       smmla: 8 columns of two rows of weights meet 8 columns of two tokens
=========================  ==================================================================================

smmla makes the sums of two rows and two tokens, so that a panel's words lie in pairs of rows in a record
(`in_tile_order`), activations in pairs of tokens (`tile_sizes.TOGETHER`), and the sums of a token are joined
out of two registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ....quant.jit.levels import LEVEL
from ....quant.jit.llvm_ir import I8, I8V, I32_, I32V, I64, all_lanes, beside, call, load, vector_of
from .dot8 import Sums, broadcast4, keep_order
from .tile_sizes import GROUP, PANELS, TOGETHER, TOKENS

_EIGHT = ir.VectorType(I8, 8)
_HALVES, _HALVES_ORDER = ir.VectorType(I64, 2), ir.VectorType(I32_, 2)

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
                    product = (sums[p, r, t], tokens, rows)
                    sums[p, r, t] = call(builder, "llvm.aarch64.neon.smmla.v4i32.v16i8", I32V, *product)
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
    b, wide = builder, [builder.bitcast(sums[p, half, t], _HALVES) for half in (0, 1)]
    second = b.shuffle_vector(*wide, vector_of(_HALVES_ORDER, (1, 3)))
    # LLVM joins the first halves within the first register, which it would copy for the second halves.
    a, c, second = keep_order(b, [*wide, second])
    first = b.shuffle_vector(a, c, vector_of(_HALVES_ORDER, (0, 2)))
    return [b.bitcast(first, I32V), b.bitcast(second, I32V)]


def token_offset(t: int) -> int:
    """The byte offset of token t's codes in a record of activations."""
    return GROUP * (t - t % TOGETHER) + 8 * (t % TOGETHER)


tile_sums: TileSums = {"i8mm": _by_pairs, "neon": _by_lanes}.get(LEVEL, _by_words)
