"""Rotary embeddings and attention over the KV cache. `reference/attention.py` is the specification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class RoPE:
    """Rotate, in place, 2·len(inv_freq) dimensions of each head, from `start` on, by position·inv_freq.

    Pairs are (2i, 2i+1) if `interleaved`, else (i, i + len(inv_freq)), counted from `start`. cos and sin are
    multiplied by `attention_factor`. The angle is the float32 product of the position and `inv_freq`
    (float32).

    `inv_freq` is for sequences of up to `original_context` tokens (0: of any length). The rows of a longer
    sequence use `long_inv_freq(length)` instead, of the same size; see `Batch.sequence_lengths`.
    """

    x: Buffer
    heads: int
    inv_freq: np.ndarray
    interleaved: bool
    attention_factor: float = 1.0
    original_context: int = 0
    long_inv_freq: Callable[[int], np.ndarray] | None = None
    start: int = 0

    def frequencies(self, lengths: np.ndarray) -> np.ndarray:
        """float32 [n, pairs]: the frequencies of n rows whose sequences have these lengths, int [n]."""
        rows = np.repeat(self.inv_freq[None], len(lengths), axis=0)
        if self.long_inv_freq:
            for length in np.unique(lengths[lengths > self.original_context]):
                rows[lengths == length] = self.long_inv_freq(int(length))
        return rows


@dataclass(frozen=True, eq=False)
class ScaleQueries:
    """q = q · (1 + beta · ln(1 + position // length)), in place, in float32.

    The attention temperature of Llama 4 and Ministral 3: queries grow with every `length` positions.
    """

    q: Buffer
    beta: float
    length: int


@dataclass(frozen=True, eq=False)
class Attend:
    """Append k and v of the rows to cache layer `layer`, then attention of q over the cache.

    q is [rows, heads·head_dim], k [rows, kv_heads·head_dim], v [rows, kv_heads·value_dim] and out
    [rows, heads·value_dim]; query head h reads kv head h // (heads / kv_heads). If v is k, the first
    `value_dim` dimensions of the cached keys are the values, and the cache layer has no others (multi-head
    latent attention). Without `append` an earlier op of the step has appended the rows; k and v are not read.
    scores = scale · q·k, soft-capped by cap·tanh(s / cap) if `softcap`.
    With a `window` of w a query at position p attends to positions p-w+1 … p; 0 means all. If it is not
    `causal`, it attends to the whole sequence, whose rows are all in the step, or to p-w+1 … p+w-1.
    `sinks`, float32 [heads], are one more score a head in the softmax, whose weight goes to no value.
    """

    q: Buffer
    k: Buffer
    v: Buffer
    out: Buffer
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: np.ndarray | None = None
    append: bool = True
    causal: bool = True

    @property
    def value_dim(self) -> int:
        return self.out.width // self.heads
