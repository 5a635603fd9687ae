"""The compiled encoder: text to ids where it is ASCII, and what that needs to know of a vocabulary.

Only who compiles it imports this module, and Numba with it. `records.py` says what the fields are,
`compiled.py` fills them. The NumPy twin is `batch.py`, the pure Python one `merging.py`.

A text is cut into parts where the patterns always cut it. A part that was seen before is found by a hash; a
new one is cut into words by `words.Program`, and words are merged. Parts with other than ASCII characters,
long ones and those with bytes that the vocabulary lacks are left to others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from .records import (
    CALL,
    CUT_BITS,
    ENTER_MERGES,
    ENTER_MORE,
    ENTER_PIECES,
    ENTERING,
    FIND,
    LONGEST,
    MERGE,
    MERGING,
    NO_RANK,
    PART,
    SCRATCH,
    VOCABULARY,
)

_MIX = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x100000001B3)
_MOST_PROBES = 64
_SPACE = 0x20
_NO_WORD = np.int64(-1)
_OPTIONS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_helper = njit(nogil=True, error_model="numpy", forceinline=True, **_OPTIONS)


@intrinsic
def _as_pointer(typingctx: Any, address: Any) -> Any:
    """An address as the pointer that `carray` takes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


_pointer: Any = _as_pointer


def _reader(dtype: Any) -> Any:
    """A compiled accessor: item i of the array at an address."""

    @_helper
    def read(address: int, i: int) -> Any:
        return carray(_pointer(address + i * _size), 1, dtype)[0]

    _size = np.dtype(dtype).itemsize
    return read


def _writer(dtype: Any) -> Any:
    @_helper
    def write(address: int, i: int, value: Any) -> None:
        carray(_pointer(address + i * _size), 1, dtype)[0] = value

    _size = np.dtype(dtype).itemsize
    return write


_u8, _i32, _i64, _u64 = _reader(np.uint8), _reader(np.int32), _reader(np.int64), _reader(np.uint64)
_put_u8, _put_i32, _put_i64, _put_u64 = (
    _writer(np.uint8),
    _writer(np.int32),
    _writer(np.int64),
    _writer(np.uint64),
)
_vocabulary_at, _call_at, _merging_at = _reader(VOCABULARY), _reader(CALL), _reader(MERGING)
_entering_at, _part_at, _scratch_at = _reader(ENTERING), _reader(PART), _reader(SCRATCH)


@_helper
def _slot(number: Any, shift: int) -> Any:
    return np.int64((number * _MIX) >> np.uint64(shift))


@_helper
def _find(v: Any, number: Any) -> Any:
    """The id of the entry with a number, -1 if there is none."""
    slot = _slot(number, v.key_shift)
    while True:
        key = _u64(v.keys, slot)
        if key == np.uint64(0):
            return np.int64(-1)
        if key == number:
            return np.int64(_i32(v.key_ids, slot))
        slot = (slot + 1) & v.key_mask


@_helper
def _more_rank(v: Any, id: int, cut: int) -> Any:
    """The rank of a pair that is not the first that makes its id."""
    key = np.uint64(id << CUT_BITS | cut)
    slot = _slot(key, v.more_shift)
    while True:
        found = _u64(v.more_keys, slot)
        if found == np.uint64(0):
            return NO_RANK
        if found == key:
            return _i64(v.more_ranks, slot)
        slot = (slot + 1) & v.more_mask


@_helper
def _join(v: Any, left: int, right: int) -> Any:
    """What two neighbours make and the rank of that, NO_RANK if they do not join."""
    number = _u64(v.numbers, left) + _u64(v.powers, left) * _u64(v.numbers, right)
    id = _find(v, number)
    if id < 0:
        return id, NO_RANK
    size = np.int64(_i32(v.sizes, left))
    if np.int64(_i32(v.sizes, id)) != size + np.int64(_i32(v.sizes, right)):
        return id, NO_RANK
    cut = np.int64(_i32(v.cuts, id))
    if cut == size or cut < 0:
        return id, _i64(v.ranks, id)
    if v.more_mask == 0:
        return id, NO_RANK
    return id, _more_rank(v, id, size)


