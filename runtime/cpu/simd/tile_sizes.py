"""Sizes of the operands of matrix products (`gemm_tile`, `row_products`), for code without Numba."""

from __future__ import annotations

from ....quant.jit.levels import LANES, LEVEL

PANELS = 2  # panels of weights in a tile
# Rows of activations in a tile: as many as the level's vector registers have room for.
TOKENS = 3 if LEVEL in ("avxvnni", "avx2", "plain") else 6
# Rows of a tile whose codes lie together, 8 columns of each in turn, as `smmla` takes them.
TOGETHER = 2 if LEVEL == "i8mm" else 1
GROUP = 32  # columns whose products are summed as integers, and whose activations share a scale
VECTOR = 4 * LANES  # bytes of a vector register
FACTOR = TOGETHER * VECTOR  # bytes of a scale, or of a minimum, of the rows of a panel in a record
RECORD = TOKENS * (GROUP + 16)  # bytes of a group of activations
RESIDUAL = GROUP + 4  # bytes of a group of residual codes of a row: int8 codes, float32 scale
# Byte offsets in a record of activations, float32 [TOKENS] each: scales, sums of the 32 values, sums of the
# first 16 and of the last 16.
SCALES, GROUP_SUMS, LOW_SUMS, HIGH_SUMS = (TOKENS * (GROUP + 4 * i) for i in range(4))
# The same for codes of int16 (`gemm_tile.TileCodes.wide`), without sums.
WIDE_SCALES, WIDE_RECORD = TOKENS * 2 * GROUP, TOKENS * (2 * GROUP + 4)
# Float32 statistics of each group of a quantised row that is not in a tile, at these byte offsets: scale of
# the codes, scale of the residual codes, sum of the dequantised values, sums of the first and the last 16.
GROUP_STATS = 5
SCALE, RESIDUAL_SCALE, GROUP_SUM, LOW_SUM, HIGH_SUM = (4 * i for i in range(GROUP_STATS))
CODES_GAP = 8 * (TOGETHER - 1)  # bytes between 8 columns of a row in a record and its next 8 columns
MAX_FACTORS = 4  # scales and minima of a group of a panel at most: two of each


def weights_record(factors: int, vectors: int = 8) -> int:
    """Bytes of a group of unpacked weights of all panels, which have `vectors` vectors of codes each, and
    `factors` scales and minima."""
    return PANELS * (vectors * VECTOR + factors * FACTOR)
