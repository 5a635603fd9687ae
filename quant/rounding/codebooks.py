"""CODEBOOKS: the codebook of every block format, by name, with the parameters of its scale search."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..formats import FORMATS, iq4, mxfp4, nvfp4, packing, q2_k, q3_k, q4_0, q4_k, q5_0, q6_k, q8_0
from .codebook import Codebook
from .scale_search import ScaleSearch


def _integers(low: int, high: int) -> np.ndarray:
    """The levels low … high, float32."""
    return np.arange(low, high + 1, dtype=np.float32)


def _around(level: int, low: float, high: float, count: int, signs: bool = True) -> np.ndarray:
    """Starts that map the largest magnitude to `low` … `high` times `level`, and with `signs` to -`level`."""
    starts = level * np.linspace(low, high, count)
    return np.concatenate([starts, -starts] if signs else [starts]).astype(np.float32)


def _ends(top: int, beyond: float, within: float, count: int) -> np.ndarray:
    """Affine starts that map the levels 0 and `top` from `beyond` outside the extreme weights to `within`
    inside.

    `beyond` and `within` are fractions of the span from the smallest weight to the largest.
    """
    inward = np.linspace(-beyond, within, count)
    return np.array([(a, top / (1 - b - a)) for a in inward for b in inward], np.float32)


def _with_scale(levels: np.ndarray, starts: np.ndarray, dtype: np.dtype, store_codes: Any) -> tuple:
    """A codebook of blocks of 32 with a scale."""
    layout = packing.scales_alone, packing.store_scales_alone, store_codes
    return dtype, 32, levels, ScaleSearch(starts), *layout


def _with_minimum(top: int, starts: np.ndarray, dtype: np.dtype, store_codes: Any) -> tuple:
    """A codebook of blocks of 32 with a scale and a minimum."""
    layout = packing.scales_and_offsets, packing.store_scales_and_offsets, store_codes
    return dtype, 32, _integers(0, top), ScaleSearch(starts, affine=True), *layout


def _with_sub_scales(
    sub_block: int, levels: np.ndarray, starts: np.ndarray, limit: int, dtype: np.dtype, *layout: Any
) -> tuple:
    """A codebook of K-quants whose sub-blocks have integer scales -limit … limit - 1."""
    integer_starts = _around(limit, 0.85, 1.03, 10)
    search = ScaleSearch(starts, scale_range=(-limit, limit - 1), scale_starts=integer_starts)
    return dtype, sub_block, levels, search, *layout


def _with_sub_minimums(
    sub_block: int, top: int, starts: np.ndarray, limit: int, dtype: np.dtype, *layout: Any
) -> tuple:
    """A codebook of K-quants whose sub-blocks have integer scales and minimums 0 … limit."""
    integer_starts = _around(limit, 0.85, 1.03, 10, signs=False)
    search = ScaleSearch(
        starts, affine=True, positive_minimum=True, scale_range=(0, limit), scale_starts=integer_starts
    )
    return dtype, sub_block, _integers(0, top), search, *layout


_IQ4 = np.array(iq4.IQ4_VALUES, np.float32)
_IQ4_STARTS = _around(127, 0.5, 1.4, 24)
_E2M1 = np.array(sorted(set(mxfp4.E2M1_DOUBLED)), np.float32)

CODEBOOKS: dict[str, Codebook] = {
    name: Codebook(FORMATS[name], *row)
    for name, row in {
        "Q8_0": _with_scale(
            _integers(-127, 127), _around(127, 0.9, 1.08, 32), q8_0.Q8_0_BLOCK, q8_0.store_codes
        ),
        "Q4_0": _with_scale(_integers(-8, 7), _around(8, 0.5, 1.5, 32), q4_0.Q4_0_BLOCK, q4_0.store_codes),
        "Q4_1": _with_minimum(15, _ends(15, 0.05, 0.3, 10), q4_0.Q4_1_BLOCK, q4_0.store_codes),
        "Q5_0": _with_scale(_integers(-16, 15), _around(16, 0.7, 1.3, 24), q5_0.Q5_0_BLOCK, q5_0.store_codes),
        "Q5_1": _with_minimum(31, _ends(31, 0.03, 0.2, 10), q5_0.Q5_1_BLOCK, q5_0.store_codes),
        "Q2_K": _with_sub_minimums(
            *(16, 3, _ends(3, 0.2, 0.4, 10), 15, q2_k.Q2_K_BLOCK),
            *(q2_k.scales, q2_k.store_scales, q2_k.store_codes),
        ),
        "Q3_K": _with_sub_scales(
            *(16, _integers(-4, 3), _around(4, 0.5, 1.6, 20), 32, q3_k.Q3_K_BLOCK),
            *(q3_k.scales, q3_k.store_scales, q3_k.store_codes),
        ),
        "Q4_K": _with_sub_minimums(
            *(32, 15, _ends(15, 0.05, 0.3, 10), 63, q4_k.Q4_K_BLOCK),
            *(q4_k.scales, q4_k.store_scales, q4_k.store_codes_q4_k),
        ),
        "Q5_K": _with_sub_minimums(
            *(32, 31, _ends(31, 0.03, 0.2, 10), 63, q4_k.Q5_K_BLOCK),
            *(q4_k.scales, q4_k.store_scales, q4_k.store_codes_q5_k),
        ),
        "Q6_K": _with_sub_scales(
            *(16, _integers(-32, 31), _around(32, 0.8, 1.2, 24), 128, q6_k.Q6_K_BLOCK),
            *(q6_k.scales, q6_k.store_scales, q6_k.store_codes),
        ),
        "IQ4_NL": _with_scale(_IQ4, _IQ4_STARTS, iq4.IQ4_NL_BLOCK, iq4.store_codes_nl),
        "IQ4_XS": _with_sub_scales(
            *(32, _IQ4, _IQ4_STARTS, 32, iq4.IQ4_XS_BLOCK),
            *(iq4.scales_xs, iq4.store_scales_xs, iq4.store_codes_xs),
        ),
        "MXFP4": (
            *(mxfp4.MXFP4_BLOCK, 32, _E2M1, ScaleSearch(np.zeros(0, np.float32), powers=True)),
            *(mxfp4.scales, mxfp4.store_scales, mxfp4.store_codes),
        ),
        "NVFP4": (
            *(nvfp4.NVFP4_BLOCK, nvfp4.SUB_BLOCK, _E2M1, ScaleSearch(np.zeros(0, np.float32), e4m3=True)),
            *(nvfp4.scales, nvfp4.store_scales, nvfp4.store_codes),
        ),
    }.items()
}
