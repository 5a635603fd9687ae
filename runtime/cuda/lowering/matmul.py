"""Launches of matrix products, and of what brings their activations into 8 bits or halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ... import ops
from ...config.fields import UnsupportedModel
from ...ops.fused import GatedMatMul
from ..compile.arguments import Region
from ..kernels.common import pointwise
from ..kernels.matmul import decode_matmul, floats, prefill_sm80, prefill_sm90, quantize
from ..weights.upload import Matrix
from .base import DECODE_ROWS, QuantizedRows, padded_rows
from .fusing import GATES, JoinedMatMul
from .norms import NormLowering
from .tuning import GATED_TILE, PrefillTile

TILE = 128  # outputs and rows of a block of kernels/tiled.py


@dataclass(frozen=True)
class Gated:
    """The other matrix of a gated product, where it lies, and the constants of what follows."""

    other: int
    activation: Mapping[str, int | float]
    bias: int = 0


class ProductLowering(NormLowering):
    def _in_codes(self, buffer: ops.Buffer) -> QuantizedRows:
        """A buffer in 8 bits: made now, unless it is there already."""
        real = self._resolve(buffer)
        if real.name not in self._quantized:
            x, coded, blocks = self._at(buffer), self._quantized_address(real), buffer.width // 32
            arguments = [x.address, x.stride, blocks, 0, coded, 0]
            what = self._kernel(quantize.quantize, 128, NORMED=0, TOKENS=self._padded_rows(buffer))
            self._emit(what, (-(-blocks // 4), self._n_rows[buffer.logits_rows]), arguments)
            self._quantized[real.name] = QuantizedRows(coded)
        return self._quantized[real.name]

    def _matmul(self, i: int, op: JoinedMatMul) -> None:
        if op.weights[0].format.is_float:
            self._float_matmul(op)
            return
        matrix, out = self.matrices[id(op.weights[0])], self._at(op.outs[0])
        n_out, n = sum(w.shape[0] for w in op.weights), self._n_rows[op.outs[0].logits_rows]
        if n > DECODE_ROWS:
            self._tiled(matrix, n_out, op.x, n, out, op.biases, op.accumulate)
            self._invalidate(*op.outs)
            return
        coded = self._in_codes(op.x)
        next_norm = self._norm_behind(i, op) if n_out % 32 == 0 else None
        emitted = self._quantized_address(next_norm.out) if next_norm else 0
        partials = self._partials(next_norm.out) if next_norm else 0
        constants = {"BIAS": int(bool(op.biases)), "ACCUMULATE": int(op.accumulate), "STORE": 1}
        bias = self.memory.vector(*op.biases) if op.biases else 0
        self._few(matrix, None, n_out, coded, n, out, constants, bias, emitted, next_norm, partials)
        self._invalidate(*op.outs)
        if next_norm and emitted:
            name = self._resolve(next_norm.x).name + " normed"
            self._quantized[name] = QuantizedRows(emitted, partials, next_norm)

    def _norm_behind(self, i: int, op: JoinedMatMul) -> ops.RMSNorm | None:
        """The norm that reads a product's result next, if the product can begin it."""
        if len(op.outs) != 1:
            return None
        buffer, at = op.outs[0], i + 1
        while (
            at < len(self.cuda_ops)
            and isinstance(select := self.cuda_ops[at], ops.SelectRows)
            and self._all_logits
        ):
            buffer = select.out if select.x == buffer else buffer
            at += 1
        if at < len(self.cuda_ops):
            norm = self.cuda_ops[at]
            if isinstance(norm, ops.RMSNorm) and norm.x == buffer and self._lazy(at, norm):
                return norm
        return None

    def _gated_matmul(self, i: int, op: GatedMatMul) -> None:
        matrix, other, out = self.matrices[id(op.gate)], self.matrices[id(op.up)], self._at(op.out)
        n, n_out = self._n_rows[op.out.logits_rows], op.gate.shape[0]
        if n > DECODE_ROWS and self.device.warpgroups and op.gate.format is op.up.format:
            self._tiled(matrix, n_out, op.x, n, out, other=other, kind=GATES[op.kind])
            self._invalidate(op.out)
            return
        if n > DECODE_ROWS:
            up = self.memory.rows(f"{op.out.name}, up", self.capacity.rows(op.out), 4 * n_out)
            self._tiled(matrix, n_out, op.x, n, out)
            self._tiled(other, n_out, op.x, n, up)
            arguments = [out.address, out.stride, up.address, up.stride, out.address, out.stride, n_out, 1.0]
            what = self._kernel(pointwise.gated_activation, 256, KIND=GATES[op.kind])
            self._emit(what, (-(-n_out // 256), n), arguments)
            self._invalidate(op.out)
            return
        coded = self._in_codes(op.x)
        emits = n_out % 32 == 0
        stores = not emits or not self._read_only_by_matmuls(i, op.out)
        emitted = self._quantized_address(op.out) if emits else 0
        constants = {"BIAS": 0, "ACCUMULATE": 0, "STORE": int(stores), "KIND": GATES[op.kind]}
        self._few(matrix, other, n_out, coded, n, out, constants, emitted=emitted)
        self._invalidate(op.out)
        if emitted:
            self._quantized[self._resolve(op.out).name] = QuantizedRows(emitted)

    def _few(
        self,
        matrix: Matrix,
        other: Matrix | None,
        n_out: int,
        x: QuantizedRows,
        n: int,
        out: Region,
        constants: dict[str, int],
        bias: int = 0,
        emitted: int = 0,
        norm: ops.RMSNorm | None = None,
        partials: int = 0,
    ) -> None:
        """The product of up to FEW rows."""
        name, blocks, matrices = matrix.weight.format.name, matrix.blocks, 2 if other else 1
        constants |= {
            "GATED": matrices - 1,
            "NORMED": int(x.norm is not None),
            "EMIT": 0 if not emitted else 2 if norm else 1,
            "KIND": constants.get("KIND", 0),
        }
        before: list[int | float] = [matrix.address, other.address if other else 0, matrix.tile_bytes, blocks]
        before += [n_out, x.address]
        after: list[int | float] = [x.partials, blocks, 1 / matrix.width]
        after += [float(x.norm.eps) if x.norm else 1.0, bias, out.address, out.stride, emitted]
        after += [self.memory.vector(norm.weight) if norm else 0, partials]
        label = f"{name} {matrices * n_out}x{matrix.width}"
        tokens = padded_rows(n)
        tile = self.tuning.few(name, blocks, n_out, matrices, emitted > 0, tokens)
        constants |= tile.constants | {"TOKENS": tokens}
        what = self._kernel(decode_matmul.decode_matmul, 32 * tile.WARPS, FORMAT=name, **constants)
        what = replace(what, resident=tile.resident)
        shared = 64 * tile.WARPS * tile.M * tokens
        grid = (-(-n_out // tile.outputs(matrices)),)
        self._emit(what, grid, [*before, n, *after], shared, label)

    def _tiled(
        self,
        matrix: Matrix,
        n_out: int,
        x: ops.Buffer,
        n: int,
        out: Region,
        biases: tuple[np.ndarray, ...] = (),
        accumulate: bool = False,
        other: Matrix | None = None,
        kind: int = 0,
    ) -> None:
        """The product of many rows; with `other` both products and `kind`'s gate of them."""
        halves, scales = self._as_f16(x)
        constants: dict[str, int | str] = {
            "EXPERTS": 0,
            "FORMAT": matrix.weight.format.name,
            "BIAS": int(bool(biases)),
            "ACCUMULATE": int(accumulate),
        }
        arguments = [matrix.address, matrix.tile_bytes, matrix.blocks, n_out, halves.address, halves.stride]
        arguments += [
            scales.address,
            n,
            self.memory.vector(*biases) if biases else 0,
            out.address,
            out.stride,
        ]
        arguments += [0, 0, 0]
        gated = Gated(other.address, {"KIND": kind}) if other else None
        label = f"{matrix.weight.format.name} {n_out * (2 if other else 1)}x{matrix.width}"
        self._emit_many(constants, n, n_out, arguments, label, gated=gated)

    def _emit_many(
        self,
        constants: Mapping[str, int | float | str],
        n: int,
        n_out: int,
        arguments: Sequence[int | float],
        label: str,
        wide: PrefillTile | None = None,
        gated: Gated | None = None,
    ) -> None:
        """A launch for many rows, in blocks of `wide` if the card has what they need; `gated` only if so."""
        if self.device.warpgroups:
            arguments = [*arguments, gated.other if gated else 0, gated.bias if gated else 0]
            if gated:
                n_out, constants = 2 * n_out, {**constants, **gated.activation, "GATED": 1}
                wide = wide or GATED_TILE
            wide = wide or self.tuning.many(n, n_out, self.device.multiprocessors)
            what = self._kernel(prefill_sm90.prefill_matmul_sm90, 256, **constants, **wide.constants)
            what = replace(what, resident=wide.resident)
            self._emit(what, wide.grid(n, n_out), arguments, wide.shared_bytes, label)
        else:
            what = self._kernel(prefill_sm80.prefill_matmul_sm80, 256, **constants)
            self._emit(what, (-(-n // TILE), -(-n_out // TILE)), arguments, 65536, label)

    def _float_matmul(self, op: JoinedMatMul) -> None:
        matrix, out, x = self.matrices[id(op.weights[0])], self._at(op.outs[0]), self._at(op.x)
        n_out, n = sum(w.shape[0] for w in op.weights), self._n_rows[op.outs[0].logits_rows]
        if matrix.width % 4:
            raise UnsupportedModel(
                f"the CUDA machine needs float matrices of widths divisible by 4, not {matrix.width}"
            )
        together = 1 if n == 1 else 2 if n == 2 else 4 if n <= 4 else 8
        constants = {"BIAS": int(bool(op.biases)), "ACCUMULATE": int(op.accumulate), "N": together}
        what = self._kernel(floats.float_matmul, 256, FLOAT=matrix.float_kind, **constants)
        bias = self.memory.vector(*op.biases) if op.biases else 0
        arguments = [matrix.address, matrix.tile_bytes, matrix.width, n_out, x.address, x.stride, n, bias]
        grid = (-(-n_out // 8), -(-n // together))
        self._emit(what, grid, [*arguments, out.address, out.stride], 0, f"{n_out}x{matrix.width}")
        self._invalidate(*op.outs)
