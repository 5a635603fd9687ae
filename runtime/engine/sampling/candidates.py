"""Candidates: the tokens that may still be drawn, between two steps of a sampler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Candidates(NamedTuple):
    """Tokens and their logits, of which a step keeps some, or changes the logits.

    - `ids`: int [n]; None: all ids of the vocabulary, in order.
    - `values`: float32 or float64 [n], the logits minus `offset`. Some may be -inf, but not all.
    - `top`: the largest of `values`.
    - `ordered`: whether the most likely come first, and of equals the lowest id. If not, ids ascend.
    """

    ids: np.ndarray | None
    values: np.ndarray
    top: float
    offset: float
    ordered: bool

    def gaps(self) -> np.ndarray:
        """The logits minus the largest one."""
        return self.values if self.top == 0.0 else self.values - self.top

    def at(self, kept: np.ndarray) -> Candidates:
        """Those at the ascending places `kept`, or where `kept` is true."""
        values = self.values[kept]
        ids = np.arange(len(self.values)) if self.ids is None else self.ids
        top = float(values[0] if self.ordered else values.max())
        return Candidates(ids[kept], values, top, self.offset, self.ordered)

    def possible(self) -> Candidates:
        """Those with a probability above 0."""
        if (self.values[-1] if self.ordered else self.values.min()) > -np.inf:
            return self
        return self.at(self.values > -np.inf)

    def best(self) -> int:
        """The most likely id, the lowest of equals."""
        place = 0 if self.ordered else int(self.values.argmax())
        return place if self.ids is None else int(self.ids[place])
