"""Products of one group of unpacked weights, which lies in registers, with a quantised row.

Several rows may meet a group of 32 columns while it lies there, so that weights are read and unpacked once
for all of them. Rows are as `quantize_rows` writes them (`kernels/matmul/quantize.py`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    I8V,
    I32_,
    I32V,
    all_lanes,
    beside,
    load,
    multiply_add,
    splat,
    store,
)
from ....quant.jit.simd.vectors import intrinsic
from .dot8 import VNNI, Sums, broadcast4
from .matrix_products import in_pairs, joined, smmla
from .tile_sizes import GROUP_SUM, HIGH_SUM, LOW_SUM, PANELS, RESIDUAL_SCALE, SCALE, VECTOR

ROW_SUMS = PANELS * VECTOR  # bytes of the accumulators of a row


@intrinsic
def add_row_products(
    typingctx: Any, sums: Any, weights: Any, codes: Any, x: Any, residual: Any, stats: Any
) -> Any:
    """Add the products of one group of 32 columns of some panels with one row to the F32 at address `sums`.

    `weights` is a tuple of what `unpack` returned for each of the panels, whose F32 lie one behind the other,
    and `codes` their `Codes`. `x` is the address of the row's int8 codes of the group, `residual` the
    distance in bytes to its residual codes, `stats` the address of its GROUP_STATS.
    """
    if not isinstance(weights, types.BaseTuple):
        return None
    kinds: Any = weights

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        at, packed, _, x, residual, stats = values
        panels = _panels(builder, packed, kinds, codes.value)
        _Row(builder, panels, codes.value, x, builder.add(x, residual), stats).add(at)
        return context.get_dummy_value()

    i64 = types.int64
    return signature(types.none, i64, weights, codes, i64, i64, i64), codegen


@intrinsic
def add_two_rows_products(
    typingctx: Any, sums: Any, weights: Any, codes: Any, x: Any, x_stride: Any, residual: Any, stats: Any
) -> Any:
    """The same with two rows, by smmla, for formats with a scale for 32 columns.

    The second row's codes and GROUP_STATS are `x_stride` bytes behind the first's, its sums ROW_SUMS bytes.
    """
    if not isinstance(weights, types.BaseTuple):
        return None
    kinds: Any = weights

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        at, packed, _, x, stride, residual, stats = values
        panels = _panels(builder, packed, kinds, codes.value)
        rows = [
            _Row(builder, panels, codes.value, x, builder.add(x, residual), stats)
            for x, stats in ((x, stats), (builder.add(x, stride), builder.add(stats, stride)))
        ]
        _TwoRows(builder, panels, rows).add([at, beside(builder, at, ROW_SUMS)])
        return context.get_dummy_value()

    i64 = types.int64
    return signature(types.none, i64, weights, codes, i64, i64, i64, i64), codegen


def _panels(builder: Any, packed: Any, kinds: Any, codes: Any) -> list[_Panel]:
    """The panels of a tuple of what `unpack` returned for each, of Numba's types `kinds`."""
    panels = []
    for i, panel in enumerate(cgutils.unpack_tuple(builder, packed, len(kinds))):
        members = cgutils.unpack_tuple(builder, panel, len(kinds[i]))
        panels.append(_Panel(builder, members, kinds[i], codes))
    return panels


class _Panel:
    """The unpacked weights of a group of a panel; `values` are the members of the tuple of `unpack`."""

    def __init__(self, builder: Any, values: list, kinds: Any, codes: Any) -> None:
        parts = 2 if len(kinds) in (4, 6) else 1  # runs of columns with a scale of their own
        self.words: list[list] = []  # of each part, ready for multiplication
        for part in range(parts):
            words = cgutils.unpack_tuple(builder, values[part], kinds[part].count)
            sums = Sums(builder, [0], codes.limit, codes.signed)
            self.words.append([sums.prepare(builder.bitcast(word, I8V)) for word in words])
        self.scales = values[parts : 2 * parts]
        self.minima = values[2 * parts :]


