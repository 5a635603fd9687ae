"""Launches of matrix products, and of the quantisation of their activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....quant.errors import UnsupportedModel
from ... import ops
from ...ops.fused import GatedMatMul
from ..abi.arguments import Region
from ..kernels.common import pointwise
from ..kernels.common.pointwise import GatedActivationArguments
from ..kernels.common.sums import SumArguments
from ..kernels.matmul import batch_sm90, decode_matmul, floats, prefill_sm80, prefill_sm90, quantize
from ..kernels.matmul.batch_sm90 import BatchMatmulArguments
from ..kernels.matmul.decode_epilogue import EpilogueArguments
from ..kernels.matmul.decode_matmul import DecodeMatmulArguments, TwoMatmulArguments
from ..kernels.matmul.floats import FloatMatmulArguments
from ..kernels.matmul.prefill_epilogue import PrefillArguments
from ..kernels.matmul.prefill_sm90 import GatedPrefillArguments
from ..weights.upload import Matrix
from .base import QuantizedRows, padded_rows
from .fusing import GATES, JoinedMatMul
from .norms import NormLowering
from .tuning import BATCH_ROWS, GATED_TILE, BatchTile, DecodeTile, PrefillTile

SM80_TILE = 128  # outputs and rows of a block of prefill_matmul_sm80
SM80_SHARED_BYTES = 65536


@dataclass(frozen=True)
class UpMatrix:
    """The up matrix of a gated product: its address and bias, and the kernel's constants for the
    activation.
    """

    address: int
    activation: Mapping[str, int | float]
    bias: int = 0


@dataclass(frozen=True)
class SentSum:
    """The part that a decode product has in a sum over cards: constants, and arguments of its epilogue."""

    constants: Mapping[str, int]
    arguments: SumArguments


@dataclass(frozen=True)
class DecodeProduct:
    """A decode product: its format, the kernel's other constants, its tile, blocks and arguments, and the
    label of its launch.
    """

    name: str
    constants: Mapping[str, int]
    tile: DecodeTile
    n_blocks: int
    arguments: DecodeMatmulArguments
    label: str

    def joins(self, first: DecodeProduct) -> bool:
        """Whether one launch can compute this product and an earlier one: of the same rows, if neither
        reads what the other writes.
        """
        return (
            self.name != first.name
            and self.tile == first.tile
            and self.constants == first.constants
            and not (self.constants["EMIT"] or self.constants["ACCUMULATE"] or self.constants.get("CARDS"))
            and (self.arguments.x, self.arguments.rows) == (first.arguments.x, first.arguments.rows)
        )


@dataclass(frozen=True)
class DecodeOutput:
    """What the epilogue of a decode product does: constants (BIAS, ACCUMULATE, STORE, KIND), the address of
    the bias, the float32 result, the address for the quantised result (or 0), the norm that follows with the
    address for its sums of squares, and the sum over cards that it sends its result for.
    """

    constants: Mapping[str, int]
    region: Region
    bias: int = 0
    codes: int = 0
    norm: ops.RMSNorm | None = None
    partials: int = 0
    sums: SumArguments | None = None


class MatMulLowering(NormLowering):
    """Launches of JoinedMatMul and GatedMatMul.

    `_product` is the decode product launched last, behind so many launches; with `_together`, two products
    may be one launch.
    """

    def _begin(self, n_rows: int, n_logits: int, all_logits: bool, one_prompt: bool) -> None:
        super()._begin(n_rows, n_logits, all_logits, one_prompt)
        self._product: tuple[int, DecodeProduct] | None = None
        self._together = True

    def _quantize(self, buffer: ops.Buffer) -> QuantizedRows:
        """A buffer's quantised rows; launches the quantisation unless they are there already."""
        real = self._resolve(buffer)
        if real.name not in self._quantized:
            codes, blocks = self._quantized_address(real), buffer.width // 32
            kernel = self._kernel(quantize.quantize, 128, NORMED=0, TOKENS=self._padded_rows(buffer))
            grid = (-(-blocks // 4), self._n_rows[buffer.logits_rows])
            self._emit(kernel, grid, [*self._at(buffer), blocks, 0, codes, 0])
            self._quantized[real.name] = QuantizedRows(codes)
        return self._quantized[real.name]

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

    def _decode_matmul(
        self, matrix: Matrix, up: Matrix | None, n_out: int, x: QuantizedRows, n: int, output: DecodeOutput
    ) -> None:
        """The product of up to `decode_rows` quantised rows; with `up` a gated product of both matrices."""
        name, blocks, matrices = matrix.weight.format.name, matrix.blocks, 2 if up else 1
        tokens = padded_rows(n)
        tile = self.tuning.decode(name, blocks, n_out, matrices, output.codes > 0, tokens)
        constants = {
            **output.constants,
            **tile.constants,
            "GATED": matrices - 1,
            "NORMED": int(x.norm is not None),
            "EMIT": 0 if not output.codes else 2 if output.norm else 1,
            "TOKENS": tokens,
        }
        epilogue = EpilogueArguments(
            partials=x.partials,
            n_partials=blocks,
            inverse_width=1 / matrix.width,
            eps=x.norm.eps if x.norm else 1.0,
            bias=output.bias,
            out=output.region,
            codes=output.codes,
            norm_weight=self.memory.vector(output.norm.weight) if output.norm else 0,
            out_partials=output.partials,
            sums=output.sums or SumArguments(),
        )
        arguments = DecodeMatmulArguments(
            weights=matrix.address,
            other=up.address if up else 0,
            tile_bytes=matrix.tile_bytes,
            blocks=blocks,
            n_out=n_out,
            x=x.address,
            rows=n,
            epilogue=epilogue,
        )
        label = f"{name} {matrices * n_out}x{matrix.width}"
        self._emit_decode(
            DecodeProduct(name, constants, tile, -(-n_out // tile.outputs(matrices)), arguments, label)
        )

    def _emit_decode(self, product: DecodeProduct) -> None:
        """A launch of a product, or one of it and the product of the launch before, in the place of that, if
        they go together: small matrices, such as those of v in mixtures of formats, hardly take time then.
        """
        tile, shared = product.tile, 64 * product.tile.WARPS * product.tile.M * product.constants["TOKENS"]
        before, self._product = self._product, (len(self._launches), product)
        if self._together and before and before[0] == len(self._launches) - 1 and product.joins(before[1]):
            first = before[1]
            kernel = self._kernel(
                decode_matmul.two_matmuls,
                32 * tile.WARPS,
                FORMAT=first.name,
                FORMAT_SECOND=product.name,
                **product.constants,
            )
            both = TwoMatmulArguments(
                first=first.arguments, second=product.arguments, n_blocks=first.n_blocks
            )
            self._launches.pop()
            self._product = None
            kernel = replace(kernel, resident=tile.resident)
            self._emit(
                kernel, (first.n_blocks + product.n_blocks,), both, shared, f"{first.label} {product.label}"
            )
            return
        kernel = self._kernel(
            decode_matmul.decode_matmul, 32 * tile.WARPS, FORMAT=product.name, **product.constants
        )
        kernel = replace(kernel, resident=tile.resident)
        self._emit(kernel, (product.n_blocks,), product.arguments, shared, product.label)

    def _prefill_matmul(
        self,
        matrix: Matrix,
        n_out: int,
        x: ops.Buffer,
        out: Region,
        n: int,
        biases: tuple[np.ndarray, ...],
        constants: Mapping[str, int],
        up: UpMatrix | None = None,
    ) -> None:
        """The product of more than `decode_rows` rows of `x`; with `up` a gated product, only with wgmma."""
        name, matrices = matrix.weight.format.name, 2 if up else 1
        if self.device.warpgroups and n <= BATCH_ROWS:
            tile = self.tuning.batch(name, n, n_out, matrix.blocks, matrices, self.device.multiprocessors)
            if tile is not None:
                self._batch_matmul(tile, matrix, n_out, x, out, n, biases, constants, up)
                return
        rows, scales = self._as_f16(x)
        arguments = PrefillArguments(
            weights=matrix.address,
            tile_bytes=matrix.tile_bytes,
            blocks=matrix.blocks,
            n_out=n_out,
            x=rows,
            scales=scales.address,
            rows=n,
            bias=self.memory.vector(*biases) if biases else 0,
            out=out,
        )
        label = f"{name} {n_out * (2 if up else 1)}x{matrix.width}"
        self._emit_prefill({"EXPERTS": 0, "FORMAT": name, **constants}, n, arguments, label, up=up)

    def _batch_matmul(
        self,
        tile: BatchTile,
        matrix: Matrix,
        n_out: int,
        x: ops.Buffer,
        out: Region,
        n: int,
        biases: tuple[np.ndarray, ...],
        constants: Mapping[str, int],
        up: UpMatrix | None,
    ) -> None:
        """The product of up to BATCH_ROWS rows of `x`, with wgmma; with `up` a gated product."""
        rows, scales = self._as_f16(x)
        name, matrices = matrix.weight.format.name, 2 if up else 1
        arguments = BatchMatmulArguments(
            weights=matrix.address,
            other=up.address if up else 0,
            tile_bytes=matrix.tile_bytes,
            blocks=matrix.blocks,
            n_out=n_out,
            x=rows,
            scales=scales.address,
            rows=n,
            bias=self.memory.vector(*biases) if biases else 0,
            out=out,
        )
        vectors = int(n_out % 4 == 0 and out.address % 16 == 0 and out.stride % 16 == 0)
        more: dict[str, int | float] = {**tile.constants, "VECTORS": vectors, "GATED": matrices - 1}
        more |= up.activation if up else {}
        kernel = self._kernel(batch_sm90.batch_matmul_sm90, tile.threads, FORMAT=name, **constants, **more)
        kernel = replace(kernel, resident=tile.resident)
        label = f"{name} {n_out * matrices}x{matrix.width}"
        grid, shared = tile.grid(n, n_out, matrices), tile.shared_bytes(name)
        self._emit(kernel, grid, arguments, shared, label, tile.splits)

    def _emit_prefill(
        self,
        constants: Mapping[str, int | float | str],
        n: int,
        arguments: PrefillArguments,
        label: str,
        tile: PrefillTile | None = None,
        up: UpMatrix | None = None,
    ) -> None:
        """A launch of a prefill product of `n` rows, in tiles of `tile` where the GPU has wgmma."""
        n_out = arguments.n_out
        if not self.device.warpgroups:
            kernel = self._kernel(prefill_sm80.prefill_matmul_sm80, 256, **constants)
            grid = -(-n // SM80_TILE), -(-n_out // SM80_TILE)
            self._emit(kernel, grid, arguments, SM80_SHARED_BYTES, label)
            return
        if up:
            n_out, constants = 2 * n_out, {**constants, **up.activation, "GATED": 1}
            tile = tile or GATED_TILE
        tile = tile or self.tuning.prefill(n, n_out, self.device.multiprocessors)
        kernel = self._kernel(prefill_sm90.prefill_matmul_sm90, 256, **constants, **tile.constants)
        gated = GatedPrefillArguments(
            product=arguments, other=up.address if up else 0, other_bias=up.bias if up else 0
        )
        kernel = replace(kernel, resident=tile.resident)
        self._emit(kernel, tile.grid(n, n_out), gated, tile.shared_bytes, label)

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
