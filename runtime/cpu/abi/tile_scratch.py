"""The scratch memory of attention in matrix tiles (kernels/attention/tile_prefill.py)."""

from __future__ import annotations

from typing import NamedTuple

from ....quant.jit.decorators import jit
from ..simd.amx_sizes import ROWS, TILE, UNIT_BYTES
from ..simd.tile_sizes import GROUP
from .sizes import key_and_value_types, padded

# Queries that unpacked keys and values are used for, at most; a power of two.
TILE_QUERIES = 128
RUN = 32  # tokens of a run, which lies in one page
RUNS = 4  # runs between two updates of the running maximum
# By element type of the cache: into how many bfloat16 are queries and keys split?
KEY_PARTS = {"F32": 2, "F16": 2, "Q8_0": 1, "Q4_0": 1}
VALUE_PARTS = {"F32": 2, "F16": 1, "Q8_0": 1, "Q4_0": 1}  # the same of softmax numerators and values


class TileScratch(NamedTuple):
    """Addresses in a thread's scratch memory. Numbers are bfloat16 in tiles, or else float32."""

    unit: int  # the `TileUnit`'s
    q: int  # tiles [queries / 16, parts, groups of dimensions]
    keys: int  # tiles [RUNS, parts, groups of dimensions, 2]
    values: int  # tiles [parts, groups of dimensions, RUNS, 2]
    weights: int  # softmax numerators, tiles [2, parts, RUNS]
    scores: int  # float32 tiles [RUNS, 2 tiles of queries, 2 tiles of keys]
    sums: int  # float32 tiles [queries / 32, groups of dimensions, 2 tiles of queries, 2 of dimensions]
    maxima: int  # [queries], running maximum of the scores
    denominators: int  # [queries, 16], whose sum is the running softmax denominator
    peaks: int  # [16, 16], the largest scores of a tile of queries
    rescale: int  # [16], factors of the earlier sums of a tile of queries
    visible: int  # int64 [queries, 2]: first visible position, last visible position + 1
    staging: int  # [dim]
    end: int


@jit
def tile_scratch_at(base: int, dim: int, key_parts: int, value_parts: int) -> TileScratch:
    """The layout of the scratch memory at address `base`; `end` is the address behind it. `dim` is the padded
    head_dim."""
    groups = dim // GROUP
    q = base + UNIT_BYTES
    keys = q + TILE_QUERIES // ROWS * key_parts * groups * TILE
    values = keys + RUNS * key_parts * groups * 2 * TILE
    weights = values + RUNS * value_parts * groups * 2 * TILE
    scores = weights + 2 * value_parts * RUNS * TILE
    sums = scores + RUNS * 4 * TILE
    maxima = sums + TILE_QUERIES * 4 * dim
    denominators = maxima + TILE_QUERIES * 4
    peaks = denominators + TILE_QUERIES * 64
    rescale = peaks + TILE
    visible = rescale + 64
    staging = visible + TILE_QUERIES * 16
    end = staging + 4 * dim
    return TileScratch(
        base,
        q,
        keys,
        values,
        weights,
        scores,
        sums,
        maxima,
        denominators,
        peaks,
        rescale,
        visible,
        staging,
        end,
    )


def tile_attention_bytes(cache_type: str, head_dim: int) -> int:
    """Scratch bytes a thread."""
    keys, values = key_and_value_types(cache_type)
    parts = KEY_PARTS[keys], VALUE_PARTS[values]
    return int(tile_scratch_at.py_func(0, padded(head_dim), *parts).end)
