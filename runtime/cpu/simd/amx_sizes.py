"""Sizes of the operands of products in matrix tiles (`amx`), for code without Numba."""

from __future__ import annotations

ROWS = 16  # rows of activations in a tile
TILE = 1024  # bytes of a tile
BLOCK_ROWS = 2 * ROWS  # rows that are multiplied at once
STEP_BYTES = 2 * TILE  # bytes of a group of BLOCK_ROWS rows of activations, and of a pair of panels
SUM_BYTES = 4 * TILE  # bytes of the sums of BLOCK_ROWS rows and a pair of panels
UNIT_BYTES = 8 * TILE  # bytes that a `TileUnit` may use for each thread
# Groups of a pair of panels that are unpacked at a time: their weights fit into the L1 data cache
GROUPS = 16
PAIRS = 8  # pairs of panels whose sums are kept while they meet the same part of the activations
BLOCKS = 16  # blocks of rows at a time
PART_BYTES = 1 << 20  # bytes of that part: with the sums it fits into the L2 cache
