"""Launches of mixtures of experts, and of products of heads with a matrix each.

A few rows take each of their experts by itself; many are sorted by expert first, where matrices are
block-quantised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....quant.block import QTensor
from ... import ops
from ...config.fields import UnsupportedModel
from ..compile.arguments import Region
from ..kernels.common import pointwise
from ..kernels.common.common import CLIPPED
from ..kernels.matmul import moe_matmul, moe_routing
from ..weights.packing import packed_bytes
from ..weights.upload import Matrix
from .base import ACTIVATIONS, DECODE_ROWS
from .matmul import TILE, Gated, ProductLowering

LEAST_TILE = 64  # rows of a tile of dealt rows, at least


@dataclass(frozen=True)
class Pairs:
    """Rows of (row, choice) pairs, `top` choices a row, `step` bytes from choice to choice."""

    top: int
    region: Region
    step: int = 0


@dataclass(frozen=True)
class Choices:
    """Which matrix each pair takes: where rows have their choices, or number `choice` if there is nothing."""

    experts: Region | None = None

    @property
    def arguments(self) -> list[int]:
        return [*self.experts] if self.experts else [0, 0]


@dataclass(frozen=True)
class Dealt:
    """Pairs that are sorted by expert: how many, of how many experts, how many tiles there may be, and where
    tiles and the rows' sources are told (0: x is sorted, too)."""

    pairs: int
    n_experts: int
    n_tiles: int
    tiles: int
    sources: int


