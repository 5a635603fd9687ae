"""Error-compensated rounding: what one column's rounding breaks, the columns behind it make good again.

For a matrix W and the second moments H = mean xxᵀ of what it multiplies, codes are sought that make Σ (w -
q)ᵀ H (w - q) small over its rows, where rounding to nearest only sees H's diagonal. With H = RᵀR, R upper
triangular, a row's loss is Σ_i (R_ii (w_i - q_i) + Σ_{j>i} R_ij (w_j - q_j))². Columns are therefore
rounded from the last to the first, each to what is nearest to w_i + Σ_{j>i} R_ij / R_ii (w_j - q_j), and
its own part of the loss is R_ii² times the square of what is left: that is the importance by which scales
are searched for. The columns that matter most are rounded first, while nothing has to be made good. When all
are, each is looked at again: with the others as they have become, it should have been rounded to what is
nearest to w_i + Σ_{j≠i} H_ij / H_ii (w_j - q_j).

Second moments of few tokens promise more than other text keeps: what columns have to do with each other is
overestimated. So H's off-diagonal part is shrunk.

Sources: Frantar et al. 2022, "GPTQ"; in the order and factorisation of Babai's nearest plane algorithm
(Chen et al. 2025, "The geometry of LLM quantization"); the later looks after Behdin et al. 2023, "QuantEase";
shrinkage after Ledoit and Wolf 2004.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from ..jit.kernel import CpuKernel
from .codebook import Codebook, fit
from .hessian import Hessian

COLUMNS = 64  # rounded at a time
ROWS = 256  # of a thread at a time
SWEEPS = 2  # over the columns, once all are rounded

_FIELDS = (
    "targets",
    "weights",
    "before",
    "errors",
    "ahead",
    "scale",
    "minimum",
    "levels",
    "n_levels",
    "uniform",
    "codes",
)
COMPENSATE = np.dtype([(name, np.int64) for name in (*_FIELDS, "rows", "columns")])
COMPENSATE_ROWS = CpuKernel(f"{__package__}.gptq_kernels", "compensate_rows")


def encode_compensated(
    weights: np.ndarray, codebook: Codebook, known: Hessian, threads: int | None = None
) -> np.ndarray:
    """float32 `[rows, width]`, all finite, as uint8 `[rows, row_bytes]` of the codebook's format.

    Rows do not depend on each other, nor the result on the number of threads.
    """
    size = codebook.form.block_size
    importance = known.importance.reshape(-1, size)
    out = np.empty((len(weights), codebook.form.row_bytes(weights.shape[1])), np.uint8)

    def part(first: int) -> None:
        rows = np.ascontiguousarray(weights[first : first + ROWS], np.float32)
        blocks = fit(codebook, rows.reshape(-1, size), importance)
        scale, minimum = (np.repeat(each, codebook.run, axis=1) for each in codebook.scales(blocks))
        codes = _codes(rows, scale.reshape(rows.shape), minimum.reshape(rows.shape), codebook, known)
        out[first : first + ROWS] = codebook.pack(blocks, codes.reshape(-1, size)).reshape(len(rows), -1)

    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        for _ in pool.map(part, range(0, len(weights), ROWS)):
            pass
    return out


def _codes(
    weights: np.ndarray, scale: np.ndarray, minimum: np.ndarray, codebook: Codebook, known: Hessian
) -> np.ndarray:
    """uint8 `[rows, width]`: each column with those that are still to come, then with all."""
    n, width = weights.shape
    weights, scale, minimum = (np.ascontiguousarray(a[:, known.order]) for a in (weights, scale, minimum))
    errors = np.zeros((n, width), np.float32)
    codes = np.empty((n, width), np.uint8)
    for sweep in (_unmade_good, *[_unmade_better] * SWEEPS):
        for end in range(width, 0, -COLUMNS):
            here = slice(max(0, end - COLUMNS), end)
            w, s, m, before = (np.ascontiguousarray(a[:, here]) for a in (weights, scale, minimum, errors))
            wanted, ahead = sweep(errors, here, known)
            errors[:, here], codes[:, here] = compensate(w + wanted, w, before, s, m, ahead, codebook)
    out = np.empty_like(codes)
    out[:, known.order] = codes
    return out


def _unmade_good(errors: np.ndarray, here: slice, known: Hessian) -> tuple[np.ndarray, np.ndarray]:
    """By how much columns `here` are to make good what those behind lost, and `ahead` of `compensate`."""
    ahead = known.ahead(here)
    own = here.stop - here.start
    return errors[:, here.stop :] @ ahead[own:], np.ascontiguousarray(ahead[:own])


def _unmade_better(errors: np.ndarray, here: slice, known: Hessian) -> tuple[np.ndarray, np.ndarray]:
    """The same where all columns have been rounded: to what is best while the others stay as they are."""
    moments = known.moments(here)
    moments /= known.diagonal[here]
    return errors @ moments - errors[:, here], np.ascontiguousarray(moments[here])


def compensate(
    targets: np.ndarray,
    weights: np.ndarray,
    before: np.ndarray,
    scale: np.ndarray,
    minimum: np.ndarray,
    ahead: np.ndarray,
    codebook: Codebook,
) -> tuple[np.ndarray, np.ndarray]:
    """Errors (float32) and codes (uint8) `[rows, columns]` of a few columns, from the last to the first.

    Each is rounded to what is nearest to its target; by how much its error is another than `before`, times
    `ahead` [j, i], column j raises the target of each column i before it. All arguments are contiguous;
    `targets` is changed.
    """
    errors, codes = np.empty_like(weights), np.empty(weights.shape, np.uint8)
    levels = np.concatenate([codebook.levels, halfway(codebook.levels)])
    record = np.zeros(1, COMPENSATE)
    arrays = (targets, weights, before, errors, ahead, scale, minimum, levels)
    for name, array in zip(_FIELDS[:8], arrays, strict=True):
        record[name] = array.ctypes.data
    record["n_levels"], record["uniform"] = len(codebook.levels), codebook.is_uniform
    record["codes"] = codes.ctypes.data
    record["rows"], record["columns"] = weights.shape
    COMPENSATE_ROWS.compiled.ctypes(record.ctypes.data, 0, 0)
    return errors, codes


def compensate_reference(
    targets: np.ndarray,
    weights: np.ndarray,
    before: np.ndarray,
    scale: np.ndarray,
    minimum: np.ndarray,
    ahead: np.ndarray,
    codebook: Codebook,
) -> tuple[np.ndarray, np.ndarray]:
    """The twin of `compensate`: the same numbers."""
    errors, codes = np.empty_like(weights), np.empty(weights.shape, np.uint8)
    top = np.float32(len(codebook.levels) - 1)
    for j in range(weights.shape[1] - 1, -1, -1):
        s = scale[:, j]
        x = (targets[:, j] + minimum[:, j]) / np.where(s == 0, np.float32(1), s)
        if codebook.is_uniform:
            code = np.clip(x - codebook.levels[0] + np.float32(0.5), np.float32(0), top).astype(np.uint8)
        else:
            code = np.searchsorted(halfway(codebook.levels), x).astype(np.uint8)
        codes[:, j] = code
        errors[:, j] = weights[:, j] - (s * codebook.levels[code] - minimum[:, j])
        targets[:, :j] += (errors[:, j] - before[:, j])[:, None] * ahead[j, :j]
    return errors, codes


def halfway(levels: np.ndarray) -> np.ndarray:
    """What lies between the levels of a codebook."""
    return np.array([(a + b) / 2 for a, b in pairwise(levels.tolist())], np.float32)
