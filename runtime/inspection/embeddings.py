"""Token embeddings: which are near to each other, and where they lie on a plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...quant.block import QTensor
from ..ops import Embed, Program

CHUNK = 8192  # rows of the table that are dequantised at a time


def token_embeddings(program: Program) -> QTensor:
    """The table of a program's token embeddings, (tokens, hidden)."""
    return next(op.table for op in program.ops if isinstance(op, Embed) and not op.by_type)


def nearest_tokens(
    table: QTensor, ids: Sequence[int], n: int, n_tokens: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The `n` tokens whose embeddings have the largest cosine with that of each of `ids`, which are not among
    them: int32 and float32 [len(ids), n], the nearest first. Only ids below `n_tokens` count. An embedding of
    zeros is near to nothing."""
    n_tokens = min(n_tokens or table.shape[0], table.shape[0])
    wanted = _directions(table.rows(np.asarray(ids, int)))
    cosines = np.empty((len(ids), n_tokens), np.float32)
    for start in range(0, n_tokens, CHUNK):
        rows = _directions(table.rows(np.arange(start, min(start + CHUNK, n_tokens))))
        cosines[:, start : start + len(rows)] = wanted @ rows.T
    for i, id_ in enumerate(ids):
        if id_ < n_tokens:
            cosines[i, id_] = -np.inf
    n = max(0, min(n, n_tokens - 1))
    best = np.argsort(-cosines, axis=1, kind="stable")[:, :n].astype(np.int32)
    return best, np.take_along_axis(cosines, best, axis=1)


def plane(table: QTensor, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Where the embeddings of `ids` lie on the plane on which they differ the most: float32 [len(ids), 2],
    and the share of their variance along each of the two axes, float32 [2] (principal components)."""
    rows = _directions(table.rows(np.asarray(ids, int)))
    centred = rows - rows.mean(axis=0)
    u, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(rows), 2), np.float32)
    shares = np.zeros(2, np.float32)
    k = min(2, len(sizes))
    points[:, :k] = (u * sizes)[:, :k]
    total = float((sizes**2).sum())
    if total > 0:
        shares[:k] = sizes[:k] ** 2 / total
    return points, shares


def _directions(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
