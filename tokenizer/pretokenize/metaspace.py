"""Chunks of text for vocabularies that spell a space as U+2581 ("metaspace"), as SentencePiece's do."""

from __future__ import annotations

import re

import numpy as np

from ..strings import Strings

SPACE = "\u2581"


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
    raw = pieces.raw
    lead, middle, last = SPACE.encode()
    spaces = np.flatnonzero((raw[:-2] == lead) & (raw[1:-1] == middle) & (raw[2:] == last))
    begins = raw[spaces - 1] == 0
    begins[1:] |= spaces[1:] == spaces[:-1] + 3
    joins = {pieces.blob[max(0, i - 4) : i].decode(errors="ignore")[-1] for i in spaces[~begins].tolist()}
    return PartsAtMetaspace(frozenset(joins)) if len(joins) <= 64 else None
