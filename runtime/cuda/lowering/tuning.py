"""How a product's work is shared between warps: what was measured to be fast, by the matrix's shape."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DecodeTile:
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

    def fitting(self, blocks: int) -> DecodeTile:
        """The same with no more parts than there are chunks of four blocks."""
        parts = self.KS
        while parts > 1 and 4 * parts > blocks:
            parts //= 2
        return replace(self, KS=parts, WARPS=self.WARPS * parts // self.KS)


@dataclass(frozen=True)
class PrefillTile:
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
        turns = -(-x * y // (multiprocessors * self.resident)) * self.resident
        return turns * self.M * self.ROWS / self.speed


# As measured on an H200 with 2,048 rows of 4,096 numbers and 6,144 outputs: the fastest has 704 TFLOP/s.
GATED_TILE = PrefillTile(2, 128, 1, 0.96)  # for outputs of two matrices
PREFILL_TILES = (
    GATED_TILE,
    PrefillTile(1, 256, 1, 1.0),
    PrefillTile(1, 128, 1, 0.64),
    PrefillTile(1, 128, 2, 0.97),
)


class Tuning:
    """The shape for a product with `n_out` rows of `blocks` blocks of a format, of one or two `matrices`;
    `emits`: its result is wanted in 8 bits, so 32 outputs a block.
    """

    def few(self, name: str, blocks: int, n_out: int, matrices: int, emits: bool, tokens: int) -> DecodeTile:
        """For as many rows of activations as `kernels/few.py` takes; measured on an H200 with Q4_0 and Q8_0,
        in the shapes of Llama 3.1 8B and 3.2 1B. What matters is that warps are some 2,000 in all.
        """
        large = n_out > 16384
        if tokens > 8:
            tile = (
                DecodeTile(4, 4, 8)
                if large or matrices == 2
                else DecodeTile(2, 8, 8)
                if emits
                else DecodeTile(4, 8, 8)
            )
        elif emits and matrices == 1:
            tile = DecodeTile(2, 16, 16)
        elif tokens > 4:
            few = DecodeTile(2, 8, 8, 2) if n_out > 4096 else DecodeTile(2, 16, 16)
            tile = DecodeTile(2, 4, 8, 2) if large or matrices == 2 else few
        elif matrices == 2:
            parts = 2 if n_out > 10000 else 4 if n_out > 4000 else 8
            tile = DecodeTile(2, parts, (4 if name == "Q8_0" and tokens > 1 else 2) * parts)
        elif name == "Q8_0":
            tile = DecodeTile(1, 4, 4) if large else DecodeTile(1, 8, 8)
        else:
            tile = DecodeTile(2, 2, 4) if large else DecodeTile(2, 8, 8)
        return tile.fitting(blocks)

    def expert(self, blocks: int, n_out: int, matrices: int) -> DecodeTile:
        """For a row and one of its experts, of some eight that are worked on at once."""
        parts = 8 if matrices == 2 and n_out < 1024 else 4
        return DecodeTile(2 * matrices, parts, parts).fitting(blocks)

    def many(self, rows: int, n_out: int, multiprocessors: int) -> PrefillTile:
        """For more rows than these, on tensor cores of sm_90a."""
        return min(PREFILL_TILES, key=lambda wide: wide.cost(rows, n_out, multiprocessors))

    def dealt(self, pairs: int, n_experts: int, matrices: int) -> PrefillTile:
        """For so many rows of (row, choice) pairs that are sorted by expert, on such cards, of one or two
        matrices. ROWS is the same for both.
        """
        rows = 64 if pairs <= 48 * n_experts else 128
        return PrefillTile(2, rows, 1, 1.0) if matrices == 2 else PrefillTile(1, rows, 2, 1.0)
