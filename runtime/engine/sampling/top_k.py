"""Top-k: the largest logits of a row, which machines return instead of all logits where they suffice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

MAX_TOP_K = 128  # the largest k that machines support
GROUPS = 1024  # groups whose maxima bound the k-th largest logit from below


@dataclass(frozen=True)
class TopK:
    """The k largest logits of a row in descending order, the lowest id first among equals.

    `ids` is int [k], `logits` float32 [k]. If the row has a NaN, the first logit is NaN, and the others are
    undefined. Logits of -inf may be missing, but there is at least one logit.
    """

    ids: np.ndarray
    logits: np.ndarray


def top_k_of(logits: Iterable[np.ndarray], k: int) -> list[TopK]:
    """The top k of each row of float32 [rows, vocab], or all logits if there are fewer."""
    return [_top_k_of_row(row, k) for row in logits]


def _top_k_of_row(row: np.ndarray, k: int) -> TopK:
    ids = largest_if_finite(row, k) if k > 1 else None
    if ids is None:
        first = int(row.argmax())  # the first NaN if there is one
        return TopK(np.array((first,)), row[first : first + 1].copy())
    return TopK(ids, row[ids])


def largest(logits: np.ndarray, k: int) -> np.ndarray:
    """Ids of the `k` largest finite logits in descending order, the lowest id first among equals; there is no
    NaN, and no +inf."""
    return _largest(logits, k)[0]


def largest_if_finite(logits: np.ndarray, k: int) -> np.ndarray | None:
    """`largest`; None if the largest logit is not finite, or if there is a NaN."""
    ids, peak = _largest(logits, k)
    return ids if math.isfinite(peak) else None


def _largest(logits: np.ndarray, k: int) -> tuple[np.ndarray, float]:
    """The ids of `largest`, and the largest logit, NaN if there is one; then the ids are undefined.

    The vocabulary is not sorted. It is cut into groups; at least k logits, and hardly more, reach the k-th
    largest of the groups' maxima, and only those logits are sorted.
    """
    n = len(logits)
    if k >= n:
        ids, peak = np.arange(n), float(logits.max())
    else:
        bound, rest = logits, logits[:0]
        if n >= 8 * GROUPS and 4 * k <= GROUPS:
            depth = n // GROUPS
            bound = logits[: depth * GROUPS].reshape(depth, GROUPS).max(axis=0)
            rest = logits[depth * GROUPS :]
        peak = float(np.maximum(bound.max(), rest.max(initial=-np.inf)))
        least = np.partition(bound, len(bound) - k)[len(bound) - k]
        ids = np.flatnonzero(logits >= least if least > -np.inf else logits > least)
    values = logits[ids]
    order = np.argsort(-values, kind="stable")[:k]
    return ids[order[values[order] > -np.inf]], peak
