"""A paged cache in codes, and other arguments that all kernels of attention take."""

from __future__ import annotations

import numpy as np

from kukri.runtime.cuda.abi.arguments import Region
from kukri.runtime.cuda.kernels.attention.cache import PagedCache
from kukri.runtime.cuda.kernels.attention.prepare_qk import (
    QKPreparation,
)
from kukri.runtime.cuda.kernels.attention.scores import ScoreArguments

LOG2_E = float(np.log2(np.e))


def quantised(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A cache of halves [pages, heads, tokens, dims] in codes, and what these stand for."""
    if bits == 16:
        return values, values
    groups = values.astype(np.float32).reshape(*values.shape[:-1], -1, 32)
    scales = (np.abs(groups).max(-1) / (127 if bits == 8 else 7)).astype(np.float16)
    codes = np.rint(groups / scales[..., None].astype(np.float32)).astype(np.int8)
    stands = (codes * scales[..., None].astype(np.float32)).reshape(values.shape)
    flat = codes.reshape(*values.shape[:3], -1)
    if bits == 4:
        eight = flat.reshape(*flat.shape[:3], -1, 2, 4)
        flat = (eight[..., 0, :] & 15 | eight[..., 1, :] << 4).reshape(*flat.shape[:3], -1)
    pages, heads = values.shape[:2]
    parts = [part.reshape(pages, heads, -1).view(np.uint8) for part in (flat, scales)]
    return np.ascontiguousarray(np.concatenate(parts, -1)), stands


NO_PREPARATION = QKPreparation(q_norm=0, k_norm=0, eps=1.0, pairs=0, angles=0)


def matrix(array: np.ndarray) -> Region:
    """An array of rows as kernels take it."""
    return Region(array, array.strides[0])


def paged_cache(keys, values, table, sequences, positions) -> PagedCache:
    return PagedCache(
        keys=keys, values=values, block_tables=matrix(table), sequences=sequences, positions=positions
    )


def score_arguments(softcap, window, sink, scale=0.3) -> ScoreArguments:
    return ScoreArguments(
        scale=scale / softcap if softcap else scale * LOG2_E,
        softcap=softcap * LOG2_E,
        window=window,
        sinks=sink * np.float32(LOG2_E),
    )
