"""The merge loop over one word, and the hash tables it looks pairs up in.

A text's number is Σ value[byte i] · base^i modulo 2^64, so that the number of two neighbours joined follows
from theirs (see `batch.py`, the NumPy twin). `v` is the VOCABULARY record, `s` SCRATCH.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import helper, i32, i64, u64
from .records import CUT_BITS, NO_RANK

_MIX = np.uint64(0x9E3779B97F4A7C15)


@helper
def first_slot(number: Any, shift: int) -> Any:
    return np.int64((number * _MIX) >> np.uint64(shift))


@helper
def find_id(v: Any, number: Any) -> Any:
    """The id of the entry with a number, -1 if there is none."""
    slot = first_slot(number, v.key_shift)
    while True:
        key = u64(v.keys, slot)
        if key == np.uint64(0):
            return np.int64(-1)
        if key == number:
            return np.int64(i32(v.key_ids, slot))
        slot = (slot + 1) & v.key_mask


@helper
def _more_rank(v: Any, id: int, cut: int) -> Any:
    """The rank of a pair that is not the first that makes its id."""
    key = np.uint64(id << CUT_BITS | cut)
    slot = first_slot(key, v.more_shift)
    while True:
        found = u64(v.more_keys, slot)
        if found == np.uint64(0):
            return NO_RANK
        if found == key:
            return i64(v.more_ranks, slot)
        slot = (slot + 1) & v.more_mask


@helper
def join(v: Any, left: int, right: int) -> Any:
    """What two neighbours make and the rank of that, NO_RANK if they do not join."""
    number = u64(v.numbers, left) + u64(v.powers, left) * u64(v.numbers, right)
    id = find_id(v, number)
    if id < 0:
        return id, NO_RANK
    size = np.int64(i32(v.sizes, left))
    if np.int64(i32(v.sizes, id)) != size + np.int64(i32(v.sizes, right)):
        return id, NO_RANK
    cut = np.int64(i32(v.cuts, id))
    if cut == size or cut < 0:
        return id, i64(v.ranks, id)
    if v.more_mask == 0:
        return id, NO_RANK
    return id, _more_rank(v, id, size)


@helper
def merge(v: Any, s: Any, n: int) -> int:
    """Join the n symbols of a word, the lowest rank first, of equal ones the leftmost; how many are left."""
    symbols, made, ranks = s.symbols, s.made, s.ranks
    if v.whole != 0:
        number = np.uint64(0)
        for i in range(n - 1, -1, -1):
            number = u64(v.numbers, symbols[i]) + u64(v.powers, symbols[i]) * number
        id = find_id(v, number)
        if id >= 0:
            symbols[0] = id
            return 1
    for i in range(n - 1):
        made[i], ranks[i] = join(v, symbols[i], symbols[i + 1])
    while n > 1:
        best = NO_RANK
        at = 0
        for i in range(n - 1):
            if ranks[i] < best:
                best = ranks[i]
                at = i
        if best == NO_RANK:
            break
        symbols[at] = made[at]
        n -= 1
        for i in range(at + 1, n):
            symbols[i] = symbols[i + 1]
        for i in range(at, n - 1):
            made[i] = made[i + 1]
            ranks[i] = ranks[i + 1]
        if at > 0:
            made[at - 1], ranks[at - 1] = join(v, symbols[at - 1], symbols[at])
        if at < n - 1:
            made[at], ranks[at] = join(v, symbols[at], symbols[at + 1])
    return n
