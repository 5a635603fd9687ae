"""What a quantised cache leaves out of keys: the mean of their bias, which is the same for every token.

A softmax does not change if all scores of a query grow by the same number, so that keys may be kept without
any vector that is the same for all of them. The bias of a key projection is one, but for RoPE: in pairs of
dimensions that turn slowly it nearly stays where it is, and those are where it is large (Qwen2).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

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


def biased_layers(program: ops.Program) -> set[int]:
    """The layers of the cache whose keys have a bias."""
    return {layer for layer, writer in _writers_of_keys(program) if _has_bias(writer)}


def digest_of(*changes: Mapping[int, np.ndarray]) -> str:
    """A checksum of what keys are changed by, by layer; "" if by nothing."""
    arrays = [(layer, array) for change in changes for layer, array in sorted(change.items())]
    found = 0
    for layer, array in arrays:
        found = zlib.crc32(array.tobytes(), zlib.crc32(f"{layer} {array.shape}".encode(), found))
    return f"{found:08x}" if arrays else ""


def _has_bias(op: ops.Op) -> bool:
    return isinstance(op, ops.MatMul) and op.bias is not None


def _writers_of_keys(program: ops.Program) -> Iterator[tuple[int, ops.Op]]:
    """The ops that make the keys of each layer of the cache, with the layer."""
    for at, op in enumerate(program.ops):
        if isinstance(op, ops.Attend) and op.append:
            for _, writer in writers(program, at, op.k):
                yield op.layer, writer


def writers(program: ops.Program, at: int, x: ops.Buffer) -> Iterator[tuple[int, ops.Op]]:
    """The ops in front of number `at` that make a buffer's contents, with their numbers, last one first."""
    for index in range(at - 1, -1, -1):
        op = program.ops[index]
        if isinstance(op, ops.Attend) and op.k == x:
            return
        in_place = {ops.RoPE: "x", ops.ScaleQueries: "q"}
        target = getattr(op, in_place.get(type(op), "out"), None)
        if target == x:
            yield index, op
            if isinstance(op, ops.MatMul) and not op.accumulate:
                return


def _mean_bias(program: ops.Program, at: int, op: ops.Attend) -> np.ndarray | None:
    """float64 [kv_heads, head_dim]: the bias of the keys of an attention op, turned by RoPE, in the mean over
    positions; None if they have none, or are changed in another way."""
    biases: list[np.ndarray] = []
    ropes: list[ops.RoPE] = []
    for _, writer in writers(program, at, op.k):
        if isinstance(writer, ops.RoPE):
            ropes.append(writer)
        elif isinstance(writer, ops.MatMul):
            biases += [] if writer.bias is None else [writer.bias]  # of a product and of adapters beside it
        else:
            return None
    if not biases or len(ropes) > 1:
        return None
    heads = np.sum(biases, axis=0, dtype=np.float64).reshape(op.kv_heads, op.head_dim)
    for rope in ropes:
        heads = mean_turned(rope, heads)
    return heads


def mean_turned(rope: ops.RoPE, heads: np.ndarray) -> np.ndarray:
    """The mean over POSITIONS of float64 [heads, head_dim] as RoPE turns it there."""
    cos, sin = (mean * rope.attention_factor for mean in mean_turn(rope.inv_freq, POSITIONS))
    first, second = turned_dims(rope)
    turned = heads.copy()
    a, b = heads[:, first], heads[:, second]
    turned[:, first], turned[:, second] = a * cos - b * sin, b * cos + a * sin
    return turned


def turned_dims(rope: ops.RoPE) -> tuple[slice, slice]:
    """The first and the second dimensions of the pairs that RoPE turns."""
    start, half = rope.start, len(rope.inv_freq)
    if rope.interleaved:
        return slice(start, start + 2 * half, 2), slice(start + 1, start + 2 * half, 2)
    return slice(start, start + half), slice(start + half, start + 2 * half)


def mean_turn(inv_freq: np.ndarray, n_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """The means of cos and sin of position · inv_freq over positions from 0 on, float64 [n] each.

    They are a geometric series of e^(i · inv_freq).
    """
    half = np.asarray(inv_freq, np.float64) / 2
    steps = n_positions * np.sin(half)
    length = np.divide(np.sin(n_positions * half), steps, out=np.ones_like(half), where=steps != 0)
    middle = (n_positions - 1) * half
    return length * np.cos(middle), length * np.sin(middle)
