"""What a quantised cache leaves out of keys: the mean of their bias, which is the same for every token.

A softmax does not change if all scores of a query grow by the same number, so that keys may be kept without
any vector that is the same for all of them. The bias of a key projection is one, but for RoPE: in pairs of
dimensions that turn slowly it nearly stays where it is, and those are where it is large (Qwen2).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from .. import ops
from .abi.sizes import padded

POSITIONS = 4096  # over which the rotated bias is averaged


def key_offsets(program: ops.Program) -> dict[int, np.ndarray]:
    """The offset of the keys of each layer of the cache that has one, float32 [kv_heads, padded head_dim].

    None where a score's size matters: with a soft cap or attention sinks. None either where something else
    than RoPE comes between bias and cache.
    """
    offsets, absolute = {}, set()
    for at, op in enumerate(program.ops):
        if not isinstance(op, ops.Attend):
            continue
        if op.softcap or op.sinks is not None or op.v is op.k:
            absolute.add(op.layer)
        offset = _mean_bias(program, at, op) if op.append else None
        if offset is not None:
            dim = padded(op.head_dim)
            offsets[op.layer] = np.pad(offset, ((0, 0), (0, dim - op.head_dim))).astype(np.float32)
    return {layer: offset for layer, offset in offsets.items() if layer not in absolute}


def keys_have_outliers(program: ops.Program) -> bool:
    """Whether keys have a bias or a norm with weights, so that some of their dimensions are far larger than
    others, and a scale that they share is too coarse for the rest."""
    return any(isinstance(w, ops.RMSNorm) or _has_bias(w) for _, w in _writers_of_keys(program))


def biased_layers(program: ops.Program) -> set[int]:
    """The layers of the cache whose keys have a bias."""
    return {layer for layer, writer in _writers_of_keys(program) if _has_bias(writer)}


def _has_bias(op: ops.Op) -> bool:
    return isinstance(op, ops.MatMul) and op.bias is not None


def _writers_of_keys(program: ops.Program) -> Iterator[tuple[int, ops.Op]]:
    """The ops that make the keys of each layer of the cache, with the layer."""
    for at, op in enumerate(program.ops):
        if isinstance(op, ops.Attend) and op.append:
            for writer in _writers(program, at, op.k):
                yield op.layer, writer


def _writers(program: ops.Program, at: int, k: ops.Buffer) -> Iterator[ops.Op]:
    """The ops in front of number `at` that make a buffer's contents, the last one first."""
    for op in reversed(program.ops[:at]):
        if isinstance(op, ops.Attend) and op.k == k:
            return
        target = op.x if isinstance(op, ops.RoPE) else getattr(op, "out", None)
        if target == k:
            yield op
            if isinstance(op, ops.MatMul) and not op.accumulate:
                return


def _mean_bias(program: ops.Program, at: int, op: ops.Attend) -> np.ndarray | None:
    """float64 [kv_heads, head_dim]: the bias of the keys of an attention op, turned by RoPE, in the mean over
    positions; None if they have none, or are changed in another way."""
    bias = None
    ropes: list[ops.RoPE] = []
    for writer in _writers(program, at, op.k):
        if isinstance(writer, ops.RoPE):
            ropes.append(writer)
        elif isinstance(writer, ops.MatMul):
            bias = writer.bias
        else:
            return None
    if bias is None or len(ropes) > 1:
        return None
    heads = bias.reshape(op.kv_heads, op.head_dim).astype(np.float64)
    for rope in ropes:
        heads = _mean_turned(rope, heads)
    return heads


def _mean_turned(rope: ops.RoPE, heads: np.ndarray) -> np.ndarray:
    """The mean over POSITIONS of float64 [heads, head_dim] as RoPE turns it there."""
    inv_freq = np.asarray(rope.inv_freq, np.float64)
    cos, sin = (mean * rope.attention_factor for mean in _mean_turn(inv_freq.tobytes(), POSITIONS))
    half, turned = len(rope.inv_freq), heads.copy()
    part = turned[:, rope.start : rope.start + 2 * half]
    first, second = (
        (slice(0, None, 2), slice(1, None, 2)) if rope.interleaved else (slice(half), slice(half, None))
    )
    a, b = part[:, first].copy(), part[:, second].copy()
    part[:, first], part[:, second] = a * cos - b * sin, b * cos + a * sin
    return turned


@lru_cache(maxsize=8)  # a start asks for each layer, and most models turn all of them alike
def _mean_turn(inv_freq: bytes, n_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """The means of cosine and sine over positions, float64 [n]; `inv_freq` is the memory of float64 [n]."""
    angles = np.arange(n_positions)[:, None] * np.frombuffer(inv_freq)
    return np.cos(angles).mean(axis=0), np.sin(angles).mean(axis=0)
