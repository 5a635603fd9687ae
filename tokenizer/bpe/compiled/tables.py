"""Fills the vocabulary's tables: entries, the ranks of merges, and look-ups of many texts.

`v` is the VOCABULARY record, `e` an ENTERING record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import helper, i32, i64, put_i32, put_i64, put_u64, u8, u64
from .merge import find_id, first_slot
from .records import CUT_BITS, NO_RANK

_SPACE = 0x20


@helper
def _number(v: Any, raw: int, begin: int, stop: int) -> Any:
    """The number of a text and the base to the power of its size."""
    number = np.uint64(0)
    power = np.uint64(1)
    for at in range(begin, stop):
        number += u64(v.values, u8(raw, at)) * power
        power *= np.uint64(v.base)
    return number, power


@helper
def find_texts(v: Any, e: Any) -> None:
    for i in range(e.n):
        number, _ = _number(v, e.raw, i64(e.starts, i), i64(e.stops, i))
        put_i64(e.ids, i, find_id(v, number))


@helper
def enter_pieces(v: Any, e: Any) -> None:
    """Fill the table of entries. Of a text that is there twice the last counts."""
    for i in range(e.n):
        id = i64(e.ids, i)
        if id < 0:
            continue
        begin, stop = i64(e.starts, i), i64(e.stops, i)
        number, power = _number(v, e.raw, begin, stop)
        put_u64(v.numbers, id, number)
        put_u64(v.powers, id, power)
        put_i32(v.sizes, id, stop - begin)
        if number == np.uint64(0):
            e.failed = 1
            return
        slot = first_slot(number, v.key_shift)
        while u64(v.keys, slot) != np.uint64(0) and u64(v.keys, slot) != number:
            slot = (slot + 1) & v.key_mask
        put_u64(v.keys, slot, number)
        put_i32(v.key_ids, slot, id)


@helper
def enter_merges(v: Any, e: Any) -> None:
    """Fill in ranks and where pairs are cut; e.more are those that make what another one makes."""
    base = np.uint64(v.base)
    for rank in range(e.n):
        begin, stop = i64(e.starts, rank), i64(e.stops, rank)
        number = np.uint64(0)
        power = np.uint64(1)
        cut = np.int64(-1)
        for at in range(begin, stop):
            byte = u8(e.raw, at)
            if byte == _SPACE:
                if cut >= 0:
                    e.failed = 1
                    return
                cut = at - begin
            else:
                number += u64(v.values, byte) * power
                power *= base
        if cut <= 0 or cut == stop - begin - 1 or cut >> CUT_BITS != 0:
            e.failed = 1
            return
        id = find_id(v, number)
        if id < 0:
            continue
        if i64(v.ranks, id) == NO_RANK or np.int64(i32(v.cuts, id)) == cut:
            put_i64(v.ranks, id, rank)
            put_i32(v.cuts, id, cut)
        else:
            put_i64(e.more, 2 * e.n_more, id << CUT_BITS | cut)
            put_i64(e.more, 2 * e.n_more + 1, rank)
            e.n_more += 1


@helper
def enter_more(v: Any, e: Any) -> None:
    """Fill the table of further pairs; the last of equal ones counts."""
    for i in range(e.n_more):
        key = np.uint64(i64(e.more, 2 * i))
        slot = first_slot(key, v.more_shift)
        while u64(v.more_keys, slot) != np.uint64(0) and u64(v.more_keys, slot) != key:
            slot = (slot + 1) & v.more_mask
        put_u64(v.more_keys, slot, key)
        put_i64(v.more_ranks, slot, i64(e.more, 2 * i + 1))
