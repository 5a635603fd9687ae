"""Detects a model that repeats itself without end."""

from __future__ import annotations

from ...runtime.answers.stop_strings import borders

MIN_REPEATS = 8  # of a passage, one after the other
MIN_CHARACTERS = 500  # of all repeats together: a ruler or a table is no repetition
WINDOW = 8192  # characters at the end of the text, so that a passage may have up to a thousand
STRIDE = 256  # new characters between two checks


class RepetitionDetector:
    """Reads a text piece by piece; `push` is True once it ends with one passage at least eight times."""

    def __init__(self) -> None:
        self._end = ""
        self._new = 0

    def push(self, piece: str) -> bool:
        self._end = (self._end + piece)[-WINDOW:]
        self._new += len(piece)
        if self._new < STRIDE:
            return False
        self._new = 0
        return ends_in_repetition(self._end)


def ends_in_repetition(text: str) -> bool:
    """Whether some suffix of `text` is a passage repeated MIN_REPEATS times over at least MIN_CHARACTERS.

    Suffixes are prefixes of the reversed text; the shortest period of each is its length minus its border.
    """
    return any(
        length >= max(MIN_CHARACTERS, MIN_REPEATS * (length - border))
        for length, border in enumerate(borders(text[::-1]), 1)
    )
