"""Codebooks: the levels of each block format, with the search for its scales; `codebooks` lists them.

A code is an index into the ascending levels, which each sub-block of weights scales and shifts::

    weight = scale · levels[code] - minimum

`fit_scales` searches for scales and minimums (`scale_search`), `nearest_codes` rounds weights to codes, and
`Codebook.pack` stores codes. GPTQ takes the scales of the first, chooses codes by itself, and packs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..block import BlockFormat
from ..formats.packing import Scales
from ..jit.kernel import CpuKernel
from .scale_search import ScaleSearch, midpoints

# Fields of the argument records of the kernels: addresses of arrays and integers, all int64
_FIT_FIELDS = (
    "weights",  # float32 [n_blocks, block_size]
    "n_blocks",
    "block_size",
    "sub_block",
    "importance",  # float32 [period, block_size]: block i has row i modulo period
    "period",
    "levels",  # float32 [n_levels], then the n_levels - 1 midpoints between them
    "n_levels",
    "starts",  # of `ScaleSearch`, as the next
    "n_starts",
    "affine",
    "positive_minimum",
    "scale_low",
    "scale_high",
    "scale_starts",
    "n_scale_starts",  # 0: blocks have no sub-blocks, and the scale is d
    "d",  # output: float32 [n_blocks], as dmin
    "dmin",
    "s",  # output: float32 [n_blocks, sub-blocks], as m
    "m",
    "scratch",
)
FIT = np.dtype([(name, np.int64) for name in _FIT_FIELDS])
_NEAREST_FIELDS = (
    "weights",  # float32 [n_sub_blocks, sub_block]
    "n_sub_blocks",
    "sub_block",
    "scale",  # float32 [n_sub_blocks], as minimum
    "minimum",
    "levels",  # as in FIT
    "n_levels",
    "out",  # output: uint8 [n_sub_blocks, sub_block]
)
NEAREST = np.dtype([(name, np.int64) for name in _NEAREST_FIELDS])

_MAX_LANES = 16  # float32 lanes of a vector at the widest SIMD level


def _kernels(table: str, *names: str) -> dict[str, CpuKernel]:
    return {name: CpuKernel(f"{__package__}.scale_search_kernels", table, name) for name in names}


FITS = _kernels("FITS", "uniform", "table", "affine", "powers", "e4m3")
NEARESTS = _kernels("NEARESTS", "uniform", "table")


@dataclass(frozen=True)
class Codebook:
    """The levels of a format, and how its blocks (structured arrays of `dtype`) store scales and codes."""

    form: BlockFormat
    dtype: np.dtype
    sub_block: int  # weights that share a scale
    levels: np.ndarray  # float32, ascending; a code is an index into it
    search: ScaleSearch
    scales: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    """The scale and the minimum of each sub-block as `dequantize` uses them, float32 `[n, sub-blocks]`."""
    store_scales: Callable[[np.ndarray, Scales], None]
    store_codes: Callable[[np.ndarray, np.ndarray], None]

    @property
    def is_uniform(self) -> bool:
        """Whether the levels are consecutive integers."""
        return bool((np.diff(self.levels) == 1).all())

    @property
    def level_table(self) -> np.ndarray:
        """The levels and behind them the midpoints between neighbours, float32 `[2 · n_levels - 1]`."""
        return np.concatenate([self.levels, midpoints(self.levels)])

    def blocks(self, scales: Scales) -> np.ndarray:
        """Blocks with these scales; their codes are undefined."""
        out = np.zeros(len(scales.d), self.dtype)
        self.store_scales(out, scales)
        return out

    def pack(self, blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """A copy of `blocks` with uint8 codes `[n, block_size]`, as uint8 `[n, type_size]`."""
        out = blocks.copy()
        self.store_codes(out, codes)
        return out.view(np.uint8).reshape(len(blocks), self.form.type_size)


def fit_scales(codebook: Codebook, weights: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """Blocks with the scales that make Σ importance · (weight - dequantised weight)² small; codes undefined.

    `weights` are finite float32 `[n, block_size]`; magnitudes beyond the format's range are clipped.
    `importance` is float32 `[block_size]` for all blocks, or `[k, block_size]`: block i has row i modulo k.
    None means uniform importance; only ratios matter. Releases the GIL.
    """
    importance = normalised_importance(importance, codebook.form.block_size)
    if codebook.search.e4m3:  # blocks share nothing but bytes
        size = codebook.sub_block
        found = _search(codebook, weights.reshape(-1, size), importance.reshape(-1, size))
        s = found.d.reshape(len(weights), -1)
        return codebook.blocks(Scales(np.ones(len(s), np.float32), np.zeros(len(s), np.float32), s, 0 * s))
    return codebook.blocks(_search(codebook, weights, importance))


def nearest_codes(codebook: Codebook, weights: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """uint8 codes `[n, block_size]` of the levels nearest to float32 weights, with the scales of `blocks`."""
    weights = np.ascontiguousarray(weights, np.float32)
    scale, minimum = (np.ascontiguousarray(part) for part in codebook.scales(blocks))
    out = np.empty(weights.shape, np.uint8)
    table = codebook.level_table
    arguments = _record(
        NEAREST,
        weights=weights,
        n_sub_blocks=scale.size,
        sub_block=codebook.sub_block,
        scale=scale,
        minimum=minimum,
        levels=table,
        n_levels=len(codebook.levels),
        out=out,
    )
    NEARESTS["uniform" if codebook.is_uniform else "table"].compiled.ctypes(arguments.ctypes.data, 0, 0)
    return out


def encode_blocks(
    codebook: Codebook, weights: np.ndarray, importance: np.ndarray | None = None
) -> np.ndarray:
    """float32 `[n, block_size]` as uint8 `[n, type_size]`: scales of `fit_scales`, and the nearest codes."""
    blocks = fit_scales(codebook, weights, importance)
    return codebook.pack(blocks, nearest_codes(codebook, weights, blocks))


def normalised_importance(importance: np.ndarray | None, block_size: int) -> np.ndarray:
    """Importance as float32 `[k, block_size]` with a mean of about 1; None becomes ones.

    A small constant is added, so that columns whose input is always zero are still rounded to a near level.
    Raises ValueError if importance is negative or not finite.
    """
    if importance is None:
        return np.ones((1, block_size), np.float32)
    exact = np.asarray(importance, np.float64).reshape(-1, block_size)
    if not np.isfinite(exact).all() or (exact < 0).any():
        raise ValueError("importance is negative or not finite")
    return (exact / (exact.mean() or 1.0) + 1e-6).astype(np.float32)


def _search(codebook: Codebook, weights: np.ndarray, importance: np.ndarray) -> Scales:
    """Run the search kernel of the codebook's kind."""
    weights = np.ascontiguousarray(weights, np.float32)
    (n, size), search = weights.shape, codebook.search
    n_sub_blocks = size // codebook.sub_block
    scales = Scales(
        np.empty(n, np.float32),
        np.empty(n, np.float32),
        np.ones((n, n_sub_blocks), np.float32),
        np.ones((n, n_sub_blocks), np.float32),
    )
    scale_starts = np.zeros(0, np.float32) if search.scale_starts is None else search.scale_starts
    n_vectors = 2 * size + max(codebook.sub_block, n_sub_blocks) + 8 * n_sub_blocks
    scratch = np.empty(n_vectors * _MAX_LANES, np.float32)
    table = codebook.level_table
    arguments = _record(
        FIT,
        weights=weights,
        n_blocks=n,
        block_size=size,
        sub_block=codebook.sub_block,
        importance=importance,
        period=len(importance),
        levels=table,
        n_levels=len(codebook.levels),
        starts=search.starts,
        n_starts=len(search.starts),
        affine=search.affine,
        positive_minimum=search.positive_minimum,
        scale_low=search.scale_range[0],
        scale_high=search.scale_range[1],
        scale_starts=scale_starts,
        n_scale_starts=len(scale_starts),
        d=scales.d,
        dmin=scales.dmin,
        s=scales.s,
        m=scales.m,
        scratch=scratch,
    )
    FITS[_search_kind(codebook)].compiled.ctypes(arguments.ctypes.data, 0, 0)
    return scales


def _search_kind(codebook: Codebook) -> str:
    if codebook.search.e4m3:
        return "e4m3"
    if codebook.search.powers:
        return "powers"
    if codebook.search.affine:
        return "affine"
    return "uniform" if codebook.is_uniform else "table"


def _record(dtype: np.dtype, **fields: Any) -> np.ndarray:
    """An argument record of the arrays' addresses and the numbers; it does not keep the arrays alive."""
    out = np.zeros(1, dtype)
    for name, value in fields.items():
        out[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
    return out
