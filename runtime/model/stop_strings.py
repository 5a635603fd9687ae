"""Stop strings in a stream of text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable


class StopFilter:
    """Passes text on up to the first stop string; an end of the text that may begin one is held back.

    How the text is cut into pieces makes no difference. The stop string that is complete first ends the text,
    and of several that end at the same character the longest. Each character is compared once per stop
    string (Knuth, Morris & Pratt 1977, "Fast pattern matching in strings").
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.stopped: str | None = None  # the stop string that ended the text
        self._stops = [(stop, borders(stop)) for stop in sorted(set(stops), key=len, reverse=True)]
        self._matched = [0] * len(self._stops)  # length of each one's longest prefix at the text's end
        self._held = ""

    def push(self, text: str) -> str:
        """Take a piece of text; returns the text that is certain to come before any stop string.

        "" after a stop string.
        """
        if self.stopped is not None:
            return ""
        if not self._stops:
            return text
        for end, char in enumerate(text, start=1):
            for i, (stop, borders) in enumerate(self._stops):
                matched = self._matched[i]
                while matched and stop[matched] != char:
                    matched = borders[matched - 1]
                if stop[matched] == char:
                    matched += 1
                self._matched[i] = matched
                if matched == len(stop):
                    self.stopped = stop
                    before = self._held + text[:end]
                    self._held = ""
                    return before[: -len(stop)]
        whole = self._held + text
        free = len(whole) - max(self._matched)
        self._held = whole[free:]
        return whole[:free]

    def flush(self) -> str:
        """The text that was held back, when no more text follows."""
        held, self._held = self._held, ""
        return held


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
