"""Models that repeat themselves without end: when a text has turned into a loop."""

from __future__ import annotations

from ...runtime.model.stop_strings import borders

LEAST_TURNS = 8  # of the loop
LEAST_CHARACTERS = 500  # that all turns together have: a ruler or a table is no loop yet
LOOKED_AT = 8192  # characters at the end, so that a turn may have up to a thousand
EVERY = 256  # characters


class LoopWatch:
    """Is given a text piece by piece; says when its end is one passage, at least eight times in a row."""

    def __init__(self) -> None:
        self._end = ""
        self._new = 0

    def push(self, piece: str) -> bool:
        self._end = (self._end + piece)[-LOOKED_AT:]
        self._new += len(piece)
        if self._new < EVERY:
            return False
        self._new = 0
        return in_a_loop(self._end)


def in_a_loop(text: str) -> bool:
    """Whether some end of `text` is long enough and repeats itself often enough.

    Ends are beginnings of the text backwards, and the shortest period of each is its length less its border.
    """
    return any(
        length >= max(LEAST_CHARACTERS, LEAST_TURNS * (length - border))
        for length, border in enumerate(borders(text[::-1]), 1)
    )
