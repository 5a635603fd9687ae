"""Stop strings in a stream of text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

Run = tuple[str, bool]  # a text, and whether it is shown or the spelling of a special token


class StopFilter:
    """Passes text on up to the first stop string; an end of the text that may begin one is held back.

    How the text is cut into pieces makes no difference. The stop string that is complete first ends the text,
    and of several that end at the same character the longest. Each character is compared once or twice per
    stop string (Knuth, Morris & Pratt 1977, "Fast pattern matching in strings").

    Special tokens give no text, but a stop string may spell one: it is looked for in the text as a reader
    sees it, and in the same text with the special tokens spelled out.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.stopped: str | None = None  # the stop string that ended the text
        stops = sorted(set(stops), key=len, reverse=True)
        self._shown = [_Matcher(stop) for stop in stops]
        self._spelled = [_Matcher(stop) for stop in stops]
        self._held: list[tuple[str, bool]] = []  # characters that are held back, and whether they are shown
        self._n_hidden = 0  # of them

    def push(self, text: str, shown: bool = True) -> str:
        """Take a piece of text, or with `shown` false the spelling of a special token.

        Returns the text that is certain to come before any stop string; "" after a stop string.
        """
        if not self._shown:
            return text if shown else ""
        return _shown_of(self.push_run(text, shown))

    def push_run(self, text: str, shown: bool = True) -> list[Run]:
        """As `push`, with the special tokens that stand in the text: runs of both kinds, none empty."""
        if self.stopped is not None or not text:
            return []
        if not self._shown:
            return [(text, shown)]
        for char in text:
            self._held.append((char, shown))
            self._n_hidden += not shown
            for visible, spelled in zip(self._shown, self._spelled, strict=True):
                whole = spelled.step(char)
                if whole or (shown and visible.step(char)):
                    self.stopped = spelled.stop
                    return self._release(self._start_of(len(spelled.stop), among_shown=not whole))
        starts = [self._start_of(m.matched, among_shown=True) for m in self._shown if m.matched]
        starts += [self._start_of(m.matched, among_shown=False) for m in self._spelled if m.matched]
        return self._release(min(starts, default=len(self._held)))

    def _start_of(self, n: int, among_shown: bool) -> int:
        """The position among the held characters from which on there are n, or n that are shown."""
        if not among_shown or not self._n_hidden:
            return len(self._held) - n
        position = len(self._held)
        while n:
            position -= 1
            n -= self._held[position][1]
        return position

    def _release(self, n: int) -> list[Run]:
        """Take n of the held characters."""
        free = self._held[:n]
        del self._held[:n]
        self._n_hidden -= sum(not shown for _, shown in free)
        runs = groupby(free, key=lambda held: held[1])
        return [("".join(char for char, _ in run), shown) for shown, run in runs]

    def flush(self) -> str:
        """The text that was held back, when no more text follows."""
        return _shown_of(self.flush_runs())

    def flush_runs(self) -> list[Run]:
        """As `flush`, with the special tokens that stand in the text."""
        return self._release(len(self._held)) if self.stopped is None else []


def _shown_of(runs: Iterable[Run]) -> str:
    return "".join(text for text, shown in runs if shown)


class _Matcher:
    """The length (`matched`) of the longest prefix of a stop string that the text ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._borders = borders(stop)

    def step(self, char: str) -> bool:
        """Take the text's next character; whether the stop string is complete."""
        matched = self.matched
        while matched and self.stop[matched] != char:
            matched = self._borders[matched - 1]
        if self.stop[matched] == char:
            matched += 1
        self.matched = matched
        return matched == len(self.stop)


def borders(stop: str) -> list[int]:
    """For each prefix of `stop` the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        if stop[i] == stop[length]:
            length += 1
        borders[i] = length
    return borders
