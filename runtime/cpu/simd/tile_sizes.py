"""The sizes that whoever lays memory out must know of the register tiles (`tiles`), without Numba."""

from __future__ import annotations

from ....quant.jit.levels import LANES, LEVEL

PANELS = 2  # of weights in a tile
TOKENS = {"avx512vnni": 6, "avx512": 6, "avxvnni": 3, "avx2": 3, "neon": 6, "plain": 3}[LEVEL]
GROUP = 32  # columns that are multiplied at once, and that share a unit of activations
VECTOR = 4 * LANES  # bytes
RECORD = TOKENS * (GROUP + 16)  # bytes of a group of activations
SECOND = GROUP + 4  # bytes of a token's second digits of a group: int8 codes and their float32 unit
UNITS, TOTALS, LOW_TOTALS, HIGH_TOTALS = (TOKENS * (GROUP + 4 * i) for i in range(4))
MOST_FACTORS = 4  # of a panel's group: two scales and two minima


def weights_record(factors: int) -> int:
    """Bytes of a group of unpacked weights of all panels."""
    return PANELS * (8 + factors) * VECTOR
