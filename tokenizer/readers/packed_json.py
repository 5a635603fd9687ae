"""The vocabulary and the merges of a tokenizer.json without an object for each of their strings.

A tokenizer.json has up to 30 MB, nearly all of it in these two places, and is nearly always written by the
same program. Where it is laid out as usual its strings are cut out with array operations; any other
layout is left to the `json` module, also to find out what is wrong with it.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import numpy as np

from ..strings import Strings
from .files import CONFIG_LIMITS, parse_object
from .settings import LONGEST_PIECE, MAX_MERGES, MAX_VOCAB

LEAST_BYTES = 1 << 18  # smaller files gain nothing
MAX_ESCAPES = 1 << 18  # each is looked at in Python; files have up to 2^15

_VOCAB = re.compile(rb'(?<!\\)"vocab"\s*:\s*\{')
_MERGES = re.compile(rb'\}\s*,\s*"merges"\s*:\s*\[')
_ESCAPED_QUOTE = re.compile(rb'\\[\\"]')
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u....|.)", re.DOTALL)
_SIMPLE = {b'\\"': b'"', b"\\\\": b"\\", b"\\/": b"/", b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t"}
_WHITE = b" \t\r\n"
_NUMBERS = b",0123456789"
_QUOTE, _SPACE, _FIRST_TEXT = 0x22, 0x20, 0x20


class PackedVocabulary(NamedTuple):
    """`pieces` by id, `merges` as "a b" in order, and the `rest` of the file with both of them empty."""

    pieces: Strings
    merges: Strings
    rest: dict[str, Any]


def read_packed(raw: bytes) -> PackedVocabulary | None:
    """The parts of a tokenizer.json whose ids are 0, 1, 2, …; None where it is laid out in another way."""
    start = _VOCAB.search(raw)
    between = start and _MERGES.search(raw, start.end())
    stop = raw.rfind(b"]")
    if len(raw) < LEAST_BYTES or not start or not between or stop < between.end():
        return None
    try:
        without = raw[: start.end()] + raw[between.start() : between.end()] + raw[stop:]
        rest = parse_object(without, "tokenizer.json", CONFIG_LIMITS.n_marks)
        pieces = _vocabulary(raw[start.end() : between.start()])
        merges = _merges(raw[between.end() : stop])
    except ValueError:
        return None
    if pieces is None or merges is None:
        return None
    model = rest.get("model")
    if not isinstance(model, dict) or model.get("vocab") != {} or model.get("merges") != []:
        return None
    return PackedVocabulary(pieces, merges, rest)


def _vocabulary(raw: bytes) -> Strings | None:
    """{"a": 0, "b": 1, …} without the braces."""
    strings, outside = _strings(raw)
    n = strings.count(0) - 1
    if n > MAX_VOCAB:
        return None
    numbers = outside.translate(None, b":")
    if n < 1 or len(outside) != len(numbers) + n or numbers.count(b",") != n - 1 or numbers.strip(_NUMBERS):
        return None
    digits = sum(max(0, n - 10**k) for k in range(1, 8)) + n
    if len(numbers) != digits + n - 1 or not np.array_equal(
        np.array(numbers.split(b","), "S8").astype(np.int64), np.arange(n)
    ):
        return None
    return _packed(strings, n)


def _merges(raw: bytes) -> Strings | None:
    """["a b", …] or [["a", "b"], …] without the outer brackets."""
    strings, outside = _strings(raw)
    n = strings.count(0) - 1
    if n > 2 * MAX_MERGES:
        return None
    if n > 0 and outside == b"[,]," * (n // 2 - 1) + b"[,]" and n % 2 == 0:
        n //= 2
        text = np.frombuffer(strings, np.uint8).copy()
        text[np.flatnonzero(text == 0)[1:-1:2]] = _SPACE
        strings = text.tobytes()
    elif outside != b"," * (n - 1):
        return None
    return _packed(strings, n) if strings.count(_SPACE) == n else None


def _strings(raw: bytes) -> tuple[bytes, bytes]:
    """The strings, still escaped, a zero byte before, between and after them; and what is outside of them."""
    text = np.frombuffer(raw, np.uint8).copy()
    quotes = text == _QUOTE
    for n, escape in enumerate(_ESCAPED_QUOTE.finditer(raw)):
        quotes[escape.start() + 1] = False
        if n > MAX_ESCAPES:
            raise ValueError("many escapes")
    inside = (np.cumsum(quotes, dtype=np.uint8) & 1).view(bool)  # from an opening quote up to a closing one
    if inside[-1:].any():
        raise ValueError("a string without an end")
    outside = text[~(inside | quotes)].tobytes().translate(None, _WHITE)
    text[quotes] = 0
    strings = text[inside]
    if np.count_nonzero(strings < _FIRST_TEXT) != np.count_nonzero(quotes) // 2:
        raise ValueError("a control character in a string")
    return strings.tobytes() + b"\0", outside


def _packed(strings: bytes, n: int) -> Strings | None:
    if b"\\" in strings:
        strings, n_escapes = _ESCAPE.subn(_unescaped, strings, MAX_ESCAPES)
        if n_escapes == MAX_ESCAPES:
            return None
    strings.decode()  # or UnicodeDecodeError
    packed = Strings(strings)
    usual = len(packed) == n and int((packed.stops - packed.starts).max(initial=0)) <= LONGEST_PIECE
    return packed if usual else None


def _unescaped(escape: re.Match[bytes]) -> bytes:
    simple = _SIMPLE.get(escape[0])
    return simple if simple is not None else str(json.loads(b'"' + escape[0] + b'"')).encode()
