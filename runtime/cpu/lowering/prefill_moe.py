"""Lowering of mixtures of experts in prefill: rows are permuted by expert, multiplied, and combined again."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from ....quant.jit.kernel import CpuKernel
from ... import ops
from ..abi import sizes
from ..abi.instructions import LOGITS_ROWS, OTHER, ROWS
from ..abi.records import PERMUTE, ROUTE
from ..arena import Region
from ..kernels import PERMUTE_ROWS, ROUTE_ROWS, SORT_BY_EXPERT, UNPERMUTE_ROWS
from .moe import MoELowering


@dataclass(frozen=True)
class _Permutation:
    """The permutation of a buffer's rows by expert, computed by SORT_BY_EXPERT in every step."""

    copies: int  # permuted rows for each row, without padding: the experts that it chooses
    max_rows: int  # permuted rows at most
    count: Region  # int32 [1]: permuted rows
    source_rows: Region
    permuted_rows: Region
    expert_tiles: Region
    fields: dict[str, Any]  # the PERMUTE fields except those of x and out


class PrefillMoELowering(MoELowering):
    """Lowers Route and MoE for steps of any number of rows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._permutations: dict[str, _Permutation] = {}  # by the name of a buffer of permuted rows

    @abstractmethod
    def _matmul(self, x: ops.Buffer, out: ops.Buffer, kind: str, values: dict[str, Any]) -> None:
        """Append out = x · Wᵀ with weights of format `kind`; `values` are MATMUL fields."""

    def _max_rows(self, buffer: ops.Buffer) -> int:
        if buffer.name in self._permutations:
            return self._permutations[buffer.name].max_rows
        return super()._max_rows(buffer)

    def _copies(self, buffer: ops.Buffer) -> int:
        """Rows of a buffer for each row of the batch: 1, or the number of experts that a row chooses."""
        return self._permutations[buffer.name].copies if buffer.name in self._permutations else 1

    def _n_rows_address(self, buffer: ops.Buffer) -> int:
        """Address of the number of rows of a buffer of permuted rows; 0 for the buffers of the program."""
        return self._permutations[buffer.name].count.address if buffer.name in self._permutations else 0

    def _partition(self, buffer: ops.Buffer) -> str:
        """How threads partition the rows of a buffer."""
        if buffer.name in self._permutations:
            return self._permutations[buffer.name].count.name
        return LOGITS_ROWS if buffer.logits_rows else ROWS

    def _route(self, op: ops.Route) -> None:
        scores, experts, weights = (self._shared(b) for b in (op.scores, op.experts, op.routing_weights))
        self._list.append(
            ROUTE_ROWS,
            ROUTE,
            [scores],
            [experts, weights],
            self._partition(op.scores),
            scores=scores.address,
            scores_stride=scores.stride,
            experts=experts.address,
            experts_stride=experts.stride,
            routing_weights=weights.address,
            routing_weights_stride=weights.stride,
            on_logits_rows=op.scores.logits_rows,
            **self._route_fields(op),
        )

    def _moe(self, op: ops.MoE) -> None:
        permutation, name = self._permutation(op), op.x.name
        width = op.up[0].shape[0]
        x = self._permuted(permutation, f"{name} permuted", op.x.width)
        inner = self._permuted(permutation, f"{name} inner", width)
        out = self._permuted(permutation, f"{name} by expert", op.out.width)
        by_expert = {"n_experts": len(op.up), "expert_tiles": permutation.expert_tiles.address}

        p, experts = permutation, self._shared(op.experts)
        targets = [p.count, p.source_rows, p.permuted_rows, p.expert_tiles]
        self._list.append(SORT_BY_EXPERT, PERMUTE, [experts], targets, OTHER, **p.fields)
        self._permute(PERMUTE_ROWS, p, op.x, x, [p.count, p.source_rows])
        gated = None if op.up[0].format.is_float else self._gated_fields(op)
        if gated is not None:
            self._matmul(x, inner, op.up[0].format.name, gated | by_expert)
        else:
            up = self._permuted(permutation, f"{name} up", width)
            gate_product = (inner, op.gate, op.gate_bias, op.gate_low)
            for target, tensors, biases, low in (gate_product, (up, op.up, op.up_bias, op.up_low)):
                if tensors:
                    fields = self._product_fields(tensors, biases)
                    self._matmul(x, target, tensors[0].format.name, fields | by_expert)
                    self._add_low(permutation, x, target, low, by_expert)
            self._activate(op, inner, up)
        down = self._product_fields(op.down, op.down_bias)
        self._matmul(inner, out, op.down[0].format.name, down | by_expert)
        self._add_low(permutation, inner, out, op.down_low, by_expert)
        reads = [p.count, p.permuted_rows, self._shared(op.routing_weights)]
        self._permute(UNPERMUTE_ROWS, p, out, op.out, reads)

    def _add_low(
        self,
        permutation: _Permutation,
        x: ops.Buffer,
        out: ops.Buffer,
        low: ops.LowRankExperts | None,
        by_expert: dict[str, Any],
    ) -> None:
        """Append out += (x · downᵀ) · upᵀ, each row with the matrices of its expert."""
        if low is None:
            return
        rank = low.down[0].shape[0]
        between = self._permuted(permutation, f"{x.name}, rank {rank}", rank)
        for source, target, matrices in ((x, between, low.down), (between, out, low.up)):
            fields = self._product_fields(matrices, None) | by_expert | {"accumulate": target is out}
            self._matmul(source, target, matrices[0].format.name, fields)

    def _permutation(self, op: ops.MoE) -> _Permutation:
        """Allocate the permutation of the rows of an op."""
        name, n_experts, top = op.x.name, len(op.up), op.experts.width
        max_rows = sizes.max_permuted_rows(self._max_rows(op.x), top, n_experts)
        count = self._arena.rows(f"permuted rows of {name}", 1, 64)
        source_rows = self._arena.rows(f"source rows of {name}", 1, 4 * max_rows)
        permuted_rows = self._arena.rows(f"permutation of {name}", 1, 4 * top * self._max_rows(op.x))
        expert_tiles = self._arena.rows(f"expert tiles of {name}", 1, 4 * (2 * n_experts + 1))
        experts, weights = self._shared(op.experts), self._shared(op.routing_weights)
        fields = {
            "experts": experts.address,
            "experts_stride": experts.stride,
            "routing_weights": weights.address,
            "routing_weights_stride": weights.stride,
            "top": top,
            "n_experts": n_experts,
            "source_rows": source_rows.address,
            "permuted_rows": permuted_rows.address,
            "expert_tiles": expert_tiles.address,
            "n_rows_address": count.address,
            "on_logits_rows": op.x.logits_rows,
        }
        return _Permutation(top, max_rows, count, source_rows, permuted_rows, expert_tiles, fields)

    def _permuted(self, permutation: _Permutation, name: str, width: int) -> ops.Buffer:
        """A buffer of permuted rows."""
        self._permutations[name] = permutation
        return ops.Buffer(name, width)

    def _permute(
        self, kernel: CpuKernel, p: _Permutation, x: ops.Buffer, out: ops.Buffer, reads: list[Region]
    ) -> None:
        """Append PERMUTE_ROWS or UNPERMUTE_ROWS from x to out."""
        source, target = self._shared(x), self._output(out)
        self._list.append(
            kernel,
            PERMUTE,
            [source, *reads],
            [target],
            self._partition(out),
            x=source.address,
            x_stride=source.stride,
            out=target.address,
            out_stride=target.stride,
            width=x.width,
            **p.fields,
        )
