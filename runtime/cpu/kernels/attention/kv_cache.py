"""The paged KV cache in memory: how each element type lays out a page, and addresses in it.

For each page and kv head, the pool of keys and the pool of values hold one piece (`sizes.pool_bytes`), whose
element types may differ. A pool is [group of PAGE_GROUP pages][kv head][page of the group]. In a piece,
tokens lie in the lanes of key vectors, and dimensions in the lanes of value vectors, so that neither scores
nor weighted sums of values cross lanes:

======  =====================================  ==============================================
type    keys                                   values
======  =====================================  ==============================================
F32/16  [head_dim][token]                      [token][dim]
Q8_0    int8 [dim/2][token][2 dims]            int8 [pair of tokens][dim][2 tokens]
Q4_0    nibbles [dim/4][token][2 bytes]        nibbles [pair of tokens][dim/32][16][2 tokens]
======  =====================================  ==============================================

with dim = `sizes.padded(head_dim)`. A pair of tokens are tokens i and i + 16 of a run of 32. In Q4_0 keys,
byte j of four dimensions holds dimension j in its low nibble and dimension j + 2 in its high nibble; in Q4_0
values, byte i of 32 dimensions holds dimensions i and i + 16. Nibbles are signed. After the codes of a piece
come its fp16 scales, [dim/32][token].

A pool starts zeroed, and values in it are always finite: `kv_store` writes a NaN into the *key* of a token
whose value is not finite, so that exactly the queries that attend to the token get NaN. Attention may thus
multiply whole blocks of values, with weight 0 for tokens that are masked.
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.decorators import jit
from .....quant.jit.simd.memory import load_i32
from ...abi.records import ATTENTION
from ...abi.sizes import FLOAT_BYTES, PAGE_GROUP, key_and_value_types
from ...simd.dot8 import Codes
from ...simd.tile_sizes import GROUP  # dimensions that share a scale
from ..common.access import record_reader
from ..common.float_types import FLOATS

arguments_at = record_reader(ATTENTION)

_KINDS = {
    "F32": FLOATS["F32"],
    "F16": FLOATS["F16"],
    "Q8_0": Codes("Q8_0", limit=127, signed=True),
    "Q4_0": Codes("Q4_0", limit=8, signed=True),
}


def kinds(cache_type: str) -> tuple[Codes, Codes]:
    """The element types of keys and of values, as compile-time constants."""
    keys, values = key_and_value_types(cache_type)
    return _KINDS[keys], _KINDS[values]


@jit
def padded_dim(a: Any) -> int:
    """head_dim rounded up to whole groups of 32 dimensions."""
    return (a.head_dim + GROUP - 1) // GROUP * GROUP


@jit
def value_row(slot: int) -> int:
    """The pair of tokens that a slot of a page belongs to."""
    return slot // 32 * 16 + slot % 16


@jit
def page_of(s: Any, sequence: int, position: int) -> int:
    """The page of the pool that holds a position of a sequence, by the block table."""
    return load_i32(s.blocks + sequence * s.blocks_stride + 4 * (position // s.page_size))


@jit
def pieces(key_kind: Codes, value_kind: Codes, a: Any, s: Any, sequence: int, position: int, h: int) -> Any:
    """(address of the keys, address of the values) of kv head `h` in the page of a position of a sequence."""
    page = page_of(s, sequence, position)
    tokens = ((page // PAGE_GROUP * a.kv_heads + h) * PAGE_GROUP + page % PAGE_GROUP) * s.page_size
    key_dim = padded_dim(a) if limit_of(key_kind) != 0 else a.head_dim
    keys = a.keys + vector_bytes(key_kind, tokens * key_dim)
    return keys, a.values + vector_bytes(value_kind, tokens * padded_dim(a))


def vector_bytes(kind: Codes, n: int) -> int:
    """Bytes of n numbers with their scales."""
    raise TypeError("for compiled code")


@overload(vector_bytes, jit_options={"forceinline": True})
def _choose_vector_bytes(kind: Any, n: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)
    # Sixteenths of a byte for each element: 8 or 4 bits, and a 32nd of an fp16 scale.
    sixteenths = 17 if kind.value.name == "Q8_0" else 9

    def floats(kind: Any, n: Any) -> Any:
        return n * size

    def ints(kind: Any, n: Any) -> Any:
        return n * sixteenths // 16

    return floats if size else ints


def limit_of(kind: Codes) -> int:
    """`kind.limit`, 0 for float types; a constant in compiled code."""
    raise TypeError("for compiled code")


@overload(limit_of, jit_options={"forceinline": True})
def _choose_limit_of(kind: Any) -> Any:
    limit = kind.value.limit

    def constant_limit(kind: Any) -> Any:
        return limit

    return constant_limit


def query_bytes(kind: Codes) -> int:
    """Bytes of an element of a prepared query: 4 for float caches, 2 (int16) for quantised ones."""
    raise TypeError("for compiled code")


@overload(query_bytes, jit_options={"forceinline": True})
def _choose_query_bytes(kind: Any) -> Any:
    size = 4 if kind.value.name in FLOAT_BYTES else 2

    def constant_size(kind: Any) -> Any:
        return size

    return constant_size


def codes_bytes(kind: Codes, a: Any, page_size: int) -> int:
    """Bytes of the codes of a piece; its scales come after them. Quantised types only."""
    raise TypeError("for compiled code")


@overload(codes_bytes, jit_options={"forceinline": True})
def _choose_codes_bytes(kind: Any, a: Any, page_size: Any) -> Any:
    shift = 0 if kind.value.name == "Q8_0" else 1

    def all_codes(kind: Any, a: Any, page_size: Any) -> Any:
        return (padded_dim(a) * page_size) >> shift

    return all_codes
