"""Vectors of texts that are token ids: hidden states, pooled, and what the settings do to pooled vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.engine import Engine
from ..engine.errors import BadLogits
from .pooling import Pool, wanted_by
from .settings import EmbeddingSettings

BATCH_TOKENS = 1 << 15  # of the texts that are sorted by length and read together


def embed(
    engine: Engine,
    texts: Sequence[Sequence[int]],
    settings: EmbeddingSettings,
    hidden: int,
    skips: Sequence[int] | None = None,
    types: Sequence[Sequence[int]] | None = None,
) -> np.ndarray:
    """float32 [texts, width]: the vectors of texts of token ids, whose hidden states are [tokens, hidden].

    `skips` are the numbers of tokens at the beginnings of texts that pooling leaves out, `types` the token
    types of each text. Raises ContextExceeded, and BadLogits for hidden states that are not finite.
    """
    pools = [Pool(settings.pooling, skips[i] if skips else 0) for i in range(len(texts))]
    # Texts of equal lengths fill steps evenly.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)

    def take(index: int, position: int, rows: np.ndarray) -> None:
        pools[order[index]].add(position, rows)

    sorted_types = [types[i] for i in order] if types else None
    engine.read([texts[i] for i in order], wanted_by(settings.pooling), take, sorted_types)
    width = settings.width(hidden)
    if not texts:
        return np.empty((0, width), np.float32)
    vectors = np.stack([pool.vector(hidden) for pool in pools])
    for stage in settings.stages:
        vectors = stage(vectors)
    if not np.isfinite(vectors).all():
        raise BadLogits("the model computed NaN or infinity; take another file of it, or kv_type='f32'")
    return np.ascontiguousarray(vectors, np.float32)
