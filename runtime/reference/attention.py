"""Rotary embeddings and attention over the paged KV cache in NumPy float32."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..engine.cache import Batch, PageTable
from .activations import Buffers


def rope(op: ops.RoPE, buffers: Buffers, batch: Batch) -> None:
    x = buffers[op.x.name]
    half = len(op.inv_freq)
    heads = x.reshape(len(x), op.heads, -1).copy()
    rotated = heads[:, :, op.start : op.start + 2 * half]
    first, second = (
        (slice(0, None, 2), slice(1, None, 2)) if op.interleaved else (slice(half), slice(half, None))
    )
    a, b = rotated[:, :, first].copy(), rotated[:, :, second].copy()
    positions = batch.positions.astype(np.float32)
    angles = (positions[:, None] * op.frequencies(batch.sequence_lengths()))[:, None]  # [rows, 1, pairs]
    cos = np.cos(angles) * np.float32(op.attention_factor)
    sin = np.sin(angles) * np.float32(op.attention_factor)
    rotated[:, :, first] = a * cos - b * sin
    rotated[:, :, second] = b * cos + a * sin
    buffers[op.x.name] = heads.reshape(x.shape)


def scale_queries(op: ops.ScaleQueries, buffers: Buffers, batch: Batch) -> None:
    periods = (batch.positions // op.length).astype(np.float32)
    temperature = 1 + np.float32(op.beta) * np.log(1 + periods)
    buffers[op.q.name] = buffers[op.q.name] * temperature[:, None]


def attend(
    op: ops.Attend, buffers: Buffers, batch: Batch, table: PageTable, keys: np.ndarray, values: np.ndarray
) -> None:
    """`keys` and `values`: the cache layer, float32 [n_pages, page_size, kv_heads, head_dim or value_dim]."""
    n, page = len(batch.tokens), table.page_size
    q = buffers[op.q.name].reshape(n, op.kv_heads, -1, op.head_dim)
    pages = table.blocks[batch.sequences, batch.positions // page]
    if op.append:
        keys[pages, batch.positions % page] = buffers[op.k.name].reshape(n, op.kv_heads, -1)
    if op.append and op.v != op.k:
        values[pages, batch.positions % page] = buffers[op.v.name].reshape(n, op.kv_heads, -1)
    if op.v == op.k:
        values = keys[..., : op.value_dim]
    out = np.empty((*q.shape[:-1], op.value_dim), np.float32)
    lengths = batch.sequence_lengths()
    for sequence in np.unique(batch.sequences):
        rows = np.flatnonzero(batch.sequences == sequence)
        at = batch.positions[rows]
        end = at.max() + 1 if op.causal else lengths[rows[0]]
        cached = np.arange(max(0, at.min() - op.window + 1) if op.window else 0, end)
        pages = table.blocks[sequence, cached // page]
        k, v = keys[pages, cached % page], values[pages, cached % page]  # [cached, kv_heads, head_dim]
        ahead = cached - at[:, None]  # [rows, cached]
        masked = ahead > 0 if op.causal else np.zeros_like(ahead, bool)
        if op.window:
            masked |= np.abs(ahead) >= op.window
        weights = _softmax(op, _scores(op, q[rows], k, masked))
        out[rows] = (weights @ v.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3)
    buffers[op.out.name] = out.reshape(n, -1)


def _scores(op: ops.Attend, q: np.ndarray, k: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """scale · q·k, [kv_heads, heads a kv head, rows, cached], soft-capped; -inf where `masked`."""
    scores = q.transpose(1, 2, 0, 3) @ k.transpose(1, 2, 0)[:, None]
    scores *= np.float32(op.scale)
    if op.softcap:
        scores = np.float32(op.softcap) * np.tanh(scores / np.float32(op.softcap))
    scores[:, :, masked] = -np.inf
    return scores


def _softmax(op: ops.Attend, scores: np.ndarray) -> np.ndarray:
    """The softmax over the last axis, with a sink for each head if the op has sinks."""
    highest = scores.max(axis=-1, keepdims=True)
    if op.sinks is None:
        weights = np.exp(scores - highest)
        return weights / weights.sum(axis=-1, keepdims=True)
    sinks = op.sinks.reshape(op.kv_heads, -1, 1, 1)
    highest = np.maximum(highest, sinks)
    weights = np.exp(scores - highest)
    return weights / (weights.sum(axis=-1, keepdims=True) + np.exp(sinks - highest))
