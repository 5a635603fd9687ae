"""The codebooks that block formats round weights to, and the search for the best of them; `codebooks` lists them.

A block's scales lay a codebook over each of its runs; a code picks a level of it::

    weight = scale · levels[code] - minimum

`fit` chooses the scales (`search`), `nearest` the codes; who rounds in another order or to other codes, as
error-compensated rounding does, goes from `fit` to `Codebook.scales`, its own codes, and `Codebook.pack`.
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

# What the compiled parts are told.
_FIT_FIELDS = (
    "weights",  # float32 [n_blocks, block_size]
    "n_blocks",
    "block_size",
    "run",
    "importance",  # float32 [period, block_size]: block i has that of i modulo period
    "period",
    "levels",  # float32 [n_levels], then n_levels - 1 values halfway between them
    "n_levels",
    "starts",
    "n_starts",
    "affine",
    "positive_minimum",
    "scale_low",
    "scale_high",
    "scale_starts",
    "n_scale_starts",  # 0: a run is a block, whose scale is d
    "d",  # float32 [n_blocks], as the next
    "dmin",
    "s",  # float32 [n_blocks, runs], as the next
    "m",
    "scratch",
)
FIT = np.dtype([(name, np.int64) for name in _FIT_FIELDS])
_NEAREST_FIELDS = ("weights", "n_runs", "run", "scale", "minimum", "levels", "n_levels", "out")
NEAREST = np.dtype([(name, np.int64) for name in _NEAREST_FIELDS])

_MOST_LANES = 16


def _kernels(table: str, *names: str) -> dict[str, CpuKernel]:
    return {name: CpuKernel(f"{__package__}.scale_search_kernels", table, name) for name in names}


FITS = _kernels("FITS", "uniform", "table", "affine", "powers")
NEARESTS = _kernels("NEARESTS", "uniform", "table")


@dataclass(frozen=True)
class Codebook:
    """The codebooks of a format. Blocks are structured arrays `[n]` of `dtype`."""

    form: BlockFormat
    dtype: np.dtype
    run: int  # weights that share a scale
    levels: np.ndarray  # float32, ascending; a code is an index into it
    search: ScaleSearch
    scales: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    """The scale and minimum of each run of blocks, float32 `[n, runs]`: exactly those of `dequantize`."""
    store_scales: Callable[[np.ndarray, Scales], None]
    store_codes: Callable[[np.ndarray, np.ndarray], None]

    @property
    def is_uniform(self) -> bool:
        """Whether the levels are consecutive whole numbers."""
        return bool((np.diff(self.levels) == 1).all())

    def blocks(self, scales: Scales) -> np.ndarray:
        """Blocks with these scales; their codes are undefined."""
        out = np.zeros(len(scales.d), self.dtype)
        self.store_scales(out, scales)
        return out

    def pack(self, blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """uint8 `[n, type_size]`: blocks with uint8 codes `[n, block_size]`."""
        out = blocks.copy()
        self.store_codes(out, codes)
        return out.view(np.uint8).reshape(len(blocks), self.form.type_size)


def fit(codebook: Codebook, weights: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """Blocks whose scales make Σ importance · (weight - stored)² small, for finite float32 `[n, block_size]`.

    `importance` is float32 `[block_size]` for all blocks, or `[k, block_size]`: block i has row i
    modulo k. None: all count the same. Only its proportions matter. Weights beyond what the format holds are
    cut. Other threads run meanwhile.
    """
    return codebook.blocks(_fit(codebook, weights, spread(importance, codebook.form.block_size)))


def nearest(codebook: Codebook, weights: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """uint8 codes `[n, block_size]` of the levels nearest to float32 weights, in the codebooks of `blocks`."""
    weights = np.ascontiguousarray(weights, np.float32)
    scale, minimum = (np.ascontiguousarray(part) for part in codebook.scales(blocks))
    out = np.empty(weights.shape, np.uint8)
    table = _table(codebook.levels)
    arguments = _record(
        NEAREST,
        weights=weights,
        n_runs=scale.size,
        run=codebook.run,
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
    """float32 `[n, block_size]` as uint8 `[n, type_size]`: scales of `fit`, and the nearest codes."""
    blocks = fit(codebook, weights, importance)
    return codebook.pack(blocks, nearest(codebook, weights, blocks))


def spread(importance: np.ndarray | None, block_size: int) -> np.ndarray:
    """Importance as float32 `[k, block_size]` with a mean of about 1.

    A trifle is added, so that columns that no activation reached are still rounded to something close.
    Raises ValueError if it is negative or not finite.
    """
    if importance is None:
        return np.ones((1, block_size), np.float32)
    exact = np.asarray(importance, np.float64).reshape(-1, block_size)
    if not np.isfinite(exact).all() or (exact < 0).any():
        raise ValueError("importance is negative or not finite")
    return (exact / (exact.mean() or 1.0) + 1e-6).astype(np.float32)


def _fit(codebook: Codebook, weights: np.ndarray, importance: np.ndarray) -> Scales:
    weights = np.ascontiguousarray(weights, np.float32)
    (n, size), how = weights.shape, codebook.search
    runs = size // codebook.run
    found = Scales(
        np.empty(n, np.float32),
        np.empty(n, np.float32),
        np.ones((n, runs), np.float32),
        np.ones((n, runs), np.float32),
    )
    scale_starts = np.zeros(0, np.float32) if how.scale_starts is None else how.scale_starts
    vectors = 2 * size + max(codebook.run, runs) + 8 * runs
    scratch = np.empty(vectors * _MOST_LANES, np.float32)
    table = _table(codebook.levels)
    arguments = _record(
        FIT,
        weights=weights,
        n_blocks=n,
        block_size=size,
        run=codebook.run,
        importance=importance,
        period=len(importance),
        levels=table,
        n_levels=len(codebook.levels),
        starts=how.starts,
        n_starts=len(how.starts),
        affine=how.affine,
        positive_minimum=how.positive_minimum,
        scale_low=how.scale_range[0],
        scale_high=how.scale_range[1],
        scale_starts=scale_starts,
        n_scale_starts=len(scale_starts),
        d=found.d,
        dmin=found.dmin,
        s=found.s,
        m=found.m,
        scratch=scratch,
    )
    kind = (
        "powers" if how.powers else "affine" if how.affine else "uniform" if codebook.is_uniform else "table"
    )
    FITS[kind].compiled.ctypes(arguments.ctypes.data, 0, 0)
    return found


def _record(dtype: np.dtype, **fields: Any) -> np.ndarray:
    """A record of addresses and numbers. It does not keep its arrays alive."""
    out = np.zeros(1, dtype)
    for name, value in fields.items():
        out[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
    return out


def _table(levels: np.ndarray) -> np.ndarray:
    """Levels, and behind them what lies halfway between."""
    return np.concatenate([levels, midpoints(levels)])
