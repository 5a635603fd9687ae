"""Texts in sampling parameters become the ids that an engine takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...tokenizer import Tokenizer
from ..engine.sampling.params import SamplingParams

MOST_BYTES = 40  # of a sequence breaker; the rest does not count
MOST_TAIL = 20  # tokens of a sequence breaker behind its first


class SamplingTexts:
    """Looks texts up in a model's vocabulary; what it finds for sequence breakers is kept, since all tokens
    must be looked at. `tokenizer` is only called where there is a text."""

    def __init__(self, tokenizer: Callable[[], Tokenizer], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._breakers: dict[tuple[str, ...], list[tuple[int, ...]]] = {}

    def with_ids(self, params: SamplingParams) -> SamplingParams:
        """`params` with ids for the texts of `logit_bias`, and for those of `dry_sequence_breakers` if DRY is
        on. Raises ValueError for a bias whose text is not one token, or whose id is not in the vocabulary.
        """
        if params.logit_bias:
            biases = tuple((self._id(key), bias) for key, bias in params.logit_bias)
            params = replace(params, logit_bias=biases)
        breakers = params.dry_sequence_breakers
        texts = tuple(breaker for breaker in breakers if isinstance(breaker, str))
        if not params.has_dry or not texts:
            return params
        if texts not in self._breakers:
            self._breakers[texts] = breaker_ids(texts, self._tokenizer())
        given = (breaker for breaker in breakers if not isinstance(breaker, str))
        return replace(params, dry_sequence_breakers=(*given, *self._breakers[texts]))

    def _id(self, key: int | str) -> int:
        """An id, or that of a text that is one token, maybe a special one."""
        if isinstance(key, str):
            ids = self._tokenizer().encode(key, special=True)
            if len(ids) != 1:
                raise ValueError(f"logit_bias: {key!r:.60} is {len(ids)} tokens, not one; name an id instead")
            return ids[0]
        if key >= self._vocab_size:
            raise ValueError(f"logit_bias: there is no token {key}; the vocabulary has {self._vocab_size}")
        return key


def breaker_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The sequences of ids in which one of `texts` may stand, each only once, as llama.cpp finds them.

    A token that has the whole text is one; a token that ends with its beginning, and the tokens of the rest,
    is another. Of each text only MOST_BYTES count, and of the rest MOST_TAIL tokens.
    """
    whole = (text.encode("utf-8", "replace")[:MOST_BYTES] for text in texts)
    wanted = [text.decode(errors="ignore").encode() for text in whole]  # whole characters
    begins = {text[:n] for text in wanted for n in range(1, len(text))}
    some = re.compile(b"|".join([*map(re.escape, wanted), *(re.escape(each) + b"\\Z" for each in begins)]))
    tails: dict[bytes, tuple[int, ...]] = {}
    found: dict[tuple[int, ...], None] = {}
    for id_ in range(tokenizer.vocab_size):
        special = tokenizer.is_special(id_)
        token = tokenizer.token_text(id_).encode() if special else tokenizer.token_bytes(id_)
        if not some.search(token):
            continue
        for text in wanted:
            if text in token:
                found[id_,] = None
                continue
            for n in range(1, min(len(text) - 1, len(token)) + 1):
                if token.endswith(text[:n]):
                    rest = text[n:]
                    if rest not in tails:
                        tails[rest] = _tail(rest, tokenizer)
                    found[id_, *tails[rest]] = None
    return list(found)


def _tail(rest: bytes, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of the rest of a text, which may begin within a character: with tokens for single bytes."""
    n = next((i for i, byte in enumerate(rest) if byte & 0xC0 != 0x80), len(rest))
    of_byte = {}
    if n:
        spelled = ((tokenizer.token_bytes(id_), id_) for id_ in range(tokenizer.vocab_size))
        of_byte = {token[0]: id_ for token, id_ in spelled if len(token) == 1}
    ids = [of_byte[byte] for byte in rest[:n] if byte in of_byte]
    return tuple([*ids, *tokenizer.encode(rest[n:].decode())][:MOST_TAIL])
