"""Second moments of a matrix's inputs, made ready for error-compensated rounding, in their own memory.

The moments of wide inputs are what takes most memory (14336 columns: 0.8 GB), so they are shrunk, put in
order and factorised where they lie: H = L Lᵀ, with L below the diagonal of what was H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHRINKAGE = 0.3  # of what columns have in common
DAMPING = 0.01  # of the mean of the diagonal
_BLOCK = 256  # columns at a time


@dataclass(frozen=True)
class Hessian:
    """What is known of a matrix's inputs: H, their second moments, shrunk, and R, upper triangular, H = RᵀR.

    `order` int [width]: the columns, those rounded first last. `both` float32 [width, width], in that order:
    below the diagonal [j, i] is R_ij / R_ii, by which column j's error is made good by column i before it;
    above it is H. `diagonal` float32 [width] is H's. `importance` float32 [width]: R_ii², in the order of the
    matrix.
    """

    order: np.ndarray
    both: np.ndarray
    diagonal: np.ndarray
    importance: np.ndarray

    def ahead(self, here: slice) -> np.ndarray:
        """What columns `here` have to make good: float32 [width - here.start, columns], from the first of
        them on. What is on and above the diagonal of the first rows does not count."""
        return self.both[here.start :, here]

    def moments(self, here: slice) -> np.ndarray:
        """H of columns `here`: float32 [width, columns]."""
        square = np.triu(self.both[here, here], 1)
        square += square.T
        np.fill_diagonal(square, self.diagonal[here])
        return np.concatenate([self.both[: here.start, here], square, self.both[here, here.stop :].T])


def factor(moments: np.ndarray, shrinkage: float = SHRINKAGE, damping: float = DAMPING) -> Hessian:
    """The factor of float32 `[width, width]` second moments, whose memory becomes its `both`."""
    spread = np.diagonal(moments).copy()
    order = np.argsort(spread, kind="stable")
    _permute(moments, order)
    moments *= np.float32(1 - shrinkage)
    diagonal = spread[order] + np.float32(damping * (float(spread.mean()) or 1.0))
    np.fill_diagonal(moments, diagonal)
    own = cholesky(moments)  # of R's transpose
    importance = np.empty_like(own)
    importance[order] = own * own
    for start in range(0, len(own), _BLOCK):
        here = slice(start, start + _BLOCK)
        below = np.tril(moments[here, here], -1)
        moments[here, here] += below / own[here] - below
        moments[start + _BLOCK :, here] /= own[here]
    return Hessian(order, moments, diagonal, importance)


def cholesky(matrix: np.ndarray) -> np.ndarray:
    """Put L, L Lᵀ = matrix, below the diagonal of a symmetric positive definite float32 matrix, which keeps
    what is on and above it; L's diagonal, float32 [width].

    Raises numpy.linalg.LinAlgError if the matrix is not positive definite.
    """
    diagonal = np.empty(len(matrix), np.float32)
    for start in range(0, len(matrix), _BLOCK):
        here = slice(start, start + _BLOCK)
        left = matrix[here, :start]
        own = np.linalg.cholesky(matrix[here, here] - left @ left.T)
        diagonal[here] = np.diagonal(own)
        below = matrix[start + _BLOCK :, here]
        below -= matrix[start + _BLOCK :, :start] @ left.T
        below[:] = below @ np.linalg.inv(own).T
        matrix[here, here] += np.tril(own - matrix[here, here], -1)
    return diagonal


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