@_helper
def _merge(v: Any, s: Any, n: int) -> int:
    """Join the n symbols of a word, the lowest rank first, of equal ones the leftmost; how many are left."""
    symbols, made, ranks = s.symbols, s.made, s.ranks
    if v.whole != 0:
        number = np.uint64(0)
        for i in range(n - 1, -1, -1):
            number = _u64(v.numbers, symbols[i]) + _u64(v.powers, symbols[i]) * number
        id = _find(v, number)
        if id >= 0:
            symbols[0] = id
            return 1
    for i in range(n - 1):
        made[i], ranks[i] = _join(v, symbols[i], symbols[i + 1])
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
            made[at - 1], ranks[at - 1] = _join(v, symbols[at - 1], symbols[at])
        if at < n - 1:
            made[at], ranks[at] = _join(v, symbols[at], symbols[at + 1])
    return n


@_helper
def _is(v: Any, text: int, at: int, character_class: int) -> bool:
    return (_u64(v.classes, _u8(text, at)) >> np.uint64(character_class)) & np.uint64(1) != np.uint64(0)


@_helper
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
            item_class, least, most = _i32(items, 3 * i), _i32(items, 3 * i + 1), _i32(items, 3 * i + 2)
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
                return _NO_WORD
            if counts[i] > np.int64(_i32(items, 3 * i + 1)):
                counts[i] -= 1
                p = begins[i] + counts[i]
                i += 1
                fits = True


