"""The ids of one chunk of text, and the table of chunks that were encoded before."""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import helper, i32, part_at, put_i32, put_u8, u8
from .merge import merge
from .pretokenize import mark_words

_MAX_PROBES = 64


@helper
def encode_part(v: Any, s: Any, text: int, size: int, out: int) -> int:
    """The ids of a new part at `out`; how many, or -1 if a byte has no symbol."""
    n_out = 0
    if v.space >= 0:
        n = 0
        i = 0
        while i < size:
            if u8(text, i) < 0x80:
                symbol = i32(v.symbols, u8(text, i))
                i += 1
            else:
                symbol = np.int32(v.space)
                i += 3
            if symbol < 0:
                return -1
            s.symbols[n] = symbol
            n += 1
        n_out = merge(v, s, n)
        for i in range(n_out):
            put_i32(out, i, s.symbols[i])
        return n_out
    mark_words(v, s, text, size)
    begin = 0
    while begin < size:
        n = 0
        while True:
            symbol = i32(v.symbols, u8(text, begin + n))
            if symbol < 0:
                return -1
            s.symbols[n] = symbol
            n += 1
            if s.marks[begin + n] != 0:
                break
        begin += n
        n = merge(v, s, n)
        for i in range(n):
            put_i32(out, n_out + i, s.symbols[i])
        n_out += n
    return n_out


@helper
def find_part(v: Any, key: int, text: int, size: int) -> Any:
    """The place of a part that was seen before, -1 for a new one, -2 for one that cannot be kept."""
    slot = key & v.slot_mask
    for _ in range(_MAX_PROBES):
        place = np.int64(i32(v.slots, slot)) - 1
        if place < 0:
            return np.int64(-1)
        part = part_at(v.parts, place)
        if part.hash == key and part.size == size:
            same = True
            for i in range(size):
                same &= u8(v.bytes + part.at, i) == u8(text, i)
            if same:
                return place
        slot = (slot + 1) & v.slot_mask
    return np.int64(-2)


@helper
def keep_part(v: Any, key: int, text: int, size: int, ids: int, n_ids: int) -> None:
    """Remember what became of a part. When there is no room, all are forgotten."""
    if v.n_parts == v.most_parts or v.n_bytes + size > v.most_bytes or v.n_ids + n_ids > v.most_ids:
        v.n_parts = v.n_bytes = v.n_ids = 0
        for i in range(v.slot_mask + 1):
            put_i32(v.slots, i, np.int32(0))
    part = part_at(v.parts, v.n_parts)
    part.hash, part.at, part.size, part.ids_at, part.n_ids = key, v.n_bytes, size, v.n_ids, n_ids
    for i in range(size):
        put_u8(v.bytes + v.n_bytes, i, u8(text, i))
    for i in range(n_ids):
        put_i32(v.ids, v.n_ids + i, i32(ids, i))
    slot = key & v.slot_mask
    while i32(v.slots, slot) != 0:
        slot = (slot + 1) & v.slot_mask
    v.n_parts += 1
    v.n_bytes += size
    v.n_ids += n_ids
    put_i32(v.slots, slot, np.int32(v.n_parts))
