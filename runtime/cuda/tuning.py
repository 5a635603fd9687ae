"""How a product's work is shared between warps: what was measured to be fast, by the matrix's shape."""

from __future__ import annotations

from dataclasses import dataclass

LOADED_WORDS = 64  # registers for weights that are in flight, a lane
RAW_WORDS = {  # of a block of 32 weights in registers
    "Q4_0": 5,
    "Q4_1": 5,
    "Q5_0": 6,
    "Q5_1": 6,
    "Q8_0": 9,
    "Q2_K": 4,
    "Q3_K": 5,
    "Q4_K": 8,
    "Q5_K": 9,
    "Q6_K": 8,
    "IQ4_NL": 5,
    "IQ4_XS": 6,
    "MXFP4": 5,
}


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

    def constants(self, blocks: int) -> dict[str, int]:
        """Of the launch; EXACT: whether a row's blocks fill the lanes of all parts."""
        exact = blocks % (32 * self.KS * self.U) == 0
        return {"R": self.R, "U": self.U, "KS": self.KS, "WARPS": self.WARPS, "EXACT": int(exact)}


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

    def constants(self, blocks: int) -> dict[str, int]:
        exact = blocks % (4 * self.KS) == 0
        return {"M": self.M, "KS": self.KS, "WARPS": self.WARPS, "EXACT": int(exact)}


@dataclass(frozen=True)
class Wide:
    """64 · M outputs of ROWS rows for each of a block's two warpgroups: see kernels/warpgroup.py.
    `resident`: the blocks that a multiprocessor is to hold at once; `speed`: of a full card, in parts of the
    fastest one's.
    """

    M: int
    ROWS: int
    resident: int
    speed: float

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return 128 * self.M

    @property
    def shared_bytes(self) -> int:
        return 3 * 256 * self.ROWS + 1024

    @property
    def constants(self) -> dict[str, int]:
        return {"M": self.M, "ROWS": self.ROWS}

    def grid(self, rows: int, n_out: int) -> tuple[int, int]:
        return -(-rows // self.ROWS), -(-n_out // self.outputs)

    def cost(self, rows: int, n_out: int, multiprocessors: int) -> float:
        """How long the multiprocessor takes that has most to do, in any unit."""
        x, y = self.grid(rows, n_out)
        return -(-x * y // multiprocessors) * self.M * self.ROWS / self.speed


SQUARE = Wide(1, 128, 2, 0.85)  # what tiles of dealt rows are
WIDE = Wide(2, 128, 1, 1.0), Wide(1, 256, 1, 0.95), SQUARE


class Shapes:
    """The shape for a product with `n_out` rows of `blocks` blocks of a format, of one or two `matrices`;
    `emits`: its result is wanted in 8 bits, so 32 outputs a block.
    """

    def row(self, name: str, blocks: int, n_out: int, matrices: int, emits: bool) -> Shape:
        """For one row of activations."""
        loads, raw = -(-blocks // 32), RAW_WORDS[name]  # loads: a lane's, of a row of weights
        even = 2 if loads % 2 == 0 else 1
        if loads <= 4 and raw <= 6:  # measured on an H200 with Q4_0, widths of 4096
            if matrices == 2:
                return Shape(8, 1, 1, 4)
            if not emits:
                return Shape(8, even, 1, 4) if n_out > 32768 else Shape(4, 1, 1, 8)
            return Shape(2, 1, 2, 32) if loads % 2 == 0 else Shape(2, 1, 1, 16)
        if raw == 9 and emits and matrices == 1:  # the same with Q8_0
            return Shape(1, 1, 1, 32)
        if raw == 9 and loads <= 4:
            return Shape(8, 1, 1, 4) if matrices == 2 else Shape(4, 1, 1, 8)
        if emits and matrices == 1:
            return Shape(2, even, 1, 16)
        rows = 2 if matrices == 2 else 4 if loads <= 2 else 2
        ahead = max(1, LOADED_WORDS // (rows * matrices * raw))
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
        parts = tile.KS
        while parts > 1 and 4 * parts > blocks:
            parts //= 2
        return Tile(tile.M, parts, parts, tile.resident)

    def many(self, rows: int, n_out: int, multiprocessors: int) -> Wide:
        """For more rows than these, on tensor cores of sm_90a."""
        return min(WIDE, key=lambda wide: wide.cost(rows, n_out, multiprocessors))
