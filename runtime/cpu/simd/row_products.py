"""Products of one group of unpacked weights with several quantised rows, in registers.

Several rows of activations meet a group of 32 columns of a panel while it lies unpacked in registers, so that
weights are read and unpacked once for all of them. Rows are as `quantize_rows` writes them
(`kernels/matmul/quantize.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ....quant.jit.llvm_ir import F32V, FLOAT, I8V, I32_, all_lanes, beside, load, multiply_add, splat, store
from ....quant.jit.simd.vectors import F32, compile_time, intrinsic
from .dot8 import VNNI, Sums, broadcast4
from .tile_sizes import GROUP_SUM, HIGH_SUM, LOW_SUM, RESIDUAL_SCALE, SCALE, VECTOR


@compile_time
@dataclass(frozen=True)
class Rows:
    """A compile-time constant: the number of rows that are multiplied at once."""

    n: int


@intrinsic
def zero_rows(typingctx: Any, rows: Any) -> Any:
    """A tuple of zero F32, one for each of the `Rows`."""
    result = types.UniTuple(F32, rows.value.n)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return context.make_tuple(builder, result, [all_lanes(F32V, 0.0)] * rows.value.n)

    return signature(result, rows), codegen


@intrinsic
def store_rows(typingctx: Any, address: Any, sums: Any) -> Any:
    """Write a tuple of F32 to consecutive vectors at an address."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        for i, value in enumerate(cgutils.unpack_tuple(builder, values[1], len(sums))):
            store(builder, value, beside(builder, values[0], i * VECTOR), 4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, sums), codegen


@intrinsic
def add_row_products(
    typingctx: Any, sums: Any, weights: Any, codes: Any, x: Any, residual: Any, stats: Any, row_bytes: Any
) -> Any:
    """sums + the products of one group of 32 columns with each row; `sums` is a tuple of F32, one a row.

    `weights` as `unpack` returns them, `codes` their `Codes`. `x` is the address of the first row's int8
    codes of the group, `residual` the distance in bytes to its residual codes, `stats` the address of its
    GROUP_STATS; the next row is `row_bytes` further.
    """
    if not isinstance(weights, types.BaseTuple):
        return None

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        before, packed, _, x, residual, stats, row_bytes = values
        group = _Group(builder, cgutils.unpack_tuple(builder, packed, len(weights)), weights, codes.value)
        totals = cgutils.unpack_tuple(builder, before, len(sums))
        for row, total in enumerate(totals):
            distance = builder.mul(row_bytes, ir.Constant(row_bytes.type, row))
            totals[row] = group.add(total, builder.add(x, distance), residual, builder.add(stats, distance))
        return context.make_tuple(builder, sums, totals)

    i64 = types.int64
    return signature(sums, sums, weights, codes, i64, i64, i64, i64), codegen


class _Group:
    """LLVM IR of the products of a group: `values` are the members of the tuple that `unpack` returned."""

    def __init__(self, builder: Any, values: list, kinds: Any, codes: Any) -> None:
        self.builder, self.codes = builder, codes
        self.parts = 2 if len(kinds) in (4, 6) else 1  # runs of columns with a scale of their own
        self.offset = codes.zero + (128 if codes.signed and VNNI else 0)
        self.words = []
        for part in range(self.parts):
            words = cgutils.unpack_tuple(builder, values[part], kinds[part].count)
            sums = self._sums()
            self.words.append([sums.prepare(builder.bitcast(word, I8V)) for word in words])
        self.scales = values[self.parts : 2 * self.parts]
        self.minima = values[2 * self.parts :]

    def _sums(self) -> Any:
        return Sums(self.builder, [0], self.codes.limit, self.codes.signed)

    def _broadcast(self, address: Any) -> Any:
        """The float32 at an address in every lane."""
        b = self.builder
        return splat(b, load(b, address, FLOAT, 4), F32V)

    def _dots(self, x: Any) -> list:
        """Σ code · activation of each part as F32; `x` is the address of the 32 int8 activations."""
        b, dots = self.builder, []
        for part, words in enumerate(self.words):
            sums = self._sums()
            for i, word in enumerate(words):
                sums.add(0, word, broadcast4(b, x, 16 * part + 4 * i))
            dots.append(b.sitofp(sums.total(0), F32V))
        return dots

    def add(self, total: Any, x: Any, residual: Any, stats: Any) -> Any:
        """total + the products with the row whose codes and statistics are at these addresses."""
        b = self.builder
        scale = self._broadcast(beside(b, stats, SCALE))
        products = [b.fmul(dot, scale) for dot in self._dots(x)]
        products = self._add_residuals(products, b.add(x, residual), beside(b, stats, RESIDUAL_SCALE))
        for part, product in enumerate(products):
            at = (LOW_SUM, HIGH_SUM)[part] if self.parts == 2 else GROUP_SUM
            if self.offset or self.minima:
                group_sum = self._broadcast(beside(b, stats, at))
            if self.offset:
                product = multiply_add(b, group_sum, all_lanes(F32V, -float(self.offset)), product)
            if self.minima:
                total = multiply_add(b, b.fneg(self.minima[part]), group_sum, total)
            total = multiply_add(b, product, self.scales[part], total)
        return total

    def _add_residuals(self, products: list, x: Any, scale_at: Any) -> list:
        """products + those of the residual codes at `x`, if their scale is not 0."""
        b = self.builder
        there = b.icmp_signed("!=", load(b, scale_at, I32_, 4), ir.Constant(I32_, 0))
        without = b.block
        with b.if_then(there, likely=False):
            scale = self._broadcast(scale_at)
            added = [
                multiply_add(b, dot, scale, product)
                for dot, product in zip(self._dots(x), products, strict=True)
            ]
            within = b.block
        out = []
        for product, more in zip(products, added, strict=True):
            phi = b.phi(F32V)
            phi.add_incoming(product, without)
            phi.add_incoming(more, within)
            out.append(phi)
        return out
