"""From token ids to text: whole characters, up to the first stop string, special tokens apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...tokenizer import Tokenizer
from ...tokenizer.incremental import IncrementalDecoder
from .stop_strings import Run, StopFilter


class TokenReader:
    """Takes the tokens of one answer, one after another, and gives their text in runs.

    A run is (text, True), or (spelling, False) of a special token, which people do not see. With
    `skip_special` false special tokens are text like any other. After a stop string there is nothing more.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str], skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder(tokenizer, skip_special=skip_special)
        stops = list(stops)
        self.may_stop = bool(stops)  # whether a stop string may end the text
        self._stops = StopFilter(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._stops.stopped is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the text."""
        return self._stops.stopped

    def push(self, token: int) -> list[Run]:
        """The text that has become certain with this token; often none within a character."""
        if self._decoder.skip_special and self._tokenizer.is_special(token):
            return self._stops.push_run(self._tokenizer.token_text(token), shown=False)
        return self._stops.push_run(self._decoder.push(token))

    def push_all(self, tokens: Sequence[int]) -> list[Run]:
        """As `push` of each, with runs that follow one another joined. Where there are stop strings, nobody
        knows with which of the tokens one was complete."""
        if not any(map(self._tokenizer.is_special, tokens)):
            return self._stops.push_run(self._decoder.push_all(tokens))
        return [run for token in tokens for run in self.push(token)]

    def finish(self) -> list[Run]:
        """The text that was held back, when no more tokens follow."""
        runs = self._stops.push_run(self._decoder.flush())
        return runs + self._stops.flush_runs()


def shown(runs: list[Run]) -> str:
    """The text that people see of some runs."""
    return "".join([text for text, is_shown in runs if is_shown])
