"""Launches of prefill products: more than `decode_rows` rows of float16 activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .... import ops
from ...abi.arguments import Region
from ...kernels.matmul import batch_sm90, prefill_sm80, prefill_sm90
from ...kernels.matmul.batch_sm90 import BatchMatmulArguments
from ...kernels.matmul.prefill_epilogue import PrefillArguments
from ...kernels.matmul.prefill_sm90 import GatedPrefillArguments
from ...weights.upload import Matrix
from ..norms import NormLowering
from ..tuning import BATCH_ROWS, GATED_TILE, BatchTile, PrefillTile

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


class PrefillLowering(NormLowering):
    """Launches of prefill products: in small tiles for up to BATCH_ROWS rows where the GPU has wgmma."""

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
