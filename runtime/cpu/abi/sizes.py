"""Sizes and layouts of the buffers that kernels share with Python.

The lowering allocates with these functions, kernels address with the same constants.
"""

from __future__ import annotations

from typing import NamedTuple

from ....quant.jit.decorators import jit
from ....quant.jit.levels import AVX_WITHOUT_VNNI, LANES
from ..simd.amx_sizes import BLOCKS, GROUPS, PAIRS, STEP_BYTES, SUM_BYTES, TILE, UNIT_BYTES
from ..simd.amx_sizes import ROWS as TILE_ROWS
from ..simd.tile_sizes import (
    GROUP,
    GROUP_STATS,
    MAX_FACTORS,
    PANELS,
    RECORD,
    RESIDUAL,
    TOKENS,
    VECTOR,
    weights_record,
)

FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of a number, by float type
# Types of the KV cache: of all its numbers, or of keys / of values. Keys need more bits than values.
CACHE_TYPES = ("F32", "F16", "Q8_0", "Q4_0", "F16/Q8_0", "F16/Q4_0", "Q8_0/Q4_0")
# Rows of a step at most that is run by the list of instructions for few rows: from here on the gemm, which
# unpacks weights into memory, is faster than the skinny gemm (docs/performance.md).
FEW_ROWS = 64 if LANES == 16 else 16
LOGITS_GROUP = 64  # logits of which a step gives the largest one; a multiple of LANES

# --- activations in 8 bits (kernels/matmul/quantize.py) --------------------------------------------------


