"""How much memory kernels need, and where parts lie: the lowering allocates it, compiled code fills it."""

from __future__ import annotations

from typing import NamedTuple

from ....quant.jit.decorators import jit
from ....quant.jit.levels import LANES
from ..simd.tile_sizes import GROUP, MOST_FACTORS, PANELS, RECORD, SECOND, TOKENS, VECTOR, weights_record

FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # of one number, by its type
CACHE_TYPES = ("F32", "F16", "Q8_0", "Q4_0")

# --- activations in 8 bits (kernels/activations.py) ------------------------------------------------------

FACTS = 5  # float32 of each group of a row
UNIT, SECOND_UNIT, TOTAL, LOW_TOTAL, HIGH_TOTAL = (4 * i for i in range(FACTS))


def row_bytes(width: int) -> int:
    """Bytes of a quantised row, whole cache lines."""
    return -(-(2 * width + width // GROUP * FACTS * 4) // 64) * 64


def tile_bytes(width: int, max_rows: int) -> tuple[int, int]:
    """Bytes of the records and of the second digits of rows in tiles, whole cache lines."""
    tiles, groups = -(-max_rows // TOKENS), width // GROUP
    sizes = tiles * groups * RECORD, (tiles + 1) * groups * TOKENS * SECOND
    return tuple(-(-size // 64) * 64 for size in sizes)  # type: ignore[return-value]


def list_bytes(width: int, max_rows: int) -> tuple[int, int]:
    """Bytes of the lists of rows with second digits, and of one of them."""
    return width // GROUP * 4 * (1 + max_rows), 4 * (1 + max_rows)


# --- matrix products (kernels/tiled.py) and embedding lookup ---------------------------------------------

BLOCK = 16 if LANES == 16 else 32  # groups of a row whose unpacked weights stay in the first-level cache
SLOT = PANELS * TOKENS * VECTOR  # bytes of a tile of sums


def tiled_scratch_bytes(max_rows: int) -> int:
    """What a thread needs: the unpacked block, a table of addresses, the sums of all tiles and one more."""
    return BLOCK * weights_record(MOST_FACTORS) + 16 * TOKENS + (-(-max_rows // TOKENS) + 1) * SLOT


def embed_scratch_bytes() -> int:
    """What a thread needs to unpack a group."""
    return weights_record(MOST_FACTORS)


# --- mixtures of experts (kernels/experts.py) ------------------------------------------------------------


def route_scratch_bytes(n_experts: int) -> int:
    """What a thread needs: probabilities, what experts are chosen by, and as much again for groups."""
    return 4 * 4 * (-(-n_experts // 16) * 16)


def most_dealt(rows: int, top: int, n_experts: int) -> int:
    """How many rows there can be when each of `rows` is dealt to `top` experts, in whole tiles."""
    full = rows * top + min(n_experts, rows * top) * (TOKENS - 1)
    return full // TOKENS * TOKENS


# --- recurrent ops (kernels/recurrent.py) ----------------------------------------------------------------


def delta_scratch_bytes(key_dim: int, head_dim: int) -> int:
    """What a thread needs: a query, a key, and what is new under it."""
    return 4 * (2 * key_dim + head_dim)


# --- the KV cache (kernels/kv.py) ------------------------------------------------------------------------

KEYS = 32  # pages hold a multiple of them


def padded(head_dim: int) -> int:
    """head_dim rounded up to whole groups that share a scale."""
    return -(-head_dim // GROUP) * GROUP


def pool_bytes(kind: str, head_dim: int, page_size: int) -> tuple[int, int]:
    """Bytes of the keys and of the values of one page of one kv head; multiples of 64."""
    dim = padded(head_dim)
    if kind in FLOAT_BYTES:
        size = FLOAT_BYTES[kind]
        return head_dim * page_size * size, page_size * dim * size
    codes = dim * page_size // (1 if kind == "Q8_0" else 2)
    both = codes + dim // GROUP * page_size * 2
    return both, both


# --- attention (kernels/attention.py) --------------------------------------------------------------------

QUERIES = 64  # in a tile at most
ROWS = 4  # queries at once
KEY_BLOCK = 64  # keys between two looks at the running maximum
SPANS = 16  # that a single row's context is cut into, one more if they start in the middle
SPAN = 64  # the shortest


class Scratch(NamedTuple):
    """Addresses of a thread's working memory, for a tile of n queries."""

    q: int  # int16 or float32 [n, dim]
    sums: int  # float32 [n, dim]: weights · values
    peaks: int  # float32 [n / ROWS, 16]: largest score so far
    norms: int  # float32 [n / ROWS, 16]: sum of weights
    units: int  # float32 [n]: what a query's scores are multiplied by
    seen: int  # int64 [n, 2]: first visible position, last visible position + 1
    scores: int  # float32 [ROWS, KEY_BLOCK]
    weights: int  # int32 [ROWS, dim / 32, KEY_BLOCK / 2], pairs of int16
    relative: int  # float32 [dim / 32, KEY_BLOCK]: the values' scales, the largest of a group LIMIT
    largest: int  # float32 [dim / 32]: the largest / LIMIT
    fading: int  # float32 [ROWS]: what earlier sums are multiplied by
    factors: int  # float32 [dim / 32, 16]: what integer sums are multiplied by
    highest: int  # float32 [ROWS]: largest score in this block
    origins: int  # float32 [ROWS]: the score whose weight is 1
    totals: int  # float32 [ROWS]: sum of this block's weights
    stage: int  # float32 [2, dim] and int8 [2, dim]
    end: int


@jit
def scratch_at(base: int, n: int, dim: int) -> Scratch:
    groups = dim // GROUP
    slots = (n + ROWS - 1) // ROWS * 64
    q = base
    sums = q + n * 4 * dim
    peaks = sums + n * 4 * dim
    norms = peaks + slots
    units = norms + slots
    seen = units + slots
    scores = seen + n * 16
    weights = scores + ROWS * KEY_BLOCK * 4
    relative = weights + ROWS * groups * KEY_BLOCK * 2
    largest = relative + groups * KEY_BLOCK * 4
    fading = largest + (groups + 15) // 16 * 64
    factors = fading + 64
    highest = factors + groups * 64
    origins = highest + 64
    totals = origins + 64
    stage = totals + 64
    end = stage + 10 * dim
    return Scratch(
        q,
        sums,
        peaks,
        norms,
        units,
        seen,
        scores,
        weights,
        relative,
        largest,
        fading,
        factors,
        highest,
        origins,
        totals,
        stage,
        end,
    )


def attention_scratch_bytes(head_dim: int) -> int:
    """What a thread needs, whole cache lines."""
    return -(-scratch_at.py_func(0, QUERIES, padded(head_dim)).end // 64) * 64


def partials_bytes(heads: int, head_dim: int, max_tokens: int) -> int:
    """Bytes of the spans' results of sequences of up to `max_tokens`.

    They are, for each span and head, float32 [padded dim], peak and norm, filled up to 16.
    """
    return (min(SPANS, -(-max_tokens // SPAN)) + 1) * heads * 4 * (padded(head_dim) + 16)