@_helper
def _cut(v: Any, s: Any, pattern: int, text: int, begin: int, end: int) -> int:
    """Mark where words begin that a pattern makes of one word; returns the place of the next pattern."""
    marks = s.marks
    at: Any = begin
    n_alternatives = np.int64(_i32(v.program, pattern))
    after: Any = pattern + 1
    for _ in range(n_alternatives):
        after += 2 + 3 * np.int64(_i32(v.program, after))
    while at < end:
        place: Any = pattern + 1
        stop: Any = _NO_WORD
        for _ in range(n_alternatives):
            n_items = np.int64(_i32(v.program, place))
            stop = _matched(
                v, s, v.program + 4 * (place + 2), n_items, _i32(v.program, place + 1), text, at, end
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


@_helper
def _mark_words(v: Any, s: Any, text: int, size: int) -> None:
    """Mark where the words of a part begin, and its end."""
    marks = s.marks
    for i in range(size):
        marks[i] = 0
    marks[0] = marks[size] = 1
    pattern = np.int64(1)
    for _ in range(_i32(v.program, 0)):
        begin = 0
        after: Any = pattern
        while begin < size:
            end = begin + 1
            while marks[end] == 0:
                end += 1
            after = _cut(v, s, pattern, text, begin, end)
            begin = end
        pattern = after


@_helper
def _encode_part(v: Any, s: Any, text: int, size: int, out: int) -> int:
    """The ids of a new part at `out`; how many, or -1 if a byte has no symbol."""
    n_out = 0
    if v.space >= 0:
        n = 0
        i = 0
        while i < size:
            if _u8(text, i) < 0x80:
                symbol = _i32(v.symbols, _u8(text, i))
                i += 1
            else:
                symbol = np.int32(v.space)
                i += 3
            if symbol < 0:
                return -1
            s.symbols[n] = symbol
            n += 1
        n_out = _merge(v, s, n)
        for i in range(n_out):
            _put_i32(out, i, s.symbols[i])
        return n_out
    _mark_words(v, s, text, size)
    begin = 0
    while begin < size:
        n = 0
        while True:
            symbol = _i32(v.symbols, _u8(text, begin + n))
            if symbol < 0:
                return -1
            s.symbols[n] = symbol
            n += 1
            if s.marks[begin + n] != 0:
                break
        begin += n
        n = _merge(v, s, n)
        for i in range(n):
            _put_i32(out, n_out + i, s.symbols[i])
        n_out += n
    return n_out


@_helper
def _seen(v: Any, key: int, text: int, size: int) -> Any:
    """The place of a part that was seen before, -1 for a new one, -2 for one that cannot be kept."""
    slot = key & v.slot_mask
    for _ in range(_MOST_PROBES):
        place = np.int64(_i32(v.slots, slot)) - 1
        if place < 0:
            return np.int64(-1)
        part = _part_at(v.parts, place)
        if part.hash == key and part.size == size:
            same = True
            for i in range(size):
                same &= _u8(v.bytes + part.at, i) == _u8(text, i)
            if same:
                return place
        slot = (slot + 1) & v.slot_mask
    return np.int64(-2)


@_helper
def _keep(v: Any, key: int, text: int, size: int, ids: int, n_ids: int) -> None:
    """Remember what became of a part. When there is no room, all are forgotten."""
    if v.n_parts == v.most_parts or v.n_bytes + size > v.most_bytes or v.n_ids + n_ids > v.most_ids:
        v.n_parts = v.n_bytes = v.n_ids = 0
        for i in range(v.slot_mask + 1):
            _put_i32(v.slots, i, np.int32(0))
    part = _part_at(v.parts, v.n_parts)
    part.hash, part.at, part.size, part.ids_at, part.n_ids = key, v.n_bytes, size, v.n_ids, n_ids
    for i in range(size):
        _put_u8(v.bytes + v.n_bytes, i, _u8(text, i))
    for i in range(n_ids):
        _put_i32(v.ids, v.n_ids + i, _i32(ids, i))
    slot = key & v.slot_mask
    while _i32(v.slots, slot) != 0:
        slot = (slot + 1) & v.slot_mask
    v.n_parts += 1
    v.n_bytes += size
    v.n_ids += n_ids
    _put_i32(v.slots, slot, np.int32(v.n_parts))


@_helper
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


@_helper
def _byte_before(text: int, at: int, stop: int) -> Any:
    return np.int64(_u8(text, at)) if at < stop else 0


@_helper
def _space_at(text: int, at: int, stop: int) -> bool:
    return _is_space(
        np.int64(_u8(text, at)), _byte_before(text, at + 1, stop), _byte_before(text, at + 2, stop)
    )


@_helper
def _space_before(text: int, at: int, begin: int) -> bool:
    """Whether the character that ends at `at` is white space; all of them have 1, 2 or 3 bytes."""
    first = at - 1
    while first > begin and first > at - 4 and _u8(text, first) & 0xC0 == 0x80:
        first -= 1
    return _space_at(text, first, at)


@_helper
def _is_mark(text: int, at: int, stop: int) -> bool:
    """Whether U+2581 begins here."""
    return at + 2 < stop and _u8(text, at) == 0xE2 and _u8(text, at + 1) == 0x96 and _u8(text, at + 2) == 0x81


@_helper
def _encode_text(v: Any, c: Any, s: Any, begin: int, stop: int) -> None:
    at = begin
    while at < stop:
        plain = True
        key = np.uint64(v.seed)
        end = at
        while True:
            byte = _u8(c.text, end)
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
                if _is_mark(c.text, end, stop) and byte < 0x80 and _u8(v.joins, byte) == 0:
                    break
            elif (
                _u8(c.text, end) == _SPACE
                and end + 1 < stop
                and not _space_before(c.text, end, begin)
                and not _space_at(c.text, end + 1, stop)
            ):
                break
        size = end - at
        n = np.int64(-1)
        if plain and size <= LONGEST:
            hashed = np.int64(key ^ (key >> np.uint64(29)))
            place = _seen(v, hashed, c.text + at, size)
            out = c.out + 4 * c.n_out
            if place >= 0:
                part = _part_at(v.parts, place)
                n = part.n_ids
                for i in range(n):
                    _put_i32(out, i, _i32(v.ids, part.ids_at + i))
            else:
                n = _encode_part(v, s, c.text + at, size, out)
                if n >= 0 and place == -1:
                    _keep(v, hashed, c.text + at, size, out, n)
        if n >= 0:
            c.n_out += n
        else:
            _put_i64(c.left, 3 * c.n_left, c.n_out)
            _put_i64(c.left, 3 * c.n_left + 1, at)
            _put_i64(c.left, 3 * c.n_left + 2, end)
            c.n_left += 1
        at = end


@_helper
def _encode(v: Any, c: Any) -> None:
    s = _scratch_at(c.scratch, 0)
    for item in range(c.n_items):
        begin, stop = _i64(c.items, 2 * item), _i64(c.items, 2 * item + 1)
        if begin >= 0:
            _encode_text(v, c, s, begin, stop)
        else:
            _put_i32(c.out, c.n_out, stop)
            c.n_out += 1


@_helper
def _merge_words(v: Any, m: Any) -> None:
    s = _scratch_at(m.scratch, 0)
    at = np.int64(0)
    n_out = np.int64(0)
    for word in range(m.n):
        size = _i64(m.sizes, word)
        if _u8(m.fit, word) != 0:
            for i in range(size):
                s.symbols[i] = _i64(m.symbols, at + i)
            n = _merge(v, s, size)
            for i in range(n):
                _put_i32(m.out, n_out + i, s.symbols[i])
            _put_i64(m.counts, word, n)
            n_out += n
        at += size


@_helper
def _number(v: Any, raw: int, begin: int, stop: int) -> Any:
    """The number of a text and the base to the power of its size."""
    number = np.uint64(0)
    power = np.uint64(1)
    for at in range(begin, stop):
        number += _u64(v.values, _u8(raw, at)) * power
        power *= np.uint64(v.base)
    return number, power


@_helper
def _find_texts(v: Any, e: Any) -> None:
    for i in range(e.n):
        number, _ = _number(v, e.raw, _i64(e.starts, i), _i64(e.stops, i))
        _put_i64(e.ids, i, _find(v, number))


@_helper
def _enter_pieces(v: Any, e: Any) -> None:
    """Fill the table of entries. Of a text that is there twice the last counts."""
    for i in range(e.n):
        id = _i64(e.ids, i)
        if id < 0:
            continue
        begin, stop = _i64(e.starts, i), _i64(e.stops, i)
        number, power = _number(v, e.raw, begin, stop)
        _put_u64(v.numbers, id, number)
        _put_u64(v.powers, id, power)
        _put_i32(v.sizes, id, stop - begin)
        if number == np.uint64(0):
            e.failed = 1
            return
        slot = _slot(number, v.key_shift)
        while _u64(v.keys, slot) != np.uint64(0) and _u64(v.keys, slot) != number:
            slot = (slot + 1) & v.key_mask
        _put_u64(v.keys, slot, number)
        _put_i32(v.key_ids, slot, id)


@_helper
def _enter_merges(v: Any, e: Any) -> None:
    """Fill in ranks and where pairs are cut; e.more are those that make what another one makes."""
    base = np.uint64(v.base)
    for rank in range(e.n):
        begin, stop = _i64(e.starts, rank), _i64(e.stops, rank)
        number = np.uint64(0)
        power = np.uint64(1)
        cut = np.int64(-1)
        for at in range(begin, stop):
            byte = _u8(e.raw, at)
            if byte == _SPACE:
                if cut >= 0:
                    e.failed = 1
                    return
                cut = at - begin
            else:
                number += _u64(v.values, byte) * power
                power *= base
        if cut <= 0 or cut == stop - begin - 1 or cut >> CUT_BITS != 0:
            e.failed = 1
            return
        id = _find(v, number)
        if id < 0:
            continue
        if _i64(v.ranks, id) == NO_RANK or np.int64(_i32(v.cuts, id)) == cut:
            _put_i64(v.ranks, id, rank)
            _put_i32(v.cuts, id, cut)
        else:
            _put_i64(e.more, 2 * e.n_more, id << CUT_BITS | cut)
            _put_i64(e.more, 2 * e.n_more + 1, rank)
            e.n_more += 1


@_helper
def _enter_more(v: Any, e: Any) -> None:
    """Fill the table of further pairs; the last of equal ones counts."""
    for i in range(e.n_more):
        key = np.uint64(_i64(e.more, 2 * i))
        slot = _slot(key, v.more_shift)
        while _u64(v.more_keys, slot) != np.uint64(0) and _u64(v.more_keys, slot) != key:
            slot = (slot + 1) & v.more_mask
        _put_u64(v.more_keys, slot, key)
        _put_i64(v.more_ranks, slot, _i64(e.more, 2 * i + 1))


def tokenizer_kernel(arguments: int, step: int, operation: int) -> None:
    """Do `operation` with the VOCABULARY at `arguments` and the record at `step`."""
    v = _vocabulary_at(arguments, 0)
    if operation == MERGE:
        _merge_words(v, _merging_at(step, 0))
    elif operation == FIND:
        _find_texts(v, _entering_at(step, 0))
    elif operation == ENTER_PIECES:
        _enter_pieces(v, _entering_at(step, 0))
    elif operation == ENTER_MERGES:
        _enter_merges(v, _entering_at(step, 0))
    elif operation == ENTER_MORE:
        _enter_more(v, _entering_at(step, 0))
    else:
        _encode(v, _call_at(step, 0))
