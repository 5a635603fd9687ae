"""The likeliest tokens of a row: what a machine gives instead of all logits where no more is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

MAX_TOP_K = 128  # tokens of a row that a machine gives at most
GROUPS = 1024  # groups whose maxima bound the k-th largest logit from below


@dataclass(frozen=True)
class TopK:
    """The largest logits of a row, best first, the lowest id first among equals.

    `ids`, int [k], and `logits`, float32 [k]. If a logit of the row is NaN, one is first, and what follows
    means nothing. -inf may be left out, but not the first.
    """

    ids: np.ndarray
    logits: np.ndarray


def top_k_of(logits: Iterable[np.ndarray], k: int) -> list[TopK]:
    """The `k` best of each row of float32 [rows, vocab], or all, if there are fewer."""
    return [_best(row, k) for row in logits]


def _best(row: np.ndarray, k: int) -> TopK:
    first = np.array([row.argmax()])  # the first NaN if there is one
    ids = first if k == 1 or not np.isfinite(row[first[0]]) else largest(row, k)
    return TopK(ids, row[ids])


def largest(logits: np.ndarray, k: int) -> np.ndarray:
    """Ids of the `k` largest finite logits, best first, the lowest id first among equals.

    The vocabulary is never sorted. It is cut into groups; the k-th largest of their maxima is a value
    that at least k logits reach and few others do, and only these are ordered.
    """
    n = len(logits)
    if k >= n:
        ids = np.arange(n)
    else:
        bound = logits
        if n >= 8 * GROUPS and 4 * k <= GROUPS:
            depth = n // GROUPS
            bound = logits[: depth * GROUPS].reshape(depth, GROUPS).max(axis=0)
        ids = np.flatnonzero(logits >= np.partition(bound, len(bound) - k)[len(bound) - k])
    values = logits[ids]
    order = np.argsort(-values, kind="stable")[:k]
    return ids[order[values[order] > -np.inf]]
