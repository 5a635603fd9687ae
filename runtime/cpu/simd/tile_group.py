"""Products of a group of 32 columns in a register tile: integer sums, scaled and added to float32 totals.

On arm64 the order of instructions is given by `keep_order` where all 32 registers are in use: 12 totals, 12
integer sums, and what is multiplied next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir

from ....quant.jit.levels import ARM64
from ....quant.jit.llvm_ir import F32V, FLOAT, I32V, all_lanes, beside, load, multiply_add, splat
from .dot8 import keep_order
from .tile_sizes import PANELS, TOGETHER, TOKENS, VECTOR
from .tile_sums import joined_sums, tile_sums

if TYPE_CHECKING:
    from .gemm_tile import TileCodes


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
