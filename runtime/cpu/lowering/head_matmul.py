"""Lowering of HeadMatMul, which has a matrix for each head; the same for prefill and decode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....quant.jit.kernel import CpuKernel
from ....quant.jit.levels import LANES
from ... import ops
from ..abi.records import MATMUL
from ..kernels import JOIN_HEADS
from .base import BaseLowering


class HeadMatMulLowering(BaseLowering):
    """Lowers HeadMatMul as a product for each head, then JOIN_HEADS."""

    _float_products: Mapping[str, CpuKernel]  # kernels of float weights, by their type

    def _head_matmul(self, op: ops.HeadMatMul) -> None:
        """Append the products of all heads and JOIN_HEADS."""
        outputs, inputs = op.weights[0].shape
        heads = len(op.weights)
        padded = -(-outputs // LANES) * LANES
        products = ops.Buffer(f"{heads} products of {padded}", heads * padded, op.x.logits_rows)
        source, target = self._input(op.x), self._output(products)
        for head, weight in enumerate(op.weights):
            matrix = self._matrices[id(weight)]
            x = replace(source, address=source.address + 4 * head * (op.x.width // heads))
            self._list.append(
                self._float_products[matrix.format.name],
                MATMUL,
                [source],
                [target],
                target.name,  # a partition of its own: the heads write different columns
                **matrix.fields() | x.fields("x"),
                out=target.address + 4 * head * padded,
                out_stride=target.stride,
                on_logits_rows=op.x.logits_rows,
            )
        self._pointwise(
            JOIN_HEADS,
            op.out,
            op.x,
            products,
            groups=heads,
            length=outputs,
            start=inputs,
            weight_stride=padded,
        )
