"""GPTQ: rounding column by column, where later columns compensate the error of earlier ones.

For a matrix W with inputs x and the Hessian H = mean xxᵀ, codes are sought that make Σ (w - q)ᵀ H (w - q)
small over its rows; rounding to nearest only minimises the part of H's diagonal. With H = RᵀR, R upper
triangular, a row's loss is Σ_i (R_ii (w_i - q_i) + Σ_{j>i} R_ij (w_j - q_j))². So columns are rounded from
the last to the first, each to the level nearest to the target w_i + Σ_{j>i} R_ij / R_ii (w_j - q_j). What a
column adds to the loss is R_ii² times its squared distance from the target; hence scales are searched for
with importance R_ii². The columns with the largest second moments are rounded first, before there are
errors to compensate. After the last column, sweeps of coordinate descent round each column again, given the
codes of all others, to the level nearest to w_i + Σ_{j≠i} H_ij / H_ii (w_j - q_j).

A Hessian of a few thousand tokens overestimates the correlation of columns on other text; so its off-diagonal
part is shrunk (`hessian`).

Sources: Frantar et al. 2022, "GPTQ"; order and factorisation of Babai's nearest plane algorithm (Chen et al.
2025, "The geometry of LLM quantization"); coordinate descent after Behdin et al. 2023, "QuantEase"; shrinkage
after Ledoit and Wolf 2004.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..jit.kernel import CpuKernel
from .codebook import Codebook, fit_scales
from .hessian import Hessian
from .scale_search import midpoints

COLUMNS = 64  # that one kernel call rounds
ROWS = 256  # that a thread works on at a time
SWEEPS = 2  # of coordinate descent

_ARRAY_FIELDS = (
    "targets",  # float32 [rows, columns], as the next, but where stated
    "weights",
    "previous_errors",
    "errors",
    "compensation",  # float32 [columns, columns]
    "scale",
    "minimum",
    "levels",  # `Codebook.level_table`
)
_FIELDS = (*_ARRAY_FIELDS, "n_levels", "uniform", "codes", "rows", "columns")
COMPENSATE = np.dtype([(name, np.int64) for name in _FIELDS])
COMPENSATE_ROWS = CpuKernel(f"{__package__}.gptq_kernels", "compensate_rows")


@dataclass(frozen=True)
class ColumnBlock:
    """The input of `compensate`: contiguous float32 arrays [rows, columns] of neighbouring columns.

    `targets` are what the weights are rounded to, before compensation within the block; they are overwritten.
    `previous_errors` are the errors w - q that the targets account for already. `compensation` [j, i] float32
    [columns, columns] is the factor by which column i < j compensates the error of column j. `scale` and
    `minimum` are those of each weight.
    """

    targets: np.ndarray
    weights: np.ndarray
    previous_errors: np.ndarray
    compensation: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray


def encode_compensated(
    weights: np.ndarray, codebook: Codebook, hessian: Hessian, threads: int | None = None
) -> np.ndarray:
    """float32 `[rows, width]`, all finite, as uint8 `[rows, row_bytes]` of the codebook's format.

    Rows are independent of each other, and the result of the number of threads.
    """
    size = codebook.form.block_size
    importance = hessian.importance.reshape(-1, size)
    out = np.empty((len(weights), codebook.form.row_bytes(weights.shape[1])), np.uint8)

    def encode_rows(first: int) -> None:
        rows = np.ascontiguousarray(weights[first : first + ROWS], np.float32)
        blocks = fit_scales(codebook, rows.reshape(-1, size), importance)
        scale, minimum = (np.repeat(part, codebook.sub_block, axis=1) for part in codebook.scales(blocks))
        codes = _codes(rows, scale.reshape(rows.shape), minimum.reshape(rows.shape), codebook, hessian)
        out[first : first + ROWS] = codebook.pack(blocks, codes.reshape(-1, size)).reshape(len(rows), -1)

    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        for _ in pool.map(encode_rows, range(0, len(weights), ROWS)):
            pass
    return out


# (errors [rows, width], columns, Hessian) → what is added to the columns' weights to get their targets, and
# `ColumnBlock.compensation`
Compensation = Callable[[np.ndarray, slice, Hessian], tuple[np.ndarray, np.ndarray]]


def _codes(
    weights: np.ndarray, scale: np.ndarray, minimum: np.ndarray, codebook: Codebook, hessian: Hessian
) -> np.ndarray:
    """uint8 codes `[rows, width]`: one pass of GPTQ, then SWEEPS of coordinate descent."""
    n, width = weights.shape
    order = hessian.order
    weights, scale, minimum = (np.ascontiguousarray(a[:, order]) for a in (weights, scale, minimum))
    errors = np.zeros((n, width), np.float32)
    codes = np.empty((n, width), np.uint8)
    passes: list[Compensation] = [_of_rounded_columns, *[_of_all_columns] * SWEEPS]
    for compensation_of in passes:
        for end in range(width, 0, -COLUMNS):
            here = slice(max(0, end - COLUMNS), end)
            w, s, m, before = (np.ascontiguousarray(a[:, here]) for a in (weights, scale, minimum, errors))
            change, compensation = compensation_of(errors, here, hessian)
            block = ColumnBlock(w + change, w, before, compensation, s, m)
            errors[:, here], codes[:, here] = compensate(block, codebook)
    out = np.empty_like(codes)
    out[:, order] = codes
    return out


def _of_rounded_columns(errors: np.ndarray, here: slice, hessian: Hessian) -> tuple[np.ndarray, np.ndarray]:
    """The `Compensation` of GPTQ: by columns `here`, of the errors of the columns behind them."""
    compensation = hessian.compensation(here)
    n = here.stop - here.start
    return errors[:, here.stop :] @ compensation[n:], np.ascontiguousarray(compensation[:n])


def _of_all_columns(errors: np.ndarray, here: slice, hessian: Hessian) -> tuple[np.ndarray, np.ndarray]:
    """The `Compensation` of coordinate descent: by columns `here`, of the errors of all other columns."""
    ratios = hessian.columns(here)
    ratios /= hessian.diagonal[here]
    return errors @ ratios - errors[:, here], np.ascontiguousarray(ratios[here])


def compensate(block: ColumnBlock, codebook: Codebook) -> tuple[np.ndarray, np.ndarray]:
    """Round columns from the last to the first: errors w - q (float32) and codes (uint8) `[rows, columns]`.

    Each column is rounded to the level nearest to its target. Then the targets of the columns before it
    grow by the change of its error times `compensation`.
    """
    errors, codes = np.empty_like(block.weights), np.empty(block.weights.shape, np.uint8)
    levels = codebook.level_table
    record = np.zeros(1, COMPENSATE)
    arrays = (
        *(block.targets, block.weights, block.previous_errors, errors),
        *(block.compensation, block.scale, block.minimum, levels),
    )
    for name, array in zip(_ARRAY_FIELDS, arrays, strict=True):
        record[name] = array.ctypes.data
    record["n_levels"], record["uniform"] = len(codebook.levels), codebook.is_uniform
    record["codes"] = codes.ctypes.data
    record["rows"], record["columns"] = block.weights.shape
    COMPENSATE_ROWS.compiled.ctypes(record.ctypes.data, 0, 0)
    return errors, codes


def compensate_reference(block: ColumnBlock, codebook: Codebook) -> tuple[np.ndarray, np.ndarray]:
    """The NumPy twin of `compensate`, equal in every bit."""
    weights, targets = block.weights, block.targets
    errors, codes = np.empty_like(weights), np.empty(weights.shape, np.uint8)
    top = np.float32(len(codebook.levels) - 1)
    for j in range(weights.shape[1] - 1, -1, -1):
        s, m = block.scale[:, j], block.minimum[:, j]
        x = (targets[:, j] + m) / np.where(s == 0, np.float32(1), s)
        if codebook.is_uniform:
            code = np.clip(x - codebook.levels[0] + np.float32(0.5), np.float32(0), top).astype(np.uint8)
        else:
            code = np.searchsorted(midpoints(codebook.levels), x).astype(np.uint8)
        codes[:, j] = code
        errors[:, j] = weights[:, j] - (s * codebook.levels[code] - m)
        change = errors[:, j] - block.previous_errors[:, j]
        targets[:, :j] += change[:, None] * block.compensation[j, :j]
    return errors, codes
