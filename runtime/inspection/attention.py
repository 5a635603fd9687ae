"""Attention weights, computed in NumPy from queries and keys, so that the fast kernels need not keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ops import Attend


@dataclass(frozen=True)
class AttentionChoice:
    """Which attention weights an inspection keeps: of which layers, heads and rows (positions of queries).

    None is all of them; negative numbers count from the end.
    """

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class AttentionWeights:
    """How much each row looked at each position in one layer.

    `weights` is float32 [heads, rows, positions]. A row's sum is 1, or what a learned sink leaves of it.
    `heads` and `rows` are the numbers of what was chosen. `kv_heads` keys and values are shared by the
    model's `n_heads` heads in groups. A `window` of w positions ends at the row's own; 0: there is none.
    """

    layer: int
    weights: np.ndarray
    heads: tuple[int, ...]
    rows: tuple[int, ...]
    n_heads: int
    kv_heads: int
    window: int


def chosen(numbers: Sequence[int] | None, n: int, what: str) -> tuple[int, ...]:
    """The chosen ones of `n` things, counted from 0. Raises ValueError for one that there is not."""
    if numbers is None:
        return tuple(range(n))
    for number in numbers:
        if not -n <= number < n:
            raise ValueError(f"there are {n} {what}, numbered from 0, and no {number}")
    return tuple(number % n for number in numbers)


def attention_weights(
    op: Attend, queries: np.ndarray, keys: np.ndarray, rows: Sequence[int], heads: Sequence[int]
) -> np.ndarray:
    """float32 [heads, rows, positions]: the softmax that `op` makes of `queries`, float32 [rows, heads of the
    model · head_dim], at the positions `rows`, and `keys`, float32 [positions, kv_heads · head_dim]."""
    q = queries.reshape(len(queries), op.heads, op.head_dim)
    k = keys.reshape(len(keys), op.kv_heads, op.head_dim)
    ahead = np.arange(len(keys)) - np.asarray(rows, int)[:, None]  # [rows, positions]
    masked = ahead > 0 if op.causal else np.zeros_like(ahead, bool)
    if op.window:
        masked |= np.abs(ahead) >= op.window
    out = np.empty((len(heads), len(rows), len(keys)), np.float32)
    for head, weights in zip(heads, out, strict=True):  # in place: memory for copies is slow to get
        np.matmul(q[:, head], k[:, head // (op.heads // op.kv_heads)].T, out=weights)
        weights *= np.float32(op.scale)
        if op.softcap:
            weights /= np.float32(op.softcap)
            np.tanh(weights, out=weights)
            weights *= np.float32(op.softcap)
        np.copyto(weights, -np.inf, where=masked)
        highest = weights.max(axis=-1, keepdims=True)
        if op.sinks is not None:
            highest = np.maximum(highest, op.sinks[head])
        weights -= highest
        np.exp(weights, out=weights)
        total = weights.sum(axis=-1, keepdims=True)
        if op.sinks is not None:
            total += np.exp(op.sinks[head] - highest)
        weights /= total
    return out
