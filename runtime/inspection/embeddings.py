"""The embedding table of a model: which tokens lie near a token, and a map of some in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import UnsupportedModel
from ..engine.sampling.top_k import largest
from ..ops import Embed, Program
from .data import Spelled

ROWS = 8192  # of the table that are decoded at a time


@dataclass(frozen=True)
class Neighbours:
    """For each of some tokens the `n` nearest others by cosine, the nearest first: int32 and float32
    [tokens, n]."""

    ids: np.ndarray
    cosines: np.ndarray


def embedding_table(program: Program) -> QTensor:
    """The table of a program that begins with one, (tokens, width). UnsupportedModel if it does not."""
    for op in program.ops:
        if isinstance(op, Embed) and not op.by_type:
            return op.table
    raise UnsupportedModel("this part of the model has no token embeddings")


def neighbours(table: QTensor, ids: Sequence[int], n: int, n_tokens: int | None = None) -> Neighbours:
    """The nearest of the first `n_tokens` tokens (default: all). A token without direction (all zeros) is
    near nothing. ValueError for ids that the table does not have."""
    n_rows = min(n_tokens or table.shape[0], table.shape[0])
    wanted = unit_rows(table, ids)
    n = max(0, min(n, n_rows - 1))
    found = np.empty((len(wanted), 0), np.int32)
    nearness = np.empty((len(wanted), 0), np.float32)
    for start in range(0, n_rows, ROWS):
        rows = unit(table.rows(np.arange(start, min(start + ROWS, n_rows))))
        cosines = wanted @ rows.T
        for i, id_ in enumerate(ids):
            if start <= id_ < start + len(rows):
                cosines[i, id_ - start] = -2.0  # the token itself: below all cosines
        part = np.broadcast_to(np.arange(start, start + len(rows), dtype=np.int32), cosines.shape)
        found = np.concatenate([found, part], 1)
        nearness = np.concatenate([nearness, cosines], 1)
        best = np.array([largest(row, n) for row in nearness]).reshape(len(wanted), -1)
        found = np.take_along_axis(found, best, 1)
        nearness = np.take_along_axis(nearness, best, 1)
    return Neighbours(found, nearness)


def plane(table: QTensor, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """float32 [ids, 2]: the directions of the tokens' embeddings along their two main axes (principal
    component analysis), and float32 [2], the share of the variance on each. The signs of the axes are
    such that the largest coordinate of each is positive."""
    rows = unit_rows(table, ids).astype(np.float64)
    rows -= rows.mean(axis=0)
    left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
    found, shares = np.zeros((len(rows), 2)), np.zeros(2)
    kept = min(2, len(sizes))
    found[:, :kept] = left[:, :kept] * sizes[:kept]
    if total := float((sizes**2).sum()):
        shares[:kept] = sizes[:kept] ** 2 / total
    signs = np.sign(found[np.abs(found).argmax(axis=0), [0, 1]])
    return (found * np.where(signs == 0, 1, signs)).astype(np.float32), shares.astype(np.float32)


def unit_rows(table: QTensor, ids: Sequence[int]) -> np.ndarray:
    """float32 [ids, width]: the embeddings of tokens, scaled to length 1."""
    index = np.asarray(ids, int)
    if not index.size or not 0 <= index.min() <= index.max() < table.shape[0]:
        raise ValueError(f"token ids are from 0 to {table.shape[0] - 1}, and at least one of them")
    return unit(table.rows(index))


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; rows of zeros stay so."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def embeddings_data(
    table: QTensor, ids: Sequence[int], n: int, shown: Spelled, n_tokens: int | None = None
) -> dict[str, Any]:
    """The `n` neighbours of each of the different `ids`, and a map of all of these tokens, as plain data.

    `points` are tokens with `x` and `y`, `shares` the part of the variance on each axis, and `near` has for
    each of `ids` the nearest tokens with their `cosine`.
    """
    wanted = list(dict.fromkeys(ids))
    near = neighbours(table, wanted, n, n_tokens)
    mapped = list(dict.fromkeys([*wanted, *near.ids.ravel().tolist()]))
    points, shares = plane(table, mapped)
    return {
        "shares": [round(float(share), 4) for share in shares],
        "points": [
            {**shown.token(id_), "x": round(float(x), 4), "y": round(float(y), 4), "asked": i < len(wanted)}
            for i, (id_, (x, y)) in enumerate(zip(mapped, points, strict=True))
        ],
        "near": [
            {
                **shown.token(id_),
                "tokens": [
                    {**shown.token(other), "cosine": round(float(cosine), 4)}
                    for other, cosine in zip(others.tolist(), cosines, strict=True)
                ],
            }
            for id_, others, cosines in zip(wanted, near.ids, near.cosines, strict=True)
        ],
    }
