"""Log probabilities of a text's tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..engine.engine import Engine
from ..engine.errors import BadLogits


@dataclass(frozen=True)
class TextScore:
    """How likely a model finds a text: natural logarithms of probabilities.

    `log_probabilities`, float32 [len(ids)], is that of each token after the ones in front of it; NaN for the
    first one, of which the model says nothing. `total` is the sum of the others.
    """

    ids: tuple[int, ...]
    log_probabilities: np.ndarray

    @property
    def total(self) -> float:
        return float(self.log_probabilities[1:].sum(dtype=np.float64))

    @property
    def perplexity(self) -> float:
        """exp(-mean log probability); NaN for a text of less than two tokens."""
        n = len(self.ids) - 1
        return float(np.exp(-self.total / n)) if n > 0 else float("nan")


def score_ids(engine: Engine, ids: list[int]) -> TextScore:
    """The score of a text of token ids. Raises BadLogits, and what `Engine.logits` raises."""
    scores = np.full(len(ids), np.nan, np.float32)
    at = 1  # the token that the next row of logits is about
    for logits in engine.logits_in_parts(ids):
        rows = logits[: len(ids) - at].astype(np.float64)
        if len(rows):
            top = rows.max(axis=-1)
            sums = top + np.log(np.exp(rows - top[:, None]).sum(axis=-1))
            scores[at : at + len(rows)] = rows[np.arange(len(rows)), ids[at : at + len(rows)]] - sums
        at += len(rows)
    if not np.isfinite(scores[1:]).all():
        raise BadLogits("the model computed NaN or infinity; take another file of it, or kv_type='f32'")
    return TextScore(tuple(ids), scores)
