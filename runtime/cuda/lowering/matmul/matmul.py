"""The ops JoinedMatMul and GatedMatMul: which products they are, and what goes into a product's epilogue."""

from __future__ import annotations

from dataclasses import replace

from .....quant.errors import UnsupportedModel
from .... import ops
from ....ops.fused import GatedMatMul
from ...abi.arguments import Region
from ...kernels.common import pointwise
from ...kernels.common.pointwise import GatedActivationArguments
from ...kernels.matmul import floats
from ...kernels.matmul.floats import FloatMatmulArguments
from ...weights.upload import Matrix
from ..base import QuantizedRows
from ..fusing import GATES, JoinedMatMul
from .decode import DecodeLowering, DecodeOutput, SentSum
from .prefill import PrefillLowering, UpMatrix


class MatMulLowering(DecodeLowering, PrefillLowering):
    """Launches of JoinedMatMul and GatedMatMul."""

    def _matmul(self, i: int, op: JoinedMatMul) -> None:
        if op.weights[0].format.is_float:
            self._float_matmul(op)
            return
        matrix, out = self.matrices[id(op.weights[0])], self._at(op.outs[0])
        n_out, n = sum(w.shape[0] for w in op.weights), self._n_rows[op.outs[0].logits_rows]
        constants = {"BIAS": int(bool(op.biases)), "ACCUMULATE": int(op.accumulate)}
        if n > self.decode_rows:
            self._prefill_matmul(matrix, n_out, op.x, out, n, op.biases, constants)
            self._invalidate(*op.outs)
            return
        x = self._quantize(op.x)
        norm = self._following_norm(i, op) if n_out % 32 == 0 else None
        codes = self._quantized_address(norm.out) if norm else 0
        partials = self._partials(norm.out) if norm else 0
        bias = self.memory.vector(*op.biases) if op.biases else 0
        output = DecodeOutput(constants | {"STORE": 1, "KIND": 0}, out, bias, codes, norm, partials)
        if (sums := self._sum_behind(i, op)) is not None:
            output = replace(output, constants={**output.constants, **sums.constants}, sums=sums.arguments)
        self._decode_matmul(matrix, None, n_out, x, n, output)
        self._invalidate(*op.outs)
        if norm and codes:
            self._quantized[self._resolve(norm.x).name + " normed"] = QuantizedRows(codes, partials, norm)

    def _following_norm(self, i: int, op: JoinedMatMul) -> ops.RMSNorm | None:
        """The RMSNorm that reads a product's result next, if the product's epilogue can begin it."""
        return self._norm_behind(i, op.outs[0]) if len(op.outs) == 1 else None

    def _sum_behind(self, i: int, op: JoinedMatMul) -> SentSum | None:
        """What a product sends for a sum over cards that follows at once; `SumLowering` has these."""
        return None

    def _norm_behind(self, i: int, buffer: ops.Buffer) -> ops.RMSNorm | None:
        """The RMSNorm that reads next what op number `i` has written to a buffer, if it is one whose division
        the products behind it do.
        """
        for at in range(i + 1, len(self.cuda_ops)):
            following = self.cuda_ops[at]
            if isinstance(following, ops.SelectRows) and self._all_logits:
                buffer = following.out if following.x == buffer else buffer
                continue
            if isinstance(following, ops.RMSNorm) and following.x == buffer and self._deferred(at, following):
                return following
            break
        return None

    def _gated_matmul(self, i: int, op: GatedMatMul) -> None:
        gate, up, out = self.matrices[id(op.gate)], self.matrices[id(op.up)], self._at(op.out)
        n, n_out = self._n_rows[op.out.logits_rows], op.gate.shape[0]
        if n > self.decode_rows:
            self._gated_prefill(op, gate, up, out, n)
            self._invalidate(op.out)
            return
        x = self._quantize(op.x)
        quantises = n_out % 32 == 0
        stores = not quantises or not self._read_only_by_matmuls(i, op.out)
        codes = self._quantized_address(op.out) if quantises else 0
        constants = {"BIAS": 0, "ACCUMULATE": 0, "STORE": int(stores), "KIND": GATES[op.kind]}
        self._decode_matmul(gate, up, n_out, x, n, DecodeOutput(constants, out, codes=codes))
        self._invalidate(op.out)
        if codes:
            self._quantized[self._resolve(op.out).name] = QuantizedRows(codes)

    def _gated_prefill(self, op: GatedMatMul, gate: Matrix, up: Matrix, out: Region, n: int) -> None:
        """A gated product of many rows: in one launch with wgmma, else two products and the activation."""
        n_out, constants = op.gate.shape[0], {"BIAS": 0, "ACCUMULATE": 0}
        if self.device.warpgroups and op.gate.format is op.up.format:
            other = UpMatrix(up.address, {"KIND": GATES[op.kind]})
            self._prefill_matmul(gate, n_out, op.x, out, n, (), constants, other)
            return
        ups = self.memory.rows(f"{op.out.name}, up", self.capacity.rows(op.out), 4 * n_out)
        self._prefill_matmul(gate, n_out, op.x, out, n, (), constants)
        self._prefill_matmul(up, n_out, op.x, ups, n, (), constants)
        kernel = self._kernel(pointwise.gated_activation, 256, KIND=GATES[op.kind])
        arguments = GatedActivationArguments(gate=out, up=ups, out=out, width=n_out, scale=1.0)
        self._emit(kernel, (-(-n_out // 256), n), arguments)

    def _float_matmul(self, op: JoinedMatMul) -> None:
        matrix = self.matrices[id(op.weights[0])]
        n_out, n = sum(w.shape[0] for w in op.weights), self._n_rows[op.outs[0].logits_rows]
        if matrix.width % 4:
            raise UnsupportedModel(
                f"the CUDA machine needs float matrices of widths divisible by 4, not {matrix.width}"
            )
        rows_per_warp = 1 if n == 1 else 2 if n == 2 else 4 if n <= 4 else 8
        constants = {"BIAS": int(bool(op.biases)), "ACCUMULATE": int(op.accumulate), "N": rows_per_warp}
        kernel = self._kernel(floats.float_matmul, 256, FLOAT=matrix.float_kind, **constants)
        arguments = FloatMatmulArguments(
            weights=matrix.address,
            row_bytes=matrix.tile_bytes,
            width=matrix.width,
            n_out=n_out,
            x=self._at(op.x),
            rows=n,
            bias=self.memory.vector(*op.biases) if op.biases else 0,
            out=self._at(op.outs[0]),
        )
        grid = (-(-n_out // 8), -(-n // rows_per_warp))
        self._emit(kernel, grid, arguments, 0, f"{n_out}x{matrix.width}")
        self._invalidate(*op.outs)
