"""A model's vocabulary as llguidance knows it, and the grammars compiled for it."""

from __future__ import annotations

import re
from collections.abc import Collection
from threading import Lock
from typing import TYPE_CHECKING

from ....tokenizer import Tokenizer
from ...engine.errors import ConstraintError
from .library import llguidance

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_GRAMMARS = 64  # that are kept compiled
_MARKER = re.compile(r"<.+>|\[[A-Z_/]+\]")  # added tokens that are marks of a chat format


def mark_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The added tokens that are marks of a chat format, and no text."""
    return frozenset(t.id for t in tokenizer.added_tokens if t.special or _MARKER.fullmatch(t.content))


class Vocabulary:
    """The tokens of a model in the trie from which llguidance computes masks.

    Making it takes a second for a vocabulary of 150,000 tokens, and no library can store it; so it is made
    when it is first needed, once for each model. `end_ids` end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self.tokenizer = tokenizer
        self.end_ids = frozenset(i for i in end_ids if i < tokenizer.vocab_size)
        self._lock = Lock()
        self._trie: LLTokenizer | None = None
        self._compiled: dict[str, LLMatcher] = {}  # the latest last

    def matcher(self, grammar: str) -> LLMatcher:
        """The state before the first token of an answer. ConstraintError for a grammar that is refused."""
        with self._lock:
            found = self._compiled.pop(grammar, None)
            if found is None:
                found = llguidance().LLMatcher(self._tokens(), grammar, log_level=0)
                if found.is_error():
                    raise ConstraintError(" ".join(found.get_error().split()))
                while len(self._compiled) >= MOST_GRAMMARS:
                    del self._compiled[next(iter(self._compiled))]
            self._compiled[grammar] = found
            return found.deep_copy()

    def _tokens(self) -> LLTokenizer:
        if self._trie is None:
            library = llguidance()
            words = _Words(self.tokenizer, self.end_ids)
            ends = sorted(self.end_ids)
            self._trie = library.LLTokenizer(library.TokenizerWrapper(words), eos_token=ends)
        return self._trie


class _Words:
    """What llguidance reads of a tokenizer: the bytes of all tokens, which of them are no text, and how
    text is encoded.

    The masks depend on the encoder: where a text is forced, they allow the tokens only that the encoder makes
    of it. It is called while masks are computed.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokenizer.all_token_bytes()
        self._marks = {*mark_ids(tokenizer), *end_ids}
        self.special_token_ids = sorted(self._marks)
        self.eos_token_id = min(end_ids, default=0)
        self.bos_token_id = tokenizer.bos_id
        self(" a")  # what an encoder puts off until it is first used, it shall not do within a mask

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text within another one."""
        given = text.decode(errors="replace") if isinstance(text, bytes) else text
        ids = self._tokenizer.encode_within(given)
        if self._marks.isdisjoint(ids):
            return ids
        # A mark is spelled out in the text, and must be text: cut so that none is found.
        return [id_ for char in given for id_ in self._tokenizer.encode_within(char)]
