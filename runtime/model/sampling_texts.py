"""Texts in sampling parameters become the ids that an engine takes."""

from __future__ import annotations

from dataclasses import replace

from ...tokenizer import Tokenizer
from ..engine.sampling.params import SamplingParams

MOST_BYTES = 40  # of a sequence breaker; the rest does not count
MOST_TAIL = 20  # tokens of a sequence breaker behind its first


def with_ids(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """`params` with ids for the texts of `logit_bias`, and for those of `dry_sequence_breakers` if DRY is on.

    Raises ValueError for a bias whose text is not one token, or whose id is not in the vocabulary.
    """
    biases = {}
    for key, bias in params.logit_bias:
        id_ = _only_token(key, tokenizer) if isinstance(key, str) else key
        if id_ >= tokenizer.vocab_size:
            raise ValueError(f"logit_bias: there is no token {id_}, only {tokenizer.vocab_size}")
        biases[id_] = bias
    breakers: tuple[str | tuple[int, ...], ...] = params.dry_sequence_breakers
    if params.has_dry:
        texts = [breaker for breaker in breakers if isinstance(breaker, str)]
        given = [breaker for breaker in breakers if not isinstance(breaker, str)]
        breakers = (*given, *breaker_ids(texts, tokenizer))
    return replace(params, logit_bias=tuple(biases.items()), dry_sequence_breakers=breakers)


def needs_ids(params: SamplingParams) -> bool:
    """Whether there are texts, or ids to be checked, for `with_ids`."""
    return bool(params.logit_bias) or (params.has_dry and any(map(_is_text, params.dry_sequence_breakers)))


def _is_text(breaker: str | tuple[int, ...]) -> bool:
    return isinstance(breaker, str)


def _only_token(text: str, tokenizer: Tokenizer) -> int:
    """The id of a text that is one token, maybe a special one."""
    ids = tokenizer.encode(text, special=True)
    if len(ids) != 1:
        raise ValueError(f"logit_bias: {text!r:.60} is {len(ids)} tokens, not one; name an id instead")
    return ids[0]


def breaker_ids(texts: list[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The sequences of ids in which one of `texts` may stand, each only once, as llama.cpp finds them.

    A token that has the whole text is one; a token that ends with its beginning, and the tokens of the rest,
    is another. Of each text only MOST_BYTES count, and of the rest MOST_TAIL tokens.
    """
    wanted = [text.encode("utf-8", "replace")[:MOST_BYTES] for text in texts]
    tails: dict[bytes, tuple[int, ...]] = {}
    found: dict[tuple[int, ...], None] = {}
    for id_ in range(tokenizer.vocab_size):
        spelled = tokenizer.token_text(id_) if tokenizer.is_special(id_) else ""
        token = spelled.encode() or tokenizer.token_bytes(id_)
        for text in wanted:
            if text in token:
                found[id_,] = None
                continue
            for n in range(1, min(len(text) - 1, len(token)) + 1):
                if token.endswith(text[:n]):
                    rest = text[n:]
                    if rest not in tails:
                        tails[rest] = tuple(tokenizer.encode(rest.decode(errors="replace"))[:MOST_TAIL])
                    found[id_, *tails[rest]] = None
    return list(found)
