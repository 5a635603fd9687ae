"""What the keys of a quantised cache are multiplied by, and queries divided by: a factor for each dimension.

A rotated key has errors of one size in all dimensions, in proportion to its length, and the error of a score
is in proportion to the lengths of query and key. Scores stay the same if a dimension of keys is multiplied by
a number and that of queries divided by it, but the product of the lengths does not. It is smallest with
√(query / key), of root mean squares: a dimension that is large in keys and small in queries, or the other way
round, costs the others no bits.

Biases (Qwen2) and weights of norms (Qwen3, Gemma 3) tell these sizes without running the model. Of queries
and keys that have neither nothing is known, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from .. import ops
from .abi.sizes import padded
from .key_offsets import POSITIONS, mean_turn, mean_turned, turned_dims, writers

SAMPLE = 4  # rows of a matrix whose weights are looked at
SMALLEST = 1e-6  # of the mean square of all dimensions: the least that one is taken to have
ALIKE = 1.05  # the largest factor by the smallest one, up to which they are not worth their time


@dataclass(frozen=True)
class _Moments:
    """The mean and the mean square that each dimension is expected to have, float64 [heads, head_dim]."""

    mean: np.ndarray
    square: np.ndarray


def key_balance(program: ops.Program, offsets: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The factors of the keys of each layer of the cache that has any, float32 [kv_heads, padded head_dim].

    `offsets` is what is subtracted from the keys before (`key_offsets`).
    """
    factors = {}
    for at, op in enumerate(program.ops):
        if not isinstance(op, ops.Attend) or not op.append or op.v is op.k:
            continue
        makers = [[*writers(program, at, x)] for x in (op.q, op.k)]
        if not any(_tells_sizes(each) for _, each in chain(*makers)):
            continue
        queries, keys = (
            _moments(program, *each) for each in zip(makers, (op.heads, op.kv_heads), strict=True)
        )
        if queries is None or keys is None:
            continue
        kept = keys.square - keys.mean**2 if op.layer in offsets else keys.square
        of_queries = queries.square.reshape(op.kv_heads, -1, op.head_dim).mean(axis=1)
        factor = (_floored(of_queries) / _floored(kept)) ** 0.25
        factor /= factor.mean(axis=1, keepdims=True)
        if (factor.max(axis=1) > ALIKE * factor.min(axis=1)).any():
            pad = ((0, 0), (0, padded(op.head_dim) - op.head_dim))
            factors[op.layer] = np.pad(factor, pad, constant_values=1).astype(np.float32)
    return factors


def _floored(square: np.ndarray) -> np.ndarray:
    """float64 [heads, head_dim] with nothing too small to divide by; one of zeros is one of ones."""
    size = square.mean(axis=1, keepdims=True)
    return np.where(size > 0, np.maximum(square, SMALLEST * size), 1)


def _tells_sizes(op: ops.Op) -> bool:
    return isinstance(op, ops.RMSNorm) or (isinstance(op, ops.MatMul) and op.bias is not None)


def _moments(program: ops.Program, makers: Sequence[tuple[int, ops.Op]], heads: int) -> _Moments | None:
    """Those of a buffer that `writers` makes; None if they say too little."""
    moments = None
    for index, op in reversed(makers):
        if isinstance(op, ops.MatMul) and op.accumulate:  # of an adapter
            moments = _shifted(moments, op) if moments and op.bias is not None else moments
        elif isinstance(op, ops.MatMul):
            moments = _of_product(program, index, op, heads)
        elif isinstance(op, ops.ScaleQueries) and moments:
            continue
        elif isinstance(op, ops.RMSNorm) and moments:
            moments = _normed(op, moments)
        elif isinstance(op, ops.RoPE) and moments:
            moments = _turned(op, moments)
        else:
            return None
    return moments


def _of_product(program: ops.Program, at: int, op: ops.MatMul, heads: int) -> _Moments:
    """Those of a product's outputs: all alike but for their bias, so that without one any number will do. The
    inputs are taken to be what a norm makes of numbers of one size."""
    n_rows, width = op.weight.shape
    if op.bias is None:
        return _Moments(np.zeros((heads, n_rows // heads)), np.ones((heads, n_rows // heads)))
    index = np.unique(np.linspace(0, n_rows - 1, SAMPLE).astype(np.int64))
    gains = np.ones(width)
    _, norm = next(writers(program, at, op.x), (0, None))
    if isinstance(norm, ops.RMSNorm | ops.LayerNorm) and len(norm.weight) == width:
        gains = norm.weight.astype(np.float64)
    square = np.mean(np.sum((op.weight.rows(index) * gains) ** 2, axis=1))
    bias = op.bias.astype(np.float64).reshape(heads, -1)
    return _Moments(bias, bias**2 + square)


def _shifted(of: _Moments, op: ops.MatMul) -> _Moments:
    """Those behind a product that is added, as if it were its bias alone."""
    by = np.asarray(op.bias, np.float64).reshape(of.mean.shape)
    return _Moments(of.mean + by, of.square + 2 * of.mean * by + by**2)


def _normed(op: ops.RMSNorm, of: _Moments) -> _Moments:
    """Those behind a norm of each head, or of the whole row."""
    weight = np.broadcast_to(op.weight.astype(np.float64).reshape(-1, of.mean.shape[1]), of.mean.shape)
    size = np.sqrt(of.square.mean(axis=1 if op.groups > 1 else None, keepdims=True))
    size[size == 0] = 1
    return _Moments(of.mean * weight / size, of.square * (weight / size) ** 2)


def _turned(op: ops.RoPE, of: _Moments) -> _Moments:
    """Those over all positions behind RoPE."""
    twice = mean_turn(2 * np.asarray(op.inv_freq, np.float64), POSITIONS)  # of twice the angle
    cos_cos, cos_sin = (1 + twice[0]) / 2, twice[1] / 2
    first, second = turned_dims(op)
    square = of.square.copy()
    a, b, aa, bb = (x[:, half] for x in (of.mean, of.square) for half in (first, second))
    scale = op.attention_factor**2
    square[:, first] = (aa * cos_cos + bb * (1 - cos_cos) - 2 * a * b * cos_sin) * scale
    square[:, second] = (bb * cos_cos + aa * (1 - cos_cos) + 2 * a * b * cos_sin) * scale
    return _Moments(mean_turned(op, of.mean), square)
