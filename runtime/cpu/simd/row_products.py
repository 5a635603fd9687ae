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

from ....quant.jit.llvm_ir import F32V, FLOAT, I8V, I32_, all_lanes, beside, load, multiply_add, splat, store
from ....quant.jit.simd.vectors import intrinsic
from .dot8 import VNNI, Sums, broadcast4
from .tile_sizes import GROUP_SUM, HIGH_SUM, LOW_SUM, RESIDUAL_SCALE, SCALE, VECTOR


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
        panels = []
        for i, panel in enumerate(cgutils.unpack_tuple(builder, packed, len(kinds))):
            members = cgutils.unpack_tuple(builder, panel, len(kinds[i]))
            panels.append(_Panel(builder, members, kinds[i], codes.value))
        _Row(builder, panels, codes.value, x, builder.add(x, residual), stats).add(at)
        return context.get_dummy_value()

    i64 = types.int64
    return signature(types.none, i64, weights, codes, i64, i64, i64), codegen


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

    def _broadcast(self, offset: int) -> Any:
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
        b, parts = self.builder, len(self.panels[0].words)
        scale = self._broadcast(SCALE)
        products = self._add_residuals([[b.fmul(dot, scale) for dot in dots] for dots in self._dots(self.x)])
        sums = []
        if self.offset or self.panels[0].minima:
            sums = [self._broadcast(i) for i in ((LOW_SUM, HIGH_SUM) if parts == 2 else (GROUP_SUM,))]
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
            scale = self._broadcast(RESIDUAL_SCALE)
            added = [
                [multiply_add(b, dot, scale, product) for dot, product in zip(*pair, strict=True)]
                for pair in zip(self._dots(self.residual), products, strict=True)
            ]
            within = b.block
        return [
            [self._either(product, without, more, within) for product, more in zip(*pair, strict=True)]
            for pair in zip(products, added, strict=True)
        ]

    def _either(self, a: Any, after_a: Any, b: Any, after_b: Any) -> Any:
        """The F32 `a` if control comes from block `after_a`, `b` if it comes from `after_b`."""
        phi = self.builder.phi(F32V)
        phi.add_incoming(a, after_a)
        phi.add_incoming(b, after_b)
        return phi
