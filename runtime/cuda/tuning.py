"""How a product's work is shared between warps: what was measured to be fast, by the matrix's shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

MULTIPROCESSORS = 132  # of the card that this was measured on


@dataclass(frozen=True)
class Tile:
    """M tiles of 16 rows of weights a warp, KS warps to share the columns, WARPS a block, AHEAD chunks of
    columns in flight: see kernels/few.py. `resident`: the blocks that a multiprocessor is to hold at once.
    """

    M: int
    KS: int
    WARPS: int
    resident: int = 1
    AHEAD: int = 1

    def outputs(self, matrices: int) -> int:
        """Outputs of a block."""
        return self.WARPS // self.KS * 16 * self.M // matrices

    @property
    def constants(self) -> dict[str, int]:
        """Of the launch."""
        return {"M": self.M, "KS": self.KS, "WARPS": self.WARPS, "AHEAD": self.AHEAD}

    def fitting(self, blocks: int) -> Tile:
        """The same with no more parts than there are chunks of four blocks."""
        parts = self.KS
        while parts > 1 and 4 * parts > blocks:
            parts //= 2
        return replace(self, KS=parts, WARPS=self.WARPS * parts // self.KS)


class Shapes:
    """The shape for a product with `n_out` rows of `blocks` blocks of a format, of one or two `matrices`;
    `emits`: its result is wanted in 8 bits, so 32 outputs a block.
    """

    def few(self, name: str, blocks: int, n_out: int, matrices: int, emits: bool, tokens: int) -> Tile:
        """For as many rows of activations as `kernels/few.py` takes; measured on an H200 with Q4_0 and Q8_0,
        widths of 4096 and 14336.
        """
        large, wide = n_out > 128 * MULTIPROCESSORS, name == "Q8_0"
        if emits and matrices == 1:
            tile = Tile(2, 16, 16)
        elif tokens > 4:
            tile = Tile(2, 4, 4, 4) if large else Tile(2, 4, 8, 2) if matrices == 2 else Tile(2, 8, 8, 2)
        elif matrices == 2:
            tile = Tile(2, 2, 4) if wide else Tile(2, 2, 8)
        elif large:
            tile = Tile(1, 4, 4) if wide else Tile(2, 2, 4)
        else:
            tile = Tile(1, 8, 8) if wide or n_out < 32 * MULTIPROCESSORS else Tile(2, 8, 8)
        return tile.fitting(blocks)

    def expert(self, blocks: int, matrices: int) -> Tile:
        """For a row and one of its experts."""
        return Tile(2 * matrices, 4, 4).fitting(blocks)
