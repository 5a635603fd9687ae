"""Cuts a text into chunks where the patterns always cut it, and encodes each chunk.

Chunks with other than ASCII characters, long ones, and those with bytes that the vocabulary lacks are
listed in `left` for the caller to encode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import helper, i32, i64, part_at, put_i32, put_i64, scratch_at, u8
from .parts import encode_part, find_part, keep_part
from .records import MAX_PART_BYTES

_PRIME = np.uint64(0x100000001B3)
_SPACE = 0x20


@helper
def _is_space(first: int, second: int, third: int) -> bool:
    """Whether a character that begins with these bytes is white space as Python's `re` has it."""
    if first < 0x80:
        return first == 0x20 or 0x09 <= first <= 0x0D or 0x1C <= first <= 0x1F
    if first == 0xC2:
        return second == 0x85 or second == 0xA0
    if first == 0xE1:
        return second == 0x9A and third == 0x80
    if first == 0xE2 and second == 0x80:
        return third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF
    if first == 0xE2 and second == 0x81:
        return third == 0x9F
    return first == 0xE3 and second == 0x80 and third == 0x80


@helper
def _byte_before(text: int, at: int, stop: int) -> Any:
    return np.int64(u8(text, at)) if at < stop else 0


@helper
def _space_at(text: int, at: int, stop: int) -> bool:
    return _is_space(
        np.int64(u8(text, at)), _byte_before(text, at + 1, stop), _byte_before(text, at + 2, stop)
    )


@helper
def _space_before(text: int, at: int, begin: int) -> bool:
    """Whether the character that ends at `at` is white space; all of them have 1, 2 or 3 bytes."""
    first = at - 1
    while first > begin and first > at - 4 and u8(text, first) & 0xC0 == 0x80:
        first -= 1
    return _space_at(text, first, at)


@helper
def _is_mark(text: int, at: int, stop: int) -> bool:
    """Whether U+2581 begins here."""
    return at + 2 < stop and u8(text, at) == 0xE2 and u8(text, at + 1) == 0x96 and u8(text, at + 2) == 0x81


@helper
def encode_text(v: Any, c: Any, s: Any, begin: int, stop: int) -> None:
    at = begin
    while at < stop:
        plain = True
        key = np.uint64(v.seed)
        end = at
        while True:
            byte = u8(c.text, end)
            key = (key ^ np.uint64(byte)) * _PRIME
            end += 1
            if byte >= 0x80:
                if v.space >= 0 and _is_mark(c.text, end - 1, stop):
                    key = (key ^ np.uint64(1)) * _PRIME
                    end += 2
                    if end == stop:
                        break
                    continue
                plain = False
            if end == stop:
                break
            if v.space >= 0:
                if _is_mark(c.text, end, stop) and byte < 0x80 and u8(v.joins, byte) == 0:
                    break
            elif (
                u8(c.text, end) == _SPACE
                and end + 1 < stop
                and not _space_before(c.text, end, begin)
                and not _space_at(c.text, end + 1, stop)
            ):
                break
        size = end - at
        n = np.int64(-1)
        if plain and size <= MAX_PART_BYTES:
            hashed = np.int64(key ^ (key >> np.uint64(29)))
            place = find_part(v, hashed, c.text + at, size)
            out = c.out + 4 * c.n_out
            if place >= 0:
                part = part_at(v.parts, place)
                n = part.n_ids
                for i in range(n):
                    put_i32(out, i, i32(v.ids, part.ids_at + i))
            else:
                n = encode_part(v, s, c.text + at, size, out)
                if n >= 0 and place == -1:
                    keep_part(v, hashed, c.text + at, size, out, n)
        if n >= 0:
            c.n_out += n
        else:
            put_i64(c.left, 3 * c.n_left, c.n_out)
            put_i64(c.left, 3 * c.n_left + 1, at)
            put_i64(c.left, 3 * c.n_left + 2, end)
            c.n_left += 1
        at = end


@helper
def encode_items(v: Any, c: Any) -> None:
    s = scratch_at(c.scratch, 0)
    for item in range(c.n_items):
        begin, stop = i64(c.items, 2 * item), i64(c.items, 2 * item + 1)
        if begin >= 0:
            encode_text(v, c, s, begin, stop)
        else:
            put_i32(c.out, c.n_out, stop)
            c.n_out += 1
