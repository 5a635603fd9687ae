"""How a product's work is shared between warps: what was measured to be fast, by the matrix's shape."""

from __future__ import annotations

from dataclasses import dataclass

LOADED_WORDS = 64  # registers for weights that are in flight, a lane


@dataclass(frozen=True)
class Shape:
    """R rows a warp, U blocks a lane and row in flight, KS warps a row, WARPS a block: see
    kernels/matvec.py.
    """

    R: int
    U: int
    KS: int
    WARPS: int

    @property
    def rows(self) -> int:
        """Outputs of a block."""
        return self.WARPS // self.KS * self.R

    def exact(self, blocks: int) -> bool:
        """Whether a row's blocks fill the lanes of all parts."""
        return blocks % (32 * self.KS * self.U) == 0


def matvec_shape(blocks: int, n_out: int, n_rows: int, matrices: int, raw: int, emits: bool) -> Shape:
    """For `n_out` rows of `blocks` blocks of `raw` words, of one or two `matrices`; `emits`: 32 outputs a
    block.
    """
    loads = -(-blocks // 32)  # a lane's, of a row
    if n_rows > 2:  # activations are what is read most
        return Shape(2, 1, 1, 16) if matrices == 2 else Shape(4, 1, 1, 8)
    if n_rows == 1 and loads <= 4 and raw <= 6:  # measured on an H200 with Q4_0, widths of 4096
        if matrices == 2:
            return Shape(8, 1, 1, 4)
        if not emits:
            return (
                Shape(8, 2 if loads % 2 == 0 else 1, 1, 4)
                if n_out > 32768 and raw <= 6
                else Shape(4, 1, 1, 8)
            )
        return Shape(2, 1, 2, 32) if loads % 2 == 0 else Shape(2, 1, 1, 16)
    if n_rows == 1 and loads <= 4 and raw == 9:  # the same with Q8_0
        return Shape(1, 1, 1, 32) if emits and matrices == 1 else Shape(8, 1, 1, 4)
    if n_rows == 1 and emits and matrices == 1:
        return Shape(2, 2 if loads % 2 == 0 else 1, 1, 16)
    rows = 2 if matrices == 2 or n_rows > 1 else 4 if loads <= 2 else 2
    ahead = max(1, LOADED_WORDS // (rows * matrices * raw))
    if n_rows > 2:
        ahead = min(ahead, 2)
    split = 1
    while split < 4 and loads > 4 * ahead * split:
        split *= 2
    per_part = -(-loads // split)
    fits = [u for u in range(1, min(ahead, per_part) + 1) if per_part % u == 0]
    warps = 32 // rows * split if emits else 8
    if warps > 16:
        split = max(1, split // 2)
        warps = 32 // rows * split
    return Shape(rows, fits[-1], split, warps)
