"""Launches of embedding look-ups, row selection and pointwise ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ....quant.block import QTensor
from ... import ops
from ..abi.arguments import Region
from ..kernels.attention import prepare_qk
from ..kernels.common import gather, pointwise
from ..kernels.common.pointwise import GatedActivationArguments
from .base import ACTIVATIONS, LaunchBuilder
from .fusing import CudaOp
from .support import unsupported


class RowLowering(LaunchBuilder):
    """Launches of ops that work on single rows or elements."""

    def _embed(self, op: ops.Embed) -> None:
        numbers = self.row_input("types") if op.by_type else self.inputs.tokens
        self._look_up(op.table, numbers, self._n_rows[op.out.logits_rows], self._at(op.out), op.scale)
        self._invalidate(op.out)

    def _look_up(self, tensor: QTensor, numbers: int, n: int, out: Region, scale: float = 1.0) -> None:
        """out = table[numbers] · scale, for `n` row numbers, int32, at the address `numbers`."""
        matrix = self.matrices[id(tensor)]
        table, rest = [numbers, matrix.address, matrix.tile_bytes], [matrix.n_out, *out, float(scale)]
        if tensor.format.is_float:
            kernel = self._kernel(gather.embed_floats, 128, FLOAT=matrix.float_kind)
            self._emit(kernel, (-(-matrix.width // 128), n), [*table, matrix.width, *rest])
        else:
            kernel = self._kernel(gather.embed, 128, FORMAT=tensor.format.name)
            self._emit(kernel, (-(-matrix.blocks // 128), n), [*table, matrix.blocks, *rest])

    def _add_positions(self, op: ops.AddPositions) -> None:
        n, width = self._n_rows[op.x.logits_rows], op.x.width
        rows = self.memory.rows(f"positions of {op.x.name}", self.capacity.max_rows, 4 * width)
        self._look_up(op.table, self.inputs.positions, n, rows)
        arguments = [*rows, *self._at(op.x), width, 1.0, 1.0]
        self._emit(self._kernel(pointwise.add, 256), (-(-width // 256), n), arguments)
        self._invalidate(op.x)

    def _select(self, op: ops.SelectRows) -> None:
        if self._all_logits and op.x not in self.program.boundary_out:  # which stays as it is
            self._alias[op.out.name] = self._resolve(op.x)
            return
        x, out = self._at(op.x), self._at(op.out)
        arguments = [self.inputs.logits_indices, x.address, x.stride, out.address, out.stride, op.x.width]
        self._emit(
            self._kernel(gather.select_rows, 128),
            (-(-op.x.width // 128), self._n_rows[True]),
            arguments,
        )
        self._invalidate(op.out)

    def _pointwise(self, op: CudaOp) -> None:
        def each(
            function: Callable[..., None],
            width: int,
            arguments: Iterable[int | float],
            out: ops.Buffer,
            **constants: int,
        ) -> None:
            kernel = self._kernel(function, 256, **constants)
            self._emit(kernel, (-(-width // 256), self._n_rows[out.logits_rows]), arguments)
            self._invalidate(out)

        match op:
            case ops.GatedActivation():
                gated = GatedActivationArguments(
                    gate=self._at(op.gate),
                    up=self._at(op.up).columns(4 * op.up_start),
                    out=self._at(op.out),
                    width=op.gate.width,
                    scale=op.scale,
                )
                each(pointwise.gated_activation, op.gate.width, gated, op.out, KIND=ACTIVATIONS[op.kind])
            case ops.Activation():
                x, out = self._at(op.x), self._at(op.out)
                arguments = [x.address, x.stride, out.address, out.stride, op.x.width]
                each(pointwise.activation, op.x.width, arguments, op.out, KIND=ACTIVATIONS[op.kind])
            case ops.SigmoidGate():
                gate, x = self._at(op.gate), self._at(op.x)
                arguments = [gate.address, gate.stride, x.address, x.stride, op.x.width]
                narrow = int(op.gate.width == 1 and op.x.width > 1)
                each(pointwise.sigmoid_gate, op.x.width, arguments, op.x, NARROW=narrow)
            case ops.Add():
                x, out = self._at(op.x), self._at(op.out)
                arguments = [x.address, x.stride, out.address, out.stride, op.x.width]
                each(pointwise.add, op.x.width, [*arguments, float(op.scale), float(op.keep)], op.out)
            case ops.SoftCap():
                x = self._at(op.x)
                each(pointwise.soft_cap, op.x.width, [x.address, x.stride, op.x.width, float(op.cap)], op.x)
            case ops.ScaleQueries():
                q = self._at(op.q)
                kernel = self._kernel(prepare_qk.grow_queries, 256)
                grid = -(-op.q.width // 256), self._n_rows[op.q.logits_rows]
                positions, beta = self.inputs.positions, float(op.beta)
                self._emit(kernel, grid, [*q, op.q.width, positions, beta, op.length])
                self._invalidate(op.q)
            case _:
                raise unsupported(op)
