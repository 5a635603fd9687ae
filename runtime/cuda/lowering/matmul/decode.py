"""Launches of decode products: up to `decode_rows` rows of 8-bit activations, and their quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .... import ops
from ...abi.arguments import Region
from ...kernels.common.sums import SumArguments
from ...kernels.matmul import decode_matmul, quantize
from ...kernels.matmul.decode_epilogue import EpilogueArguments
from ...kernels.matmul.decode_matmul import DecodeMatmulArguments, TwoMatmulArguments
from ...weights.upload import Matrix
from ..base import QuantizedRows, padded_rows
from ..norms import NormLowering
from ..tuning import DecodeTile


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


class DecodeLowering(NormLowering):
    """Launches of decode products.

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
