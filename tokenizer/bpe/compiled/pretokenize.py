"""Cuts a chunk of ASCII text into words by the pattern tables of `patterns.py`.

`v` is the VOCABULARY record, which has the tables, and `s` SCRATCH, whose `marks` say where words begin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import helper, i32, u8, u64

_NO_MATCH = np.int64(-1)


@helper
def _is(v: Any, text: int, at: int, character_class: int) -> bool:
    return (u64(v.classes, u8(text, at)) >> np.uint64(character_class)) & np.uint64(1) != np.uint64(0)


@helper
def _matched(
    v: Any, s: Any, items: int, n_items: int, before_space: int, text: int, at: int, end: int
) -> Any:
    """Where an alternative whose items are at `items` ends that matches at `at`; -1 if it does not match."""
    begins, counts = s.begins, s.counts
    i = 0
    p = at
    while True:
        fits = True
        if i < n_items:
            item_class, least, most = i32(items, 3 * i), i32(items, 3 * i + 1), i32(items, 3 * i + 2)
            n = 0
            while n < most and p + n < end and _is(v, text, p + n, item_class):
                n += 1
            if n >= least:
                begins[i] = p
                counts[i] = n
                p += n
                i += 1
                continue
            fits = False
        elif before_space == 0 or p == end or _is(v, text, p, 0):
            return p
        else:
            fits = False
        while not fits:  # take back a character of the last item that can do with one less
            i -= 1
            if i < 0:
                return _NO_MATCH
            if counts[i] > np.int64(i32(items, 3 * i + 1)):
                counts[i] -= 1
                p = begins[i] + counts[i]
                i += 1
                fits = True


@helper
def _cut(v: Any, s: Any, pattern: int, text: int, begin: int, end: int) -> int:
    """Mark where words begin that a pattern makes of one word; returns the place of the next pattern."""
    marks = s.marks
    at: Any = begin
    n_alternatives = np.int64(i32(v.program, pattern))
    after: Any = pattern + 1
    for _ in range(n_alternatives):
        after += 2 + 3 * np.int64(i32(v.program, after))
    while at < end:
        place: Any = pattern + 1
        stop: Any = _NO_MATCH
        for _ in range(n_alternatives):
            n_items = np.int64(i32(v.program, place))
            stop = _matched(
                v, s, v.program + 4 * (place + 2), n_items, i32(v.program, place + 1), text, at, end
            )
            if stop > at:
                break
            place += 2 + 3 * n_items
        if stop > at:
            marks[at] = 1
            if stop < end:
                marks[stop] = 1
            at = stop
        else:
            at += 1
    return after


@helper
def mark_words(v: Any, s: Any, text: int, size: int) -> None:
    """Mark where the words of a part begin, and its end."""
    marks = s.marks
    for i in range(size):
        marks[i] = 0
    marks[0] = marks[size] = 1
    pattern = np.int64(1)
    for _ in range(i32(v.program, 0)):
        begin = 0
        after: Any = pattern
        while begin < size:
            end = begin + 1
            while marks[end] == 0:
                end += 1
            after = _cut(v, s, pattern, text, begin, end)
            begin = end
        pattern = after
