"""Distributions over the vocabulary: the likeliest tokens of a row of logits, its entropy, a token's rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..engine.sampling.top_k import largest

LOG2_E = float(np.log2(np.e))


@dataclass(frozen=True)
class Distributions:
    """What a model expects next, at each of some positions; the leading dimensions `…` are [positions], or
    [layers, positions] for a lens.

    - `ids`: int32 […, n], the likeliest tokens in descending order.
    - `probabilities`: float32 […, n], those of `ids`.
    - `entropy`: float32 […], in bits.
    - `next_probability`: float32 […], that of the token which does follow; NaN behind the last one.
    - `next_rank`: int32 […], how many tokens are likelier than that one; -1 behind the last one.
    """

    ids: np.ndarray
    probabilities: np.ndarray
    entropy: np.ndarray
    next_probability: np.ndarray
    next_rank: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, ...], n: int) -> Distributions:
        """Room for distributions of this shape, with `n` tokens each."""
        return cls(
            np.zeros((*shape, n), np.int32),
            np.zeros((*shape, n), np.float32),
            np.zeros(shape, np.float32),
            np.full(shape, np.nan, np.float32),
            np.full(shape, -1, np.int32),
        )

    def __getitem__(self, index: int) -> Distributions:
        """Those of one layer, or of one position."""
        return Distributions(
            self.ids[index],
            self.probabilities[index],
            self.entropy[index],
            self.next_probability[index],
            self.next_rank[index],
        )

    def rows(self, start: int) -> Distributions:
        """Those of positions from `start` on."""
        return Distributions(
            self.ids[start:],
            self.probabilities[start:],
            self.entropy[start:],
            self.next_probability[start:],
            self.next_rank[start:],
        )

    def fill(self, start: int, logits: np.ndarray, following: np.ndarray) -> None:
        """Describe the rows of `logits`, float32 [rows, vocab], from index `start` on; `following` are the
        tokens that follow them, int [rows], or fewer where nothing follows the last ones.

        A row with NaN or infinite logits keeps what `empty` gave it, with an entropy of NaN.
        """
        n = self.ids.shape[-1]
        shifted, powers = np.empty((2, logits.shape[1]), np.float32)  # made once: memory is slow to get
        for i, row in enumerate(logits, start):
            best = largest(row, n)
            peak = row[best[0]] if len(best) else np.float32(np.nan)
            if not np.isfinite(peak):
                self.entropy[i] = np.nan
                continue
            np.subtract(row, peak, out=shifted)
            np.maximum(shifted, np.float32(-1e4), out=shifted)  # so that 0 · log 0 is 0
            np.exp(shifted, out=powers)
            total = float(powers.sum())
            self.ids[i, : len(best)] = best
            self.probabilities[i, : len(best)] = powers[best] / total
            self.entropy[i] = max(0.0, LOG2_E * (np.log(total) - float(powers @ shifted) / total))
            if i - start < len(following) and following[i - start] < len(row):
                token = following[i - start]
                self.next_probability[i] = powers[token] / total
                self.next_rank[i] = np.count_nonzero(row > row[token])
