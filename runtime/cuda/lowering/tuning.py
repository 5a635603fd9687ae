"""How products are divided among blocks and warps, as measured to be fastest for each shape of matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..kernels.matmul.unpack import READERS


@dataclass(frozen=True)
class DecodeTile:
    """The division of a decode product: M tiles of 16 matrix rows for each warp, KS warps that share the
    columns, and WARPS warps in a block (see kernels/matmul/decode_matmul.py). `resident` is the number of
    blocks that must fit on a multiprocessor at once.
    """

    M: int
    KS: int
    WARPS: int
    resident: int = 1

    def outputs(self, matrices: int) -> int:
        """Outputs of a block, for 1 or 2 matrices."""
        return self.WARPS // self.KS * 16 * self.M // matrices

    @property
    def constants(self) -> dict[str, int]:
        """Constants of the kernel."""
        return {"M": self.M, "KS": self.KS, "WARPS": self.WARPS}

    def fitting(self, blocks: int) -> DecodeTile:
        """The same tile with KS reduced so that no warp is without a chunk of four blocks."""
        parts = self.KS
        while parts > 1 and 4 * parts > blocks:
            parts //= 2
        return replace(self, KS=parts, WARPS=self.WARPS * parts // self.KS)


@dataclass(frozen=True)
class PrefillTile:
    """The tile of a prefill product with wgmma: 64 · M outputs of ROWS rows for each of the two warpgroups of
    a block (see kernels/matmul/prefill_sm90.py). `resident` is the number of blocks that must fit on a
    multiprocessor at once, and `speed` the throughput relative to that of the fastest tile.
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
        """Bytes of shared memory: three buffers of 128 columns of x, and the alignment."""
        return 3 * 256 * self.ROWS + 1024

    @property
    def constants(self) -> dict[str, int]:
        """Constants of the kernel."""
        return {"M": self.M, "ROWS": self.ROWS}

    def grid(self, rows: int, n_out: int) -> tuple[int, int]:
        """Blocks for so many rows and outputs; both matrices of a gated product count."""
        return -(-rows // self.ROWS), -(-n_out // self.outputs)

    def cost(self, rows: int, n_out: int, multiprocessors: int) -> float:
        """The time of the multiprocessor with the most blocks, in an arbitrary unit."""
        x, y = self.grid(rows, n_out)
        waves = -(-x * y // (multiprocessors * self.resident)) * self.resident
        return waves * self.M * self.ROWS / self.speed


MANY_ROWS = 16  # in a step: up to so many are split over blocks of many warps
BATCH_SHARED = 228 << 10  # bytes of shared memory of a multiprocessor with wgmma

# Speeds are those on an H200 with 2,048 rows of 4,096 columns and 6,144 outputs; the fastest is 704 TFLOP/s.
GATED_TILE = PrefillTile(2, 128, 1, 0.96)  # for gated products
PREFILL_TILES = (
    GATED_TILE,
    PrefillTile(1, 256, 1, 1.0),
    PrefillTile(1, 128, 1, 0.64),
    PrefillTile(1, 128, 2, 0.97),
)


@dataclass(frozen=True)
class BatchTile:
    """The tile of a product of 16 … 128 rows with wgmma: 64 outputs of ROWS rows for each of the GROUPS
    warpgroups of a block, STAGES buffers of 128 columns, and `splits` blocks that share the columns (see
    kernels/matmul/batch_sm90.py). `resident` is the number of blocks that must fit on a multiprocessor,
    `step` the time of a step in µs, and `filled` the part of the places for blocks that can be taken at once
    without making a step longer.
    """

    ROWS: int
    GROUPS: int
    STAGES: int
    splits: int
    resident: int = 1
    step: float = 1.0
    filled: float = 1.0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.GROUPS

    @property
    def constants(self) -> dict[str, int]:
        """Constants of the kernel."""
        return {"ROWS": self.ROWS, "GROUPS": self.GROUPS, "STAGES": self.STAGES, "SHARED": 1}

    def grid(self, rows: int, n_out: int, matrices: int) -> tuple[int, int, int]:
        """Blocks for so many rows, and outputs of one or two matrices."""
        return self.splits, -(-n_out // (64 * self.GROUPS // matrices)), -(-rows // self.ROWS)

    def cost(self, parts: int, steps: int, multiprocessors: int) -> float:
        """The time of a product of `parts` tiles and `steps` steps of 128 columns, µs; what a block does
        before and behind its steps takes as long as five of them.
        """
        waves = math.ceil(parts * self.splits / (multiprocessors * self.resident * self.filled))
        return waves * (-(-steps // self.splits) + 5) * self.step

    def fits(self, name: str) -> bool:
        """Whether so many blocks have enough shared memory."""
        return self.resident * (self.shared_bytes(name) + 1024) <= BATCH_SHARED

    def shared_bytes(self, name: str) -> int:
        """Bytes of shared memory for a format: buffers of x and of packed weights, or the sums."""
        reader = READERS[name]
        piece, super_block = sum(reader[f"PLANE_{i}"] for i in range(3)), reader["SUPER_PLANE"]
        weights = 4 * self.GROUPS * (64 * piece + 16 * super_block)
        sums = 4 * self.ROWS * (64 * self.GROUPS + 4)
        return 1024 + max(self.STAGES * (256 * self.ROWS + weights), sums)


# On an H200; behind each tile one for formats of which fewer steps fit into shared memory.
BATCH_TILES = (
    BatchTile(16, 1, 6, 1, 3),
    BatchTile(16, 1, 4, 1, 3),
    BatchTile(32, 1, 4, 1, 3),
    BatchTile(32, 1, 3, 1, 3),
    BatchTile(64, 2, 4, 1, 2, 1.05),
    BatchTile(64, 2, 3, 1, 2, 1.05),
    BatchTile(64, 1, 3, 1, 2, 0.87),
    BatchTile(128, 4, 3, 1, 1, 1.67),
    BatchTile(128, 1, 3, 1, 2, 0.97, 0.73),
)
BATCH_ROWS = max(tile.ROWS for tile in BATCH_TILES)
BATCH_SPLITS = (1, 2, 3, 4, 6)  # clusters of 8 are slower: they fill the GPU's parts badly


# Formats whose gated products of one row are faster with four tiles for each warp than with two
WIDE_GATES = ("Q8_0",)


class Tuning:
    """Selects tiles for products with matrices of `n_out` rows and `blocks` blocks of 32 columns.

    `matrices` is 1, or 2 for a gated product. A result that is quantised (`emits`) needs a multiple of 32
    outputs in each block. `bench_cuda.py` overrides the methods to try other tiles.
    """

    alone = 4  # tiles of a warp of `decode_attention` up to which the context of a single row is not split
    heads = 4  # of a block of it for a single row, whose queries are prepared one after the other
    wide_attention = True  # whether attention of prompts uses wgmma where the card has it
    attention_turns = True  # whether its warpgroups start their products in turn

    def decode(
        self, name: str, blocks: int, n_out: int, matrices: int, emits: bool, tokens: int
    ) -> DecodeTile:
        """The tile of a decode product of `tokens` rows with a matrix of the format `name`.

        Measured on an H200 in the shapes of Llama 3.1 8B, with Q4_0 and Q8_0 in those of 3.2 1B, too: a
        launch should have about 2,000 warps, all of which fit on the card at once.
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
            one_matrix = DecodeTile(2, 8, 8, 2) if n_out > 4096 else DecodeTile(2, 16, 16)
            tile = DecodeTile(2, 4, 8, 2) if large or matrices == 2 else one_matrix
        elif matrices == 2:
            parts = 2 if n_out > 10000 else 4 if n_out > 4000 else 8
            warps = (4 if name == "Q8_0" and tokens > 1 else 2) * parts
            if tokens == 1 and name in WIDE_GATES:
                tile = DecodeTile(4, parts, parts, max(1, 4 // parts))
            else:
                tile = DecodeTile(2, parts, warps, max(1, 16 // warps) if tokens == 1 else 1)
        elif large:
            narrow = name == "Q8_0" and tokens > 1
            tile = DecodeTile(1, 4, 4) if narrow else DecodeTile(2, 2, 4, 4 if tokens == 1 else 1)
        elif tokens == 1:
            tile = DecodeTile(1, 8, 8, 3) if n_out <= 6144 else DecodeTile(2, 8, 8, 2)
        else:
            tile = DecodeTile(1, 8, 8) if name == "Q8_0" else DecodeTile(2, 8, 8)
        return tile.fitting(blocks)

    def moe_decode(self, blocks: int, n_out: int, matrices: int) -> DecodeTile:
        """The tile for a pair of a row and an expert, of about eight in a launch."""
        parts = 8 if matrices == 2 and n_out < 1024 else 4
        return DecodeTile(2 * matrices, parts, parts, 16 // parts if matrices == 1 else 1).fitting(blocks)

    def batch(
        self, name: str, rows: int, n_out: int, blocks: int, matrices: int, multiprocessors: int
    ) -> BatchTile | None:
        """The tile of a product of up to BATCH_ROWS rows with wgmma; None if that of `prefill` is faster."""
        steps, fitting = (
            -(-blocks // 4),
            [tile for tile in BATCH_TILES if rows <= tile.ROWS and tile.fits(name)],
        )
        fewest = min(tile.ROWS for tile in fitting)
        tile = min(
            (
                replace(tile, splits=n)
                for tile in fitting
                if fewest == tile.ROWS
                for n in BATCH_SPLITS
                if n <= steps
            ),
            key=lambda each: each.cost(each.grid(rows, n_out, matrices)[1], steps, multiprocessors),
        )
        return None if rows > 64 and tile.splits == 1 else tile

    def split_kv(self, rows: int, dims: int, shared_limit: int) -> tuple[int, int]:
        """Warps of a block of `decode_attention`, and the tiles that each has room for."""
        stages = 3 if dims <= 128 else 2
        if rows > MANY_ROWS:  # blocks enough: several small ones on a multiprocessor wait at different times
            return 4 if rows <= 2 * MANY_ROWS and 4 * stages * 64 * dims <= shared_limit else 2, stages
        if 8 * stages * 64 * dims <= shared_limit:
            return 8, stages
        return 4, stages if 4 * stages * 64 * dims <= shared_limit else 2

    def prefill(self, rows: int, n_out: int, multiprocessors: int) -> PrefillTile:
        """The tile of a prefill product with wgmma."""
        return min(PREFILL_TILES, key=lambda tile: tile.cost(rows, n_out, multiprocessors))

    def moe_prefill(self, pairs: int, n_experts: int, matrices: int) -> PrefillTile:
        """The tile for pairs that are sorted by expert, with wgmma. ROWS does not depend on `matrices`."""
        rows = 64 if pairs <= 48 * n_experts else 128
        return PrefillTile(2, rows, 1, 1.0) if matrices == 2 else PrefillTile(1, rows, 2, 1.0)
