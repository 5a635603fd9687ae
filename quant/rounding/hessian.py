"""The Hessian of GPTQ: damped, reordered and factorised in place.

The squared error of a rounded row w is (w - q)ᵀ H (w - q) with H = mean xxᵀ, the second moments of the
inputs. H of a matrix with many inputs takes more memory than anything else (14336 inputs: 0.8 GB), so all
steps work in its own memory: H = L Lᵀ, with L below the diagonal of what was H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHRINKAGE = 0.3  # part of the off-diagonal elements that is removed
DAMPING = 0.01  # of the mean of the diagonal, added to the diagonal
_BLOCK = 256  # columns at a time


@dataclass(frozen=True)
class Hessian:
    """A Hessian H, shrunk and damped, with its Cholesky factor R, upper triangular: H = RᵀR.

    `order` int [width] permutes the columns of the weights; GPTQ rounds the last first. `packed` float32
    [width, width] is in that order: [j, i] below the diagonal is R_ij / R_ii, the factor by which column i
    < j compensates the error of column j; above the diagonal it is H. `diagonal` float32 [width] is H's, in
    that order as well. `importance` float32 [width] is R_ii², in the order of the weights.
    """

    order: np.ndarray
    packed: np.ndarray
    diagonal: np.ndarray
    importance: np.ndarray

    def compensation(self, columns: slice) -> np.ndarray:
        """R_ij / R_ii of the columns i: float32 [width - columns.start, columns], from j = columns.start on.

        Elements on and above the diagonal are undefined.
        """
        return self.packed[columns.start :, columns]

    def columns(self, columns: slice) -> np.ndarray:
        """Columns of H: float32 [width, columns]."""
        square = np.triu(self.packed[columns, columns], 1)
        square += square.T
        np.fill_diagonal(square, self.diagonal[columns])
        above, below = self.packed[: columns.start, columns], self.packed[columns, columns.stop :].T
        return np.concatenate([above, square, below])


def prepare_hessian(moments: np.ndarray, shrinkage: float = SHRINKAGE, damping: float = DAMPING) -> Hessian:
    """The Hessian of second moments float32 `[width, width]`, whose memory becomes its `packed`.

    Raises numpy.linalg.LinAlgError if it is not positive definite.
    """
    raw_diagonal = np.diagonal(moments).copy()
    order = np.argsort(raw_diagonal, kind="stable")
    _permute(moments, order)
    moments *= np.float32(1 - shrinkage)
    diagonal = raw_diagonal[order] + np.float32(damping * (float(raw_diagonal.mean()) or 1.0))
    np.fill_diagonal(moments, diagonal)
    factor_diagonal = cholesky(moments)
    importance = np.empty_like(factor_diagonal)
    importance[order] = factor_diagonal * factor_diagonal
    for start in range(0, len(factor_diagonal), _BLOCK):
        here = slice(start, start + _BLOCK)
        below = np.tril(moments[here, here], -1)
        moments[here, here] += below / factor_diagonal[here] - below
        moments[start + _BLOCK :, here] /= factor_diagonal[here]
    return Hessian(order, moments, diagonal, importance)


def cholesky(matrix: np.ndarray) -> np.ndarray:
    """The Cholesky factor L, L Lᵀ = matrix, of a float32 matrix, written below its diagonal.

    The matrix keeps its elements on and above the diagonal; the result is L's diagonal, float32 [width].
    Raises numpy.linalg.LinAlgError if the matrix is not positive definite.
    """
    diagonal = np.empty(len(matrix), np.float32)
    for start in range(0, len(matrix), _BLOCK):
        here = slice(start, start + _BLOCK)
        left = matrix[here, :start]
        factor = np.linalg.cholesky(matrix[here, here] - left @ left.T)
        diagonal[here] = np.diagonal(factor)
        below = matrix[start + _BLOCK :, here]
        below -= matrix[start + _BLOCK :, :start] @ left.T
        below[:] = below @ np.linalg.inv(factor).T
        matrix[here, here] += np.tril(factor - matrix[here, here], -1)
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
        while order[to] != first:  # along a cycle of the permutation
            matrix[to] = matrix[order[to]]
            todo[to] = False
            to = order[to]
        matrix[to], todo[to] = row, False