def _digit_bytes(width: int) -> int:
    """Of a row in 8 bits: see `kernels.common.emit_codes`."""
    return 2 * width + 64 * -(-width // 128)


class ExpertLowering(ProductLowering):
    def _route(self, op: ops.Route) -> None:
        n, top = op.scores.width, op.experts.width
        constants = {
            "SIGMOID": int(op.scoring == "sigmoid"),
            "BIAS": int(op.bias is not None),
            "SCALES": int(op.expert_scales is not None),
            "NORMALISED": int(op.normalised),
            "GROUPS": op.groups,
            "TOP_GROUPS": op.top_groups,
            "GROUP_BEST": op.group_best,
        }
        vectors = [0 if v is None else self.memory.vector(v) for v in (op.bias, op.expert_scales)]
        arguments = [*self._at(op.scores), n, *vectors, float(op.scale)]
        arguments += [*self._at(op.experts), *self._at(op.routing_weights), top]
        what = self._kernel(moe_routing.route, 32, **constants)
        self._emit(what, (self._n_rows[op.scores.logits_rows],), arguments, 4 * (2 * n + 2 * top + op.groups))
        self._invalidate(op.experts, op.routing_weights)

    def _mix_experts(self, op: ops.MoE) -> None:
        n = self._n_rows[op.x.logits_rows]
        quantised = not any(w[0].format.is_float for w in (op.gate, op.up, op.down) if w)
        if n > DECODE_ROWS and quantised:
            self._dealt(op, n)
        else:
            self._pairwise(op, n)
        self._invalidate(op.out)

    def _pairs(self, op: ops.MoE, what: str, row_bytes: int) -> Region:
        """Room for a row of all pairs of a step."""
        top = op.experts.width
        name = f"{what} of {top} experts, {row_bytes}"
        return self.memory.rows(name, self.capacity.max_rows * top, row_bytes)

    def _activation(self, op: ops.MoE) -> dict[str, int | float]:
        """Constants of what follows gate and up."""
        if op.limit:
            return {"KIND": CLIPPED, "LIMIT": float(op.limit), "ALPHA": float(op.alpha)}
        return {"KIND": ACTIVATIONS[op.kind]}

    def _mix(self, op: ops.MoE, n: int, pairs: Region, places: int = 0) -> None:
        what = self._kernel(moe_matmul.combine_experts, 256, PERMUTED=int(places > 0))
        arguments = [
            *self._at(op.routing_weights),
            places,
            op.experts.width,
            *pairs,
            *self._at(op.out),
            op.out.width,
        ]
        self._emit(what, (-(-op.out.width // 256), n), arguments)

    # Each pair by itself

    def _pairwise(self, op: ops.MoE, n: int) -> None:
        top, width = op.experts.width, op.up[0].shape[0]
        choices = Choices(self._at(op.experts))
        inner = self._pairs(op, "inner", 4 * width)
        down = op.down[0].format
        digits = self._digit_rows(op, width) if not down.is_float and width % 32 == 0 else None
        together = not op.gate or op.gate[0].format is op.up[0].format
        if not op.up[0].format.is_float and together:
            x = Pairs(top, self._digits(Pairs(1, self._at(op.x)), op.x.width, n))
            first, other = (op.gate, op.up) if op.gate else (op.up, ())
            biases = (op.gate_bias, op.up_bias) if op.gate else (op.up_bias, None)
            self._expert_matvec(
                (first, other), x, choices, n, Pairs(top, inner), biases, self._activation(op), digits
            )
        else:
            digits = None
            gate = self._pairs(op, "gate", 4 * width) if op.gate else inner
            x = Pairs(top, self._at(op.x))
            if op.gate:
                self._expert_product(op.gate, x, choices, n, Pairs(top, gate), op.gate_bias)
            self._expert_product(op.up, x, choices, n, Pairs(top, inner), op.up_bias)
            self._activate(op, gate, inner, inner, n * top)
        out = self._pairs(op, "out", 4 * op.out.width)
        if digits is not None:
            x = Pairs(top, Region(digits.address, top * digits.stride), digits.stride)
            self._expert_matvec((op.down, ()), x, choices, n, Pairs(top, out), (op.down_bias, None), {})
        else:
            x = Pairs(top, Region(inner.address, top * inner.stride), inner.stride)
            self._expert_product(op.down, x, choices, n, Pairs(top, out), op.down_bias)
        self._mix(op, n, out)

    def _activate(self, op: ops.MoE, gate: Region, up: Region, out: Region, rows: int) -> None:
        width = op.up[0].shape[0]
        if op.gate:
            what = self._kernel(pointwise.gated_activation, 256, **self._activation(op))
            arguments = [*gate, *up, *out, width, 1.0]
        else:
            what = self._kernel(pointwise.activation, 256, **self._activation(op))
            arguments = [*up, *out, width]
        self._emit(what, (-(-width // 256), rows), arguments)

    def _expert_product(
        self,
        tensors: tuple[QTensor, ...],
        x: Pairs,
        choices: Choices,
        n: int,
        out: Pairs,
        biases: np.ndarray | None,
    ) -> None:
        """out = x @ weightᵀ + bias of float32 rows, whatever the matrices are."""
        matrix = self._experts(tensors)
        if not tensors[0].format.is_float:
            codes = self._digits(x, matrix.width, n * x.top)
            x = Pairs(x.top, Region(codes.address, x.top * codes.stride), codes.stride)
            self._expert_matvec((tensors, ()), x, choices, n, out, (biases, None), {})
            return
        if matrix.width % 4 or x.step % 16:
            raise UnsupportedModel(
                f"the CUDA machine needs float matrices of widths divisible by 4, not {matrix.width}"
            )
        constants = {"CHOSEN": int(choices.experts is not None), "BIAS": int(biases is not None)}
        what = self._kernel(moe_matmul.moe_float_matmul, 256, FLOAT=matrix.float_kind, **constants)
        arguments = [matrix.address, packed_bytes(tensors[0]), matrix.tile_bytes, matrix.width, matrix.n_out]
        arguments += [*choices.arguments, x.top, *x.region, x.step]
        arguments += [0 if biases is None else self.memory.vector(biases), *self._places(out)]
        self._emit(what, (-(-matrix.n_out // 8), n * x.top), arguments, 0, f"{matrix.n_out}x{matrix.width}")

    def _expert_matvec(
        self,
        tensors: tuple[tuple[QTensor, ...], tuple[QTensor, ...]],
        x: Pairs,
        choices: Choices,
        n: int,
        out: Pairs,
        biases: tuple[np.ndarray | None, np.ndarray | None],
        activation: dict[str, int | float],
        digits: Region | None = None,
    ) -> None:
        """The same of rows in digits; two matrices are gate and up. `digits`: the result, in digits."""
        matrix = self._experts(tensors[0])
        other = self._experts(tensors[1]) if tensors[1] else None
        gated, n_out, blocks = int(other is not None), matrix.n_out, matrix.blocks
        name = tensors[0][0].format.name
        tile = self.tuning.expert(blocks, n_out, 1 + gated)
        constants: dict[str, int | float | str] = {
            "CHOSEN": int(choices.experts is not None),
            **tile.constants,
            "TOKENS": 1,
            "GATED": gated,
            "BIAS": int(biases[0] is not None),
            "EMIT": int(digits is not None),
            "STORE": int(digits is None),
            "KIND": 0,
        }
        what = self._kernel(
            moe_matmul.moe_decode_matmul, 32 * tile.WARPS, FORMAT=name, **constants | activation
        )
        arguments: list[int | float] = [matrix.address, other.address if other else 0]
        arguments += [packed_bytes(tensors[0][0]), matrix.tile_bytes, blocks, n_out]
        arguments += [*choices.arguments, x.top, *x.region, x.step]
        arguments += [0 if b is None else self.memory.vector(b) for b in biases]
        arguments += [*self._places(out), *(digits or Region(0, 0))]
        shared = 64 * tile.WARPS * tile.M
        label = f"{name} {(1 + gated) * n_out}x{matrix.width}"
        self._emit(what, (-(-n_out // tile.outputs(1 + gated)), n * x.top), arguments, shared, label)

    @staticmethod
    def _places(out: Pairs) -> list[int]:
        """Where products write: rows, and choices in them. Without a `step` a pair has a row of its own."""
        if out.step:
            return [*out.region, out.step]
        return [out.region.address, out.top * out.region.stride, out.region.stride]

    def _digit_rows(self, op: ops.MoE, width: int) -> Region:
        return self._pairs(op, "digits", _digit_bytes(width))

    def _digits(self, x: Pairs, width: int, n: int) -> Region:
        """`n` pairs' float32 rows in digits."""
        blocks = width // 32
        rows = self.capacity.max_rows * x.top
        out = self.memory.rows(f"digits of {x.top} times {width}", rows, _digit_bytes(width))
        arguments = [*x.region, x.step, x.top, blocks, *out]
        self._emit(self._kernel(moe_matmul.digits, 128, TOKENS=1), (-(-blocks // 4), n), arguments)
        return out

    def _experts(self, tensors: tuple[QTensor, ...]) -> Matrix:
        """The first of them; the others lie behind it."""
        return self.matrices[id(tensors[0])]

    # Sorted by expert

    def _dealt(self, op: ops.MoE, n: int) -> None:
        capacity, memory, top, n_experts = self.capacity, self.memory, op.experts.width, len(op.up)
        most, width = capacity.max_rows * top, op.up[0].shape[0]
        size = self.tuning.dealt(n * top, n_experts, 1).ROWS if self.device.warpgroups else TILE
        n_tiles = min(n * top, n_experts) + n * top // size
        most_tiles = min(most, n_experts) + most // LEAST_TILE
        counts = memory.rows(f"counts of {n_experts} experts", 1, 4 * n_experts).address
        tiles = memory.rows(f"tiles of {n_experts} experts", 1, 16 * (1 + most_tiles)).address
        sources = memory.rows(f"sources of {top}", 1, 4 * most).address
        places = memory.rows(f"places of {top}", 1, 4 * most).address
        arguments = [*self._at(op.experts), n, top, n_experts, counts, tiles, sources, places]
        self._emit(self._kernel(moe_matmul.permute_by_expert, 256, ROWS=size), (1,), arguments, 8 * n_experts)
        x = self._as_f16(op.x)
        inner, out = self._pairs(op, "inner", 4 * width), self._pairs(op, "out", 4 * op.out.width)
        dealt = Dealt(n * top, n_experts, n_tiles, tiles, sources)
        alike = op.gate and op.gate[0].format is op.up[0].format
        if self.device.warpgroups and alike and (op.gate_bias is None) == (op.up_bias is None):
            bias = memory.vector(op.up_bias) if op.up_bias is not None else 0
            gated = Gated(self._experts(op.up).address, self._activation(op), bias)
            self._expert_tiles(op.gate, x, n, inner, op.gate_bias, dealt, gated)
        else:
            gate = self._pairs(op, "gate", 4 * width) if op.gate else inner
            if op.gate:
                self._expert_tiles(op.gate, x, n, gate, op.gate_bias, dealt)
            self._expert_tiles(op.up, x, n, inner, op.up_bias, dealt)
            self._activate(op, gate, inner, inner, n * top)
        halves = self._pairs(op, "halves", 2 * (-(-width // 128) * 128))
        scales = memory.rows(f"scales of {top}", 1, 4 * most)
        self._convert_to_f16(inner, width, n * top, halves, scales)
        in_order = replace(dealt, sources=0)
        self._expert_tiles(op.down, (halves, scales), n * top, out, op.down_bias, in_order)
        self._mix(op, n, out, places)

    def _expert_tiles(
        self,
        tensors: tuple[QTensor, ...],
        x: tuple[Region, Region],
        rows: int,
        out: Region,
        biases: np.ndarray | None,
        dealt: Dealt,
        gated: Gated | None = None,
    ) -> None:
        """Products of dealt rows."""
        matrix, matrices = self._experts(tensors), 2 if gated else 1
        constants: dict[str, int | str] = {"FORMAT": tensors[0].format.name, "BIAS": int(biases is not None)}
        constants |= {"ACCUMULATE": 0, "EXPERTS": 2 if dealt.sources else 1}
        arguments = [
            matrix.address,
            matrix.tile_bytes,
            matrix.blocks,
            matrix.n_out,
            *x[0],
            x[1].address,
            rows,
        ]
        arguments += [0 if biases is None else self.memory.vector(biases), *out]
        arguments += [dealt.tiles, dealt.sources, packed_bytes(tensors[0])]
        label = f"{tensors[0].format.name} {matrices * matrix.n_out}x{matrix.width}"
        wide = self.tuning.dealt(dealt.pairs, dealt.n_experts, matrices)
        size = wide.ROWS if self.device.warpgroups else TILE
        self._emit_many(constants, dealt.n_tiles * size, matrix.n_out, arguments, label, wide, gated)

    # Heads

    def _multiply_heads(self, op: ops.HeadMatMul) -> None:
        heads, (outputs, inputs) = len(op.weights), op.weights[0].shape
        n, x, out = self._n_rows[op.x.logits_rows], self._at(op.x), self._at(op.out)
        size, result = op.x.width // heads, op.out.width // heads
        target = Pairs(heads, out, 4 * result)
        self._expert_product(op.weights, Pairs(heads, x, 4 * size), Choices(), n, target, None)
        if size > inputs:
            arguments = [*x, size, inputs, *out, result, outputs, heads * (size - inputs)]
            what = self._kernel(pointwise.copy_rest, 256)
            self._emit(what, (-(-heads * (size - inputs) // 256), n), arguments)
        self._invalidate(op.out)
