"""Launches of mixtures of experts and of products of heads in which each pair is computed by itself.

A pair is a (row, choice): each of a row's `top` choices takes one matrix out of a group of equal ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ....quant.block import QTensor
from ....quant.errors import UnsupportedModel
from ... import ops
from ..abi.arguments import Region
from ..kernels.common import pointwise
from ..kernels.common.common import CLIPPED
from ..kernels.experts import moe_matmul, moe_permute
from ..kernels.experts.moe_matmul import (
    ExpertArguments,
    MoeDecodeArguments,
    MoeFloatArguments,
    PairRows,
    QuantizePairsArguments,
)
from ..kernels.experts.moe_permute import CombineArguments
from ..weights.packing import packed_bytes
from ..weights.upload import Matrix
from .base import ACTIVATIONS
from .matmul.matmul import MatMulLowering


@dataclass(frozen=True)
class Pairs:
    """Rows of pairs: `n` matrix rows with `top` choices each; that of choice j lies `step` · j bytes
    further.
    """

    n: int
    top: int
    region: Region
    step: int = 0

    @property
    def arguments(self) -> PairRows:
        """The rows as kernels take them."""
        return PairRows(rows=self.region, step=self.step)


@dataclass(frozen=True)
class Experts:
    """The matrices of a product of pairs; `other` are the up matrices of a gated product. `choices` has the
    number of each pair's matrix, float32 [rows, top]; without it choice j takes matrix j.
    """

    weights: tuple[QTensor, ...]
    other: tuple[QTensor, ...] = ()
    bias: np.ndarray | None = None
    other_bias: np.ndarray | None = None
    choices: Region | None = None
    activation: Mapping[str, int | float] = field(default_factory=dict)  # constants of the kernel


def quantized_row_bytes(width: int) -> int:
    """Bytes of a single quantised row: see `kernels.common.common.store_quantized`."""
    return 2 * width + 64 * -(-width // 128)


class PairLowering(MatMulLowering):
    """Launches of products of pairs."""

    def _moe_decode(self, op: ops.MoE, n: int) -> None:
        """A mixture of experts in which each pair reads its own matrices."""
        top, width = op.experts.width, op.up[0].shape[0]
        choices = self._at(op.experts)
        inner = self._pair_rows(op, "inner", 4 * width)
        down = Experts(op.down, bias=op.down_bias, choices=choices)
        codes = None
        if not op.down[0].format.is_float and width % 32 == 0:
            codes = self._pair_rows(op, "quantised", quantized_row_bytes(width))
        same_format = not op.gate or op.gate[0].format is op.up[0].format
        if not op.up[0].format.is_float and same_format:
            rows = self._quantize_pairs(Pairs(n, 1, self._at(op.x)), op.x.width)
            activation = self._activation(op)
            if op.gate:
                experts = Experts(op.gate, op.up, op.gate_bias, op.up_bias, choices, activation)
            else:
                experts = Experts(op.up, bias=op.up_bias, choices=choices, activation=activation)
            self._quantized_pairs(experts, Pairs(n, top, rows), self._pairs_of(n, top, inner), codes)
        else:
            codes = None
            gate = self._pair_rows(op, "gate", 4 * width) if op.gate else inner
            x = Pairs(n, top, self._at(op.x))
            if op.gate:
                experts = Experts(op.gate, bias=op.gate_bias, choices=choices)
                self._pair_product(experts, x, self._pairs_of(n, top, gate))
            experts = Experts(op.up, bias=op.up_bias, choices=choices)
            self._pair_product(experts, x, self._pairs_of(n, top, inner))
            self._activate(op, gate, inner, inner, n * top)
        out = self._pair_rows(op, "out", 4 * op.out.width)
        if codes is not None:
            self._quantized_pairs(down, self._pairs_of(n, top, codes), self._pairs_of(n, top, out))
        else:
            self._pair_product(down, self._pairs_of(n, top, inner), self._pairs_of(n, top, out))
        self._combine_experts(op, n, out)

    def _moe_adapted(self, op: ops.MoE, n: int) -> None:
        """The same with an adapter's products beside those of the experts, each a launch of its own."""
        top, width, choices = op.experts.width, op.up[0].shape[0], self._at(op.experts)
        gate, inner = (self._pair_rows(op, name, 4 * width) for name in ("gate", "inner"))
        out = self._pair_rows(op, "out", 4 * op.out.width)
        rows = Pairs(n, top, self._at(op.x))
        gate_product = (rows, gate, op.gate, op.gate_bias, op.gate_low)
        for x, target, weights, bias, low in (gate_product, (rows, inner, op.up, op.up_bias, op.up_low)):
            if weights:
                self._adapted_product(op, x, target, Experts(weights, bias=bias, choices=choices), low)
        self._activate(op, gate, inner, inner, n * top)
        down = Experts(op.down, bias=op.down_bias, choices=choices)
        self._adapted_product(op, self._pairs_of(n, top, inner), out, down, op.down_low)
        self._combine_experts(op, n, out)

    def _adapted_product(
        self, op: ops.MoE, x: Pairs, out: Region, experts: Experts, low: ops.LowRankExperts | None
    ) -> None:
        """out = x @ weightsᵀ + bias + (x @ downᵀ) @ upᵀ, for every pair with the matrices of its expert."""
        n, top, width = x.n, x.top, experts.weights[0].shape[0]
        self._pair_product(experts, x, self._pairs_of(n, top, out))
        if low is None:
            return
        rank = low.down[0].shape[0]
        between, added = (
            self._pair_rows(op, name, 4 * size) for name, size in (("low", rank), ("added", width))
        )
        low_rows = self._pairs_of(n, top, between)
        self._pair_product(Experts(low.down, choices=experts.choices), x, low_rows)
        self._pair_product(Experts(low.up, choices=experts.choices), low_rows, self._pairs_of(n, top, added))
        arguments = [*added, *out, width, 1.0, 1.0]
        self._emit(self._kernel(pointwise.add, 256), (-(-width // 256), n * top), arguments)

    def _pair_rows(self, op: ops.MoE, name: str, row_bytes: int) -> Region:
        """Memory with a row of its own for each pair of a step."""
        top = op.experts.width
        return self.memory.rows(
            f"{name} of {top} experts, {row_bytes}", self.capacity.max_rows * top, row_bytes
        )

    @staticmethod
    def _pairs_of(n: int, top: int, rows: Region) -> Pairs:
        """The pairs of `n` rows whose pairs have rows of their own, one after the other."""
        return Pairs(n, top, Region(rows.address, top * rows.stride), rows.stride)

    def _activation(self, op: ops.MoE) -> dict[str, int | float]:
        """Constants for the activation between gate and up."""
        if op.limit:
            return {"KIND": CLIPPED, "LIMIT": float(op.limit), "ALPHA": float(op.alpha)}
        return {"KIND": ACTIVATIONS[op.kind]}

    def _activate(self, op: ops.MoE, gate: Region, up: Region, out: Region, rows: int) -> None:
        """The activation by itself, of float32 rows of pairs."""
        width = op.up[0].shape[0]
        constants = self._activation(op)
        grid = (-(-width // 256), rows)
        if op.gate:
            gated = pointwise.GatedActivationArguments(gate=gate, up=up, out=out, width=width, scale=1.0)
            self._emit(self._kernel(pointwise.gated_activation, 256, **constants), grid, gated)
        else:
            self._emit(self._kernel(pointwise.activation, 256, **constants), grid, [*up, *out, width])

    def _combine_experts(self, op: ops.MoE, n: int, x: Region, places: int = 0) -> None:
        """Add up the results of a row's experts, times their routing weights."""
        kernel = self._kernel(moe_permute.combine_experts, 256, PERMUTED=int(places > 0))
        arguments = CombineArguments(
            routing_weights=self._at(op.routing_weights),
            places=places,
            top=op.experts.width,
            x=x,
            out=self._at(op.out),
            width=op.out.width,
        )
        self._emit(kernel, (-(-op.out.width // 256), n), arguments)

    def _pair_product(self, experts: Experts, x: Pairs, out: Pairs) -> None:
        """out = x @ weightsᵀ + bias of float32 rows, for matrices of any format."""
        weights, matrix = experts.weights, self._first(experts.weights)
        if not weights[0].format.is_float:
            codes = self._quantize_pairs(x, matrix.width)
            self._quantized_pairs(experts, self._pairs_of(x.n, x.top, codes), out)
            return
        if matrix.width % 4 or x.step % 16:
            raise UnsupportedModel(
                f"the CUDA machine needs float matrices of widths divisible by 4, not {matrix.width}"
            )
        constants = {"CHOSEN": int(experts.choices is not None), "BIAS": int(experts.bias is not None)}
        kernel = self._kernel(moe_matmul.moe_float_matmul, 256, FLOAT=matrix.float_kind, **constants)
        arguments = MoeFloatArguments(
            weights=matrix.address,
            experts=self._expert_arguments(experts, matrix.width, x.top),
            x=x.arguments,
            bias=self._vector(experts.bias),
            out=out.arguments,
        )
        grid = (-(-matrix.n_out // 8), x.n * x.top)
        self._emit(kernel, grid, arguments, 0, f"{matrix.n_out}x{matrix.width}")

    def _quantized_pairs(self, experts: Experts, x: Pairs, out: Pairs, codes: Region | None = None) -> None:
        """The product of quantised rows with block-quantised matrices; with `codes` the result is quantised
        there instead of stored in `out`.
        """
        matrix = self._first(experts.weights)
        other = self._first(experts.other) if experts.other else None
        matrices, n_out = 2 if other else 1, matrix.n_out
        name = experts.weights[0].format.name
        tile = self.tuning.moe_decode(matrix.blocks, n_out, matrices)
        constants: dict[str, int | float | str] = {
            "CHOSEN": int(experts.choices is not None),
            **tile.constants,
            "TOKENS": 1,
            "GATED": matrices - 1,
            "BIAS": int(experts.bias is not None),
            "EMIT": int(codes is not None),
            "STORE": int(codes is None),
            "KIND": 0,
        }
        constants |= experts.activation
        kernel = self._kernel(moe_matmul.moe_decode_matmul, 32 * tile.WARPS, FORMAT=name, **constants)
        kernel = replace(kernel, resident=tile.resident)
        arguments = MoeDecodeArguments(
            weights=matrix.address,
            other=other.address if other else 0,
            experts=self._expert_arguments(experts, matrix.blocks, x.top),
            x=x.arguments,
            bias=self._vector(experts.bias),
            other_bias=self._vector(experts.other_bias),
            out=out.arguments,
            codes=codes or Region(0, 0),
        )
        grid = (-(-n_out // tile.outputs(matrices)), x.n * x.top)
        label = f"{name} {matrices * n_out}x{matrix.width}"
        self._emit(kernel, grid, arguments, 64 * tile.WARPS * tile.M, label)

    def _expert_arguments(self, experts: Experts, width: int, top: int) -> ExpertArguments:
        matrix = self._first(experts.weights)
        return ExpertArguments(
            expert_bytes=packed_bytes(experts.weights[0]),
            tile_bytes=matrix.tile_bytes,
            width=width,
            n_out=matrix.n_out,
            choices=experts.choices or Region(0, 0),
            top=top,
        )

    def _quantize_pairs(self, x: Pairs, width: int) -> Region:
        """Quantise float32 rows of pairs; returns the quantised rows, one after the other."""
        blocks = width // 32
        rows = self.capacity.max_rows * x.top
        out = self.memory.rows(f"quantised rows of {x.top} times {width}", rows, quantized_row_bytes(width))
        arguments = QuantizePairsArguments(x=x.arguments, top=x.top, blocks=blocks, out=out)
        kernel = self._kernel(moe_matmul.quantize_pairs, 128, TOKENS=1)
        self._emit(kernel, (-(-blocks // 4), x.n * x.top), arguments)
        return out

    def _first(self, tensors: tuple[QTensor, ...]) -> Matrix:
        """The first matrix of a group; the others follow it in memory."""
        return self.matrices[id(tensors[0])]

    def _multiply_heads(self, op: ops.HeadMatMul) -> None:
        """Products of heads with a matrix each; what a head has beyond the matrix' inputs is copied."""
        heads, (outputs, inputs) = len(op.weights), op.weights[0].shape
        n, x, out = self._n_rows[op.x.logits_rows], self._at(op.x), self._at(op.out)
        size, result = op.x.width // heads, op.out.width // heads
        self._pair_product(
            Experts(op.weights), Pairs(n, heads, x, 4 * size), Pairs(n, heads, out, 4 * result)
        )
        if size > inputs:
            width = heads * (size - inputs)
            rest = pointwise.CopyRestArguments(
                x=x, size=size, start=inputs, out=out, out_size=result, out_start=outputs, width=width
            )
            self._emit(self._kernel(pointwise.copy_rest, 256), (-(-width // 256), n), rest)
        self._invalidate(op.out)
