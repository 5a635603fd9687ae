"""Pooling: the hidden states of a text's tokens become one vector.

The modes are those of sentence-transformers (Reimers and Gurevych 2019, "Sentence-BERT").
"""

from __future__ import annotations

import numpy as np

from ..engine.reading import Wanted

# In the order in which sentence-transformers joins the vectors of several modes
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_OF_ALL = frozenset({"max", "mean", "mean_sqrt_len_tokens", "weightedmean"})


def wanted_by(modes: tuple[str, ...]) -> Wanted:
    """The tokens whose hidden states the modes need."""
    if modes == ("cls",):
        return "first"
    return "last" if modes == ("lasttoken",) else "all"


class Pool:
    """Pools the hidden states of one text, which come in parts, in the order of its tokens.

    The first `skip` tokens, those of an instruction, do not count for modes over all tokens.
    """

    def __init__(self, modes: tuple[str, ...], skip: int = 0) -> None:
        self._modes = modes
        self._skip = skip
        self._n = 0  # tokens that count
        self._weight = 0.0
        self._first = self._last = self._highest = self._sum = self._weighted = np.zeros(0, np.float32)

    def add(self, position: int, rows: np.ndarray) -> None:
        """Add the hidden states of consecutive tokens, float32 [rows, hidden], the first at `position`."""
        if position == 0:
            self._first = rows[0].copy()
        self._last = rows[-1].copy()
        if not _OF_ALL.intersection(self._modes):
            return
        counted = rows[max(0, self._skip - position) :]
        if not len(counted):
            return
        begin = position + len(rows) - len(counted)
        weights = np.arange(begin + 1, position + len(rows) + 1, dtype=np.float32)
        total, weighted, highest = counted.sum(0), weights @ counted, counted.max(0)
        if self._n:
            total, weighted = self._sum + total, self._weighted + weighted
            highest = np.maximum(self._highest, highest)
        self._sum, self._weighted, self._highest = total, weighted, highest
        self._n += len(counted)
        self._weight += float(weights.sum())

    def vector(self, hidden: int) -> np.ndarray:
        """The vector, float32 [hidden · modes]; zeros for a text without tokens."""
        parts = [self._pooled(mode) for mode in MODES if mode in self._modes]
        return np.concatenate([part if part.size else np.zeros(hidden, np.float32) for part in parts])

    def _pooled(self, mode: str) -> np.ndarray:
        match mode:
            case "cls":
                return self._first
            case "lasttoken":
                return self._last
            case "max":
                return self._highest
            case "mean":
                return self._sum / np.float32(max(self._n, 1))
            case "mean_sqrt_len_tokens":
                return self._sum / np.float32(max(self._n, 1) ** 0.5)
            case _:  # weightedmean: by position, the last token counts most
                return self._weighted / np.float32(max(self._weight, 1.0))
