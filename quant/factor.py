"""Second moments of a matrix's inputs, made ready for error-compensated rounding, in their own memory.

The moments of wide inputs are what takes most memory (14336 columns: 0.8 GB), so they are shrunk, put in order
and factorised where they lie: H = L Lᵀ, with L below the diagonal of what was H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHRINKAGE = 0.3  # of what columns have in common
DAMPING = 0.01  # of the mean of the diagonal
_BLOCK = 256  # columns at a time


@dataclass(frozen=True)
class Factor:
    """What is known of a matrix's inputs.

    `order` int [width]: the columns, those rounded first last. `ahead` float32 [width, width]: in that order,
    [j, i] is R_ij / R_ii with H = RᵀR, by which column j's error is made good by column i before it; zero
    elsewhere. `importance` float32 [width]: R_ii², in the order of the matrix.
    """

    order: np.ndarray
    ahead: np.ndarray
    importance: np.ndarray


def factor(moments: np.ndarray, shrinkage: float = SHRINKAGE, damping: float = DAMPING) -> Factor:
    """The factor of float32 `[width, width]` second moments, whose memory becomes its `ahead`."""
    diagonal = np.diagonal(moments).copy()
    order = np.argsort(diagonal, kind="stable")
    _permute(moments, order)
    moments *= np.float32(1 - shrinkage)
    at = np.arange(len(order))
    moments[at, at] = diagonal[order] + np.float32(damping * (float(diagonal.mean()) or 1.0))
    cholesky(moments)  # R's transpose
    own = np.diagonal(moments).copy()
    importance = np.empty_like(own)
    importance[order] = own * own
    moments /= own
    moments[at, at] = 0
    return Factor(order, moments, importance)


def cholesky(matrix: np.ndarray) -> None:
    """Make a symmetric positive definite float32 matrix L, L Lᵀ = matrix, lower triangular, in place.

    Raises numpy.linalg.LinAlgError if it is not positive definite.
    """
    for start in range(0, len(matrix), _BLOCK):
        end = start + _BLOCK
        here = matrix[start:, start:end]
        if start:
            here -= matrix[start:, :start] @ matrix[start:end, :start].T
        own = np.linalg.cholesky(here[:_BLOCK])
        here[_BLOCK:] = here[_BLOCK:] @ np.linalg.inv(own).T
        here[:_BLOCK] = own
        matrix[start:end, end:] = 0


def _permute(matrix: np.ndarray, order: np.ndarray) -> None:
    """matrix[order][:, order], in place."""
    for start in range(0, len(matrix), _BLOCK):
        matrix[start : start + _BLOCK] = matrix[start : start + _BLOCK, order]
    todo = np.ones(len(order), bool)
    for first in range(len(order)):
        if not todo[first]:
            continue
        row, to = matrix[first].copy(), first
        while order[to] != first:  # along a cycle, each row to where the one before it has left
            matrix[to] = matrix[order[to]]
            todo[to] = False
            to = order[to]
        matrix[to], todo[to] = row, False
