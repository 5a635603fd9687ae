"""Launches of mixtures of experts: the router, and prefill, in which pairs are sorted by expert.

In decode, and with float matrices, each pair is computed by itself (see moe_decode.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....quant.block import QTensor
from ... import ops
from ..abi.arguments import Region
from ..kernels.experts import exchange, moe_permute, moe_routing
from ..kernels.experts.exchange import ExchangeArguments
from ..kernels.experts.moe_permute import PermuteArguments
from ..kernels.experts.moe_routing import RouteArguments
from ..kernels.matmul.prefill_epilogue import PrefillArguments
from ..weights.packing import packed_bytes
from .base import DECODE_ROWS, HostMixture
from .matmul.prefill import SM80_TILE, UpMatrix
from .moe_decode import PairLowering

EXCHANGE_THREADS = 1024  # of a block: each copies 16 bytes of a row of 4,096 numbers
MIN_TILE_ROWS = 64  # the smallest tile of places


@dataclass(frozen=True)
class PermutedPairs:
    """`n` pairs sorted by expert: the most tiles that `n_experts` experts can have, and the addresses of the
    arrays `tiles` and `sources` of `permute_by_expert`. With sources = 0 the rows of x are sorted as well.
    """

    n: int
    n_experts: int
    n_tiles: int
    tiles: int
    sources: int


class ExpertLowering(PairLowering):
    """Launches of the ops Route and MoE."""

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
        arguments = RouteArguments(
            scores=self._at(op.scores),
            n_experts=n,
            bias=self._vector(op.bias),
            expert_scales=self._vector(op.expert_scales),
            scale=op.scale,
            experts=self._at(op.experts),
            routing_weights=self._at(op.routing_weights),
            top=top,
        )
        shared = 4 * (2 * n + 2 * top + op.groups)
        kernel = self._kernel(moe_routing.route, 32, **constants)
        self._emit(kernel, (self._n_rows[op.scores.logits_rows],), arguments, shared)
        self._invalidate(op.experts, op.routing_weights)

    def _moe(self, op: ops.MoE) -> None:
        n = self._n_rows[op.x.logits_rows]
        if id(op) in self.hosted and self._host_follows:
            self._exchange(op, n)
            return
        if id(op) in self.hosted:
            x, experts, weights = (self._at(b) for b in (op.x, op.experts, op.routing_weights))
            at = len(self._launches)
            self.mixtures.append(HostMixture(op, at, (x, experts, weights), self._at(op.out), n))
            self._invalidate(op.out)
            return
        quantised = not any(w[0].format.is_float for w in (op.gate, op.up, op.down) if w)
        if op.lows:
            self._moe_adapted(op, n)
        elif n > DECODE_ROWS and quantised:
            self._moe_prefill(op, n)
        else:
            self._moe_decode(op, n)
        self._invalidate(op.out)

    def _exchange(self, op: ops.MoE, n: int) -> None:
        """A mixture that the host computes while this launch waits."""
        rows = self.hosted[id(op)]
        arguments = ExchangeArguments(
            x=self._at(op.x),
            experts=self._at(op.experts),
            weights=self._at(op.routing_weights),
            out=self._at(op.out),
            host_x=rows.x,
            host_experts=rows.experts,
            host_weights=rows.weights,
            host_out=rows.out,
            width=op.x.width,
            top=op.experts.width,
            out_width=op.out.width,
            first=self.inputs.sums,
            index=[*self.hosted].index(id(op)),
            rows=n,
            asked=rows.asked,
            answered=rows.answered,
            errors=self.exchange_errors().address,
            report=self.host_report,
        )
        kernel = self._kernel(exchange.exchange, EXCHANGE_THREADS, THREADS=EXCHANGE_THREADS)
        self._emit(kernel, (1,), arguments, 0, f"{n}x{op.x.width}")
        self._invalidate(op.out)

    def exchange_errors(self) -> Region:
        """A word that is not 0 when this card has waited for the host in vain."""
        return self.memory.rows("errors of exchanges", 1, 4)

    def _moe_prefill(self, op: ops.MoE, n: int) -> None:
        """A mixture of experts whose pairs are sorted by expert, for prefill products."""
        pairs, places = self._permute_by_expert(op, n)
        width, top = op.up[0].shape[0], op.experts.width
        x = self._as_f16(op.x)
        inner, out = self._pair_rows(op, "inner", 4 * width), self._pair_rows(op, "out", 4 * op.out.width)
        same_format = op.gate and op.gate[0].format is op.up[0].format
        if self.device.warpgroups and same_format and (op.gate_bias is None) == (op.up_bias is None):
            up = UpMatrix(self._first(op.up).address, self._activation(op), self._vector(op.up_bias))
            self._expert_tiles(op.gate, x, n, inner, op.gate_bias, pairs, up)
        else:
            gate = self._pair_rows(op, "gate", 4 * width) if op.gate else inner
            if op.gate:
                self._expert_tiles(op.gate, x, n, gate, op.gate_bias, pairs)
            self._expert_tiles(op.up, x, n, inner, op.up_bias, pairs)
            self._activate(op, gate, inner, inner, n * top)
        rows = self._pair_rows(op, "float16", 2 * (-(-width // 128) * 128))
        scales = self.memory.rows(f"scales of {top}", 1, 4 * self.capacity.max_rows * top)
        self._convert_to_f16(inner, width, n * top, rows, scales)
        self._expert_tiles(op.down, (rows, scales), n * top, out, op.down_bias, replace(pairs, sources=0))
        self._combine_experts(op, n, out, places)

    def _permute_by_expert(self, op: ops.MoE, n: int) -> tuple[PermutedPairs, int]:
        """Sort the pairs of `n` rows by expert; also returns the address of `places`."""
        memory, top, n_experts = self.memory, op.experts.width, len(op.up)
        max_pairs = self.capacity.max_rows * top
        tile_rows = self._tile_rows(n * top, n_experts)
        n_tiles = min(n * top, n_experts) + n * top // tile_rows
        max_tiles = min(max_pairs, n_experts) + max_pairs // MIN_TILE_ROWS
        counts = memory.rows(f"counts of {n_experts} experts", 1, 4 * n_experts).address
        tiles = memory.rows(f"tiles of {n_experts} experts", 1, 16 * (1 + max_tiles)).address
        sources = memory.rows(f"sources of {top}", 1, 4 * max_pairs).address
        places = memory.rows(f"places of {top}", 1, 4 * max_pairs).address
        arguments = PermuteArguments(
            experts=self._at(op.experts),
            rows=n,
            top=top,
            n_experts=n_experts,
            counts=counts,
            tiles=tiles,
            sources=sources,
            places=places,
        )
        kernel = self._kernel(moe_permute.permute_by_expert, 256, ROWS=tile_rows)
        self._emit(kernel, (1,), arguments, 8 * n_experts)
        return PermutedPairs(n * top, n_experts, n_tiles, tiles, sources), places

    def _tile_rows(self, n_pairs: int, n_experts: int) -> int:
        """Places of a tile."""
        if self.device.warpgroups:
            return self.tuning.moe_prefill(n_pairs, n_experts, 1).ROWS
        return SM80_TILE

    def _expert_tiles(
        self,
        tensors: tuple[QTensor, ...],
        x: tuple[Region, Region],
        rows: int,
        out: Region,
        bias: np.ndarray | None,
        pairs: PermutedPairs,
        up: UpMatrix | None = None,
    ) -> None:
        """Products of sorted pairs: `x` are float16 rows and their scales, `rows` the number of rows of x."""
        matrix, matrices = self._first(tensors), 2 if up else 1
        constants: dict[str, int | str] = {
            "FORMAT": tensors[0].format.name,
            "BIAS": int(bias is not None),
            "ACCUMULATE": 0,
            "EXPERTS": 2 if pairs.sources else 1,
        }
        arguments = PrefillArguments(
            weights=matrix.address,
            tile_bytes=matrix.tile_bytes,
            blocks=matrix.blocks,
            n_out=matrix.n_out,
            x=x[0],
            scales=x[1].address,
            rows=rows,
            bias=self._vector(bias),
            out=out,
            tiles=pairs.tiles,
            sources=pairs.sources,
            expert_bytes=packed_bytes(tensors[0]),
        )
        label = f"{tensors[0].format.name} {matrices * matrix.n_out}x{matrix.width}"
        tile = self.tuning.moe_prefill(pairs.n, pairs.n_experts, matrices)
        n = pairs.n_tiles * self._tile_rows(pairs.n, pairs.n_experts)
        self._emit_prefill(constants, n, arguments, label, tile, up)
