"""Chunks of text for vocabularies that spell a space as U+2581 ("metaspace"), as SentencePiece's do."""

from __future__ import annotations

import re

import numpy as np

from ..strings import Strings

SPACE = "\u2581"
MOST_JOINS = 64
_LONGEST = 4  # bytes of a character
_BLOCK = 1 << 20  # bytes of pieces that are looked at together


class PartsAtMetaspace:
    """Cuts in front of each run of U+2581, but not after those characters that precede one inside a piece.

    No merge can cross such a cut, so the ids are those of the whole text, and words can be remembered.
    """

    def __init__(self, joins: frozenset[str]) -> None:
        self.joins = joins
        joined_on = f"(?:(?<=[{''.join(map(re.escape, sorted(joins)))}]){SPACE}++)?" if joins else ""
        word = f"(?:[^{SPACE}]++{joined_on})"
        self._parts = re.compile(f"{SPACE}++{word}*+|{word}++")

    def __call__(self, text: str) -> list[str]:
        return self._parts.findall(text)


def parts_at_metaspace(pieces: Strings) -> PartsAtMetaspace | None:
    """How to cut texts for these pieces; None if too many characters precede U+2581."""
    joins: set[str] = set()
    raw = np.concatenate([np.zeros(_LONGEST, np.uint8), pieces.raw])
    for start in range(_LONGEST, len(raw), _BLOCK):
        joins.update(_before_spaces(raw[start - _LONGEST : start + _BLOCK + 2]))
        if len(joins) > MOST_JOINS:
            return None
    return PartsAtMetaspace(frozenset(joins))


def _before_spaces(raw: np.ndarray) -> set[str]:
    """The characters in front of each U+2581 that begins behind the first _LONGEST bytes of UTF-8, uint8 [n];
    but not U+2581 itself and the separator NUL."""
    lead, middle, last = SPACE.encode()
    text = raw[_LONGEST:]
    spaces = _LONGEST + np.flatnonzero((text[:-2] == lead) & (text[1:-1] == middle) & (text[2:] == last))
    # The character's bytes from the last one on: continuation bytes, and one that is none.
    code = np.zeros(len(spaces), np.uint32)
    left = np.ones(len(spaces), bool)
    for n in range(_LONGEST):
        byte = raw[spaces - 1 - n]
        code |= np.where(left, byte, 0).astype(np.uint32) << np.uint32(8 * n)
        left &= byte & 0xC0 == 0x80
    found = {bytes(c for c in reversed(c.tobytes()) if c).decode() for c in np.unique(code).astype("<u4")}
    return found - {SPACE, ""}
