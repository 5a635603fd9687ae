"""Text from ids that arrive one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .core import Tokenizer


class IncrementalDecoder:
    """Gives out text as soon as its characters are whole.

    What push() and flush() return, joined, is tokenizer.decode() of all ids, without special tokens if
    `skip_special`.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self.skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True

    def push(self, id: int) -> str:
        """The text that has become certain with this token; often "" within a character."""
        if self.skip_special and self._tokenizer.is_special(id):
            return ""
        return self._begin(self._decoder.decode(self._tokenizer.token_bytes(id)))

    def push_all(self, ids: Iterable[int]) -> str:
        """The text that has become certain with several tokens, none of which is special."""
        return self._begin(self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, ids))))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole. Then starts afresh."""
        rest = self._begin(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        self._at_start = True
        return rest

    def _begin(self, text: str) -> str:
        """Without the space that the encoder puts at the start of a text."""
        if self._at_start and text:
            self._at_start = False
            text = self._tokenizer.strip_start(text)
        return text
