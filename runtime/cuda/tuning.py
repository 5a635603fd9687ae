"""How a product's work is shared between warps: what was measured to be fast, by the matrix's shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """M tiles of 16 rows of weights a warp, KS warps to share the columns, WARPS a block: see kernels/few.py.
    `resident`: the blocks that a multiprocessor is to hold at once.
    """

    M: int
    KS: int
    WARPS: int
    resident: int = 1

    def outputs(self, matrices: int) -> int:
        """Outputs of a block."""
        return self.WARPS // self.KS * 16 * self.M // matrices

    @property
    def constants(self) -> dict[str, int]:
        """Of the launch."""
        return {"M": self.M, "KS": self.KS, "WARPS": self.WARPS}

    def fitting(self, blocks: int) -> Tile:
        """The same with no more parts than there are chunks of four blocks."""
        parts = self.KS
        while parts > 1 and 4 * parts > blocks:
            parts //= 2
        return Tile(self.M, parts, self.WARPS * parts // self.KS, self.resident)


class Shapes:
    """The shape for a product with `n_out` rows of `blocks` blocks of a format, of one or two `matrices`;
    `emits`: its result is wanted in 8 bits, so 32 outputs a block.
    """

    def few(self, name: str, blocks: int, n_out: int, matrices: int, emits: bool, tokens: int) -> Tile:
        """For as many rows of activations as `kernels/few.py` takes; measured on an H200 with Q4_0 and Q8_0,
        widths of 4096 and 14336.
        """
        if n_out * matrices > 16384:  # blocks enough: more rows share what is read of activations
            tile = Tile(4, 4, 4, 2)
        elif n_out > 4096 and blocks <= 256:
            tile = Tile(4, 8, 8)
        else:
            tile = Tile(2 * matrices, 16 // matrices, 16 // matrices)
        return tile.fitting(blocks)

    def expert(self, blocks: int, matrices: int, emits: bool) -> Tile:
        """For a row and one of its experts."""
        return Tile(2 * matrices, 4, 4).fitting(blocks)