class _Row:
    """LLVM IR of the products of a row's group with the same group of some panels."""

    def __init__(
        self, builder: Any, panels: list[_Panel], codes: Any, x: Any, residual: Any, stats: Any
    ) -> None:
        self.builder, self.panels, self.codes = builder, panels, codes
        self.x, self.residual, self.stats = x, residual, stats
        self.offset = codes.zero + (128 if codes.signed and VNNI else 0)

    def broadcast(self, offset: int) -> Any:
        """The float32 at an offset of the statistics in every lane."""
        b = self.builder
        return splat(b, load(b, beside(b, self.stats, offset), FLOAT, 4), F32V)

    def _dots(self, x: Any) -> list[list]:
        """Σ code · activation of each part of each panel, F32; `x` is the address of the 32 activations."""
        b = self.builder
        cells = [(p, part) for p, panel in enumerate(self.panels) for part in range(len(panel.words))]
        sums = Sums(b, cells, self.codes.limit, self.codes.signed)
        parts = self.panels[0].words
        for part, words in enumerate(parts):
            for i in range(len(words)):
                activations = broadcast4(b, x, 16 * part + 4 * i)
                for p, panel in enumerate(self.panels):
                    sums.add((p, part), panel.words[part][i], activations)
        return [
            [b.sitofp(sums.total((p, i)), F32V) for i in range(len(parts))] for p in range(len(self.panels))
        ]

    def add(self, at: Any) -> None:
        """Add the products to the F32 of the panels, one behind the other from address `at` on."""
        scale = self.broadcast(SCALE)
        products = [[self.builder.fmul(dot, scale) for dot in dots] for dots in self._dots(self.x)]
        self.finish(at, self._add_residuals(products))

    def finish(self, at: Any, products: list[list]) -> None:
        """Apply the weights' scales and minima, and add to the F32 of the panels from address `at` on."""
        b, parts = self.builder, len(self.panels[0].words)
        sums = []
        if self.offset or self.panels[0].minima:
            sums = [self.broadcast(i) for i in ((LOW_SUM, HIGH_SUM) if parts == 2 else (GROUP_SUM,))]
        for p, panel in enumerate(self.panels):
            to = beside(b, at, p * VECTOR)
            total = load(b, to, F32V, 4)
            for part, product in enumerate(products[p]):
                if self.offset:
                    product = multiply_add(b, sums[part], all_lanes(F32V, -float(self.offset)), product)
                if panel.minima:
                    total = multiply_add(b, b.fneg(panel.minima[part]), sums[part], total)
                total = multiply_add(b, product, panel.scales[part], total)
            store(b, total, to, 4)

    def _add_residuals(self, products: list[list]) -> list[list]:
        """products + those of the residual codes, if their scale is not 0."""
        b = self.builder
        scale_bits = load(b, beside(b, self.stats, RESIDUAL_SCALE), I32_, 4)
        without = b.block
        with b.if_then(b.icmp_signed("!=", scale_bits, ir.Constant(I32_, 0)), likely=False):
            scale = self.broadcast(RESIDUAL_SCALE)
            added = [
                [multiply_add(b, dot, scale, product) for dot, product in zip(*pair, strict=True)]
                for pair in zip(self._dots(self.residual), products, strict=True)
            ]
            within = b.block
        return [
            [_either(b, product, without, more, within) for product, more in zip(*pair, strict=True)]
            for pair in zip(products, added, strict=True)
        ]


class _TwoRows:
    """LLVM IR of the products of two rows' groups with the same group of some panels, by smmla.

    Products with residual codes are computed for both rows if one has some.
    """

    def __init__(self, builder: Any, panels: list[_Panel], rows: list[_Row]) -> None:
        self._builder, self._rows = builder, rows
        self._weights = []  # of each panel, for each 8 columns: two rows, and the other two
        for panel in panels:
            words = [builder.bitcast(word, I32V) for word in panel.words[0]]
            self._weights.append([in_pairs(builder, *words[i : i + 2]) for i in range(0, 8, 2)])

    def add(self, at: list) -> None:
        """Add the products to the F32 of the panels, from one address on for each row."""
        b, rows = self._builder, self._rows
        dots = self._dots([row.x for row in rows])
        scales = [row.broadcast(SCALE) for row in rows]
        products = [[b.fmul(dot, scales[i]) for dot in dots[i]] for i in range(2)]
        bits = [load(b, beside(b, row.stats, RESIDUAL_SCALE), I32_, 4) for row in rows]
        before, zero = b.block, ir.Constant(I32_, 0)
        with b.if_then(b.icmp_signed("!=", b.or_(*bits), zero), likely=False):
            dots, added = self._dots([row.residual for row in rows]), []
            for i, row in enumerate(rows):
                scale, has = row.broadcast(RESIDUAL_SCALE), b.icmp_signed("!=", bits[i], zero)
                for dot, product in zip(dots[i], products[i], strict=True):
                    added.append(b.select(has, multiply_add(b, dot, scale, product), product))
            within = b.block
        last = products[0] + products[1]
        chosen = [_either(b, a, before, c, within) for a, c in zip(last, added, strict=True)]
        for i, row in enumerate(rows):
            own = chosen[i * len(row.panels) : (i + 1) * len(row.panels)]
            row.finish(at[i], [[product] for product in own])

    def _dots(self, xs: list) -> list[list]:
        """Σ code · activation, F32, by row and panel; `xs` are the addresses of the rows' 32 activations."""
        b = self._builder
        columns: list = []
        for i in (0, 16):
            columns += joined(b, *(load(b, beside(b, x, i), I32V, 4) for x in xs))
        dots: list[list] = [[], []]
        for weights in self._weights:
            low = high = all_lanes(I32V, 0)
            for x, (first, last) in zip(columns, weights, strict=True):
                low, high = smmla(b, low, x, first), smmla(b, high, x, last)
            for i, total in enumerate(joined(b, low, high)):
                dots[i].append(b.sitofp(total, F32V))
        return dots


def _either(builder: Any, a: Any, after_a: Any, b: Any, after_b: Any) -> Any:
    """The F32 `a` if control comes from block `after_a`, `b` if it comes from `after_b`."""
    phi = builder.phi(F32V)
    phi.add_incoming(a, after_a)
    phi.add_incoming(b, after_b)
    return phi