def row_bytes(width: int) -> int:
    """Bytes of one quantised row of `width` columns, rounded up to whole cache lines."""
    return -(-(2 * width + width // GROUP * GROUP_STATS * 4) // 64) * 64


def tile_bytes(width: int, max_rows: int) -> tuple[int, int]:
    """Bytes of the records and of the residual codes of `max_rows` rows in tiles; whole cache lines each."""
    tiles, groups = -(-max_rows // TOKENS), width // GROUP
    sizes = tiles * groups * RECORD, (tiles + 1) * groups * TOKENS * RESIDUAL
    return tuple(-(-size // 64) * 64 for size in sizes)  # type: ignore[return-value]


def residual_list_bytes(width: int, max_rows: int) -> tuple[int, int]:
    """Bytes of the lists of rows with residual codes: of the lists of all groups, and of one list."""
    return width // GROUP * 4 * (1 + max_rows), 4 * (1 + max_rows)


# --- matrix products (kernels/matmul/) and embedding lookup ----------------------------------------------


BLOCK = 16 if LANES == 16 else 32  # groups of a row whose unpacked weights fit into the L1 data cache
SLOT = PANELS * TOKENS * VECTOR  # bytes of the accumulators of one tile


def gemm_scratch_bytes(max_rows: int) -> int:
    """Scratch bytes a thread: a block of unpacked weights, a table of 2 · TOKENS addresses, and the
    accumulators of all tiles and of one spare tile.
    """
    return BLOCK * weights_record(MAX_FACTORS) + 16 * TOKENS + (-(-max_rows // TOKENS) + 1) * SLOT


def skinny_scratch_bytes() -> int:
    """Scratch bytes a thread: the accumulators of FEW_ROWS rows and a pair of panels."""
    return FEW_ROWS * PANELS * VECTOR


def matrix_tile_bytes(width: int, max_rows: int) -> int:
    """Bytes of `max_rows` rows in bfloat16 tiles (kernels/matmul/tile_gemm.py)."""
    return -(-max_rows // TILE_ROWS) * (width // GROUP) * TILE


def tile_gemm_scratch_bytes() -> int:
    """Scratch bytes a thread: the unit's own, two chunks of unpacked weights, sums of PAIRS pairs."""
    return UNIT_BYTES + 2 * GROUPS * STEP_BYTES + PAIRS * BLOCKS * SUM_BYTES


def embed_scratch_bytes() -> int:
    """Scratch bytes a thread: one unpacked group."""
    return weights_record(MAX_FACTORS)


# --- mixtures of experts (kernels/matmul/moe_routing.py) -------------------------------------------------


def route_scratch_bytes(n_experts: int) -> int:
    """Scratch bytes a thread: four float32 [n_experts] padded to 16: probabilities, selection scores, and two
    for the scores of groups and their members."""
    return 4 * 4 * (-(-n_experts // 16) * 16)


def max_permuted_rows(rows: int, top: int, n_experts: int) -> int:
    """The most rows there are when each of `rows` rows is copied to `top` experts and every expert's rows are
    padded to whole tiles, whichever kernels multiply them."""
    tile = TILE_ROWS if LANES == 16 else TOKENS
    return rows * top + min(n_experts, rows * top) * (tile - 1)


# --- recurrent ops (kernels/common/recurrent.py) ---------------------------------------------------------


def delta_scratch_bytes(key_dim: int, head_dim: int) -> int:
    """Scratch bytes a thread: a query, a key, and the value to be written under the key, in float32."""
    return 4 * (2 * key_dim + head_dim)


# --- the KV cache (kernels/attention/kv_cache.py) --------------------------------------------------------

PAGE_MULTIPLE = 32  # the page size is a multiple of this many tokens
# Pages whose pieces of a kv head lie one behind the other: one-row attention reads these, and memory is
# faster the longer the runs (docs/performance.md).
PAGE_GROUP = 16


def pool_pages(n_pages: int) -> int:
    """Pages that a pool has room for, whole groups of them."""
    return -(-n_pages // PAGE_GROUP) * PAGE_GROUP


def padded(head_dim: int) -> int:
    """head_dim rounded up to whole groups of 32 dimensions, which share a scale."""
    return -(-head_dim // GROUP) * GROUP


def rotation_block(head_dim: int, value_dim: int) -> int:
    """The dimensions of a block in which a cache rotates keys and values, a power of two that divides the
    dimensions of both."""
    both = head_dim | value_dim
    return both & -both


def key_and_value_types(cache_type: str) -> tuple[str, str]:
    """The element types of the keys and of the values in a cache of one of `CACHE_TYPES`."""
    keys, _, values = cache_type.partition("/")
    return keys, values or keys


def rotated(cache_type: str) -> tuple[bool, bool]:
    """Whether a cache has keys rotated, and values (kernels/attention/rotation.py): what is quantised is."""
    keys, values = key_and_value_types(cache_type)
    return keys not in FLOAT_BYTES, values not in FLOAT_BYTES


def piece_bytes(kind: str, dim: int, page_size: int) -> int:
    """Bytes of `page_size` vectors of `dim` numbers, an element type's codes with their scales."""
    if kind in FLOAT_BYTES:
        return dim * page_size * FLOAT_BYTES[kind]
    return dim * page_size // (1 if kind == "Q8_0" else 2) + dim // GROUP * page_size * 2


def pool_bytes(cache_type: str, head_dim: int, page_size: int) -> tuple[int, int]:
    """Bytes of the keys and of the values of one kv head in one page; multiples of 64."""
    keys, values = key_and_value_types(cache_type)
    dim = padded(head_dim)
    key_dim = head_dim if keys in FLOAT_BYTES else dim
    return piece_bytes(keys, key_dim, page_size), piece_bytes(values, dim, page_size)


# --- attention (kernels/attention/) ----------------------------------------------------------------------

MAX_QUERIES = 64  # queries in a tile at most; a query is one head of one row
ROWS = 4  # queries that a register tile computes at once
KEY_BLOCK = 64  # keys between two updates of the running maximum
# Whether a tile of prompts unpacks quantised codes to int16 once for all its queries, not for ROWS at a time.
UNPACK_TILES = AVX_WITHOUT_VNNI
# Bytes of that for each dimension of the keys of a block, or of its values.
UNPACKED_BYTES = 2 * KEY_BLOCK if UNPACK_TILES else 0
MAX_SPLITS = 16  # split-KV; one more if the window begins inside a split
MIN_SPLIT = 64  # tokens of a split at least, in a decode step


class Scratch(NamedTuple):
    """Addresses in a thread's scratch memory for a tile of n queries; dim is the padded head_dim."""

    q: int  # int16 or float32 [n, dim]: the queries
    sums: int  # float32 [n, dim]: Σ softmax numerators · values
    maxima: int  # float32 [n / ROWS, 16]: running maximum of the scores, of ROWS queries each
    denominators: int  # float32 [n / ROWS, 16]: running softmax denominators
    score_scales: int  # float32 [n]: factor from products of q and keys to scores
    visible: int  # int64 [n, 2]: first visible position, last visible position + 1
    scores: int  # float32 [ROWS, KEY_BLOCK]
    weights: int  # int32 [ROWS, dim / 32, KEY_BLOCK / 2], pairs of int16 softmax numerators
    value_scales: int  # float32 [dim / 32, KEY_BLOCK]: scales of values; the largest of a group is LIMIT
    max_value_scales: int  # float32 [dim / 32]: largest scale of a group / LIMIT
    rescale: int  # float32 [ROWS]: factor of the earlier sums when the running maximum moves
    int_scales: int  # float32 [dim / 32, 16]: factors from integer sums to float32
    block_maxima: int  # float32 [ROWS]: largest score in this block of keys
    exponent_origins: int  # float32 [ROWS]: the score whose softmax numerator is 1
    block_sums: int  # float32 [ROWS]: sum of this block's numerators
    staging: int  # float32 [2, dim] and int8 [2, dim]
    unpacked_keys: int  # int16 [dim / 2, KEY_BLOCK, 2], if UNPACK_TILES
    unpacked_values: int  # int16 [KEY_BLOCK / 2, dim, 2], if UNPACK_TILES
    end: int


@jit
def scratch_at(base: int, n: int, dim: int) -> Scratch:
    """The layout of the scratch memory at address `base`; `end` is the address behind it."""
    groups = dim // GROUP
    slots = (n + ROWS - 1) // ROWS * 64
    q = base
    sums = q + n * 4 * dim
    maxima = sums + n * 4 * dim
    denominators = maxima + slots
    score_scales = denominators + slots
    visible = score_scales + slots
    scores = visible + n * 16
    weights = scores + ROWS * KEY_BLOCK * 4
    value_scales = weights + ROWS * groups * KEY_BLOCK * 2
    max_value_scales = value_scales + groups * KEY_BLOCK * 4
    rescale = max_value_scales + (groups + 15) // 16 * 64
    int_scales = rescale + 64
    block_maxima = int_scales + groups * 64
    exponent_origins = block_maxima + 64
    block_sums = exponent_origins + 64
    staging = block_sums + 64
    unpacked_keys = staging + 10 * dim
    unpacked_values = unpacked_keys + UNPACKED_BYTES * dim
    end = unpacked_values + UNPACKED_BYTES * dim
    return Scratch(
        q,
        sums,
        maxima,
        denominators,
        score_scales,
        visible,
        scores,
        weights,
        value_scales,
        max_value_scales,
        rescale,
        int_scales,
        block_maxima,
        exponent_origins,
        block_sums,
        staging,
        unpacked_keys,
        unpacked_values,
        end,
    )


def attention_scratch_bytes(head_dim: int) -> int:
    """Scratch bytes a thread, rounded up to whole cache lines."""
    return -(-scratch_at.py_func(0, MAX_QUERIES, padded(head_dim)).end // 64) * 64


def partials_bytes(heads: int, head_dim: int, max_tokens: int) -> int:
    """Bytes of the partial results of a row: split-KV attention over sequences of up to `max_tokens` tokens.

    float32 [splits, heads, padded head_dim + 16], see `kernels.attention.partials`.
    """
    return (min(MAX_SPLITS, -(-max_tokens // MIN_SPLIT)) + 1) * heads * 4 * (padded(head_dim) + 16)
