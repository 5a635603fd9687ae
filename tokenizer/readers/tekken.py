"""Mistral's tekken.json: byte strings by rank, a pattern, and the control tokens in front of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..added import AddedToken
from ..bpe.bpe import BPE
from ..bpe.ranks import NO_RANK, ProductRanks
from ..core import Tokenizer, TokenizerSettings
from ..detokenize import Detokenizer
from ..errors import TokenizerError
from ..pretokenize.patterns import known
from ..pretokenize.pretokenize import BYTE_SYMBOLS, Split, parts_at_spaces
from ..strings import Lookup
from .components import PATTERN_SECONDS, value
from .endings import end_ids
from .settings import MAX_VOCAB, bounded

MAX_CONTROL = 1 << 14  # control tokens; there are 1000
LONGEST_WORD = 1 << 10  # bytes; words have up to 128
_SYMBOLS = dict(enumerate(BYTE_SYMBOLS))
# The control tokens of files that name none (version 3), by id.
_CONTROL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
)


def tekken_tokenizer(content: Mapping[str, Any], templates: Mapping[str, str]) -> Tokenizer:
    """The tokenizer of a tekken.json that has been read. TokenizerError if it contradicts itself.

    As in tiktoken, any two neighbours that make an entry may join, the one of lowest rank first.
    """
    control, words = tekken_words(content)
    n_control = len(control)
    config = value(content, "config", dict)
    vocab = Lookup(zip(words, range(n_control, n_control + len(words)), strict=True))
    pattern = value(config, "pattern", str)
    step = Split(pattern, seconds=None if known(pattern) else PATTERN_SECONDS)
    ids = {text: id for id, text in enumerate(control)}
    bos, eos = ids.get("<s>"), ids.get("</s>")
    return Tokenizer(
        n_control + len(words),
        bounded(AddedToken(id, text, special=True) for id, text in enumerate(control)),
        BPE(vocab, _ranks(vocab), "", byte_level=True, ignore_merges=True),
        step,
        Detokenizer([*control, *words], byte_level=True),
        TokenizerSettings(
            bos, eos, add_bos=bos is not None, end_ids=end_ids(ids, eos), chat_templates=templates
        ),
        parts=parts_at_spaces([step]),
    )


def tekken_words(content: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The control tokens of a tekken.json, and its words in byte symbols, by id. TokenizerError."""
    config = value(content, "config", dict)
    n_control, size = (value(config, f"default_{key}", int) for key in ("num_special_tokens", "vocab_size"))
    if not 0 <= n_control <= min(size, MAX_CONTROL) or size > MAX_VOCAB:
        raise TokenizerError(f"tekken.json: {n_control} control tokens of {size}")
    entries = value(content, "vocab", list)[: size - n_control]
    try:
        raw = [base64.b64decode(entry["token_bytes"], validate=True) for entry in entries]
    except (TypeError, KeyError, binascii.Error, ValueError):
        raise TokenizerError("tekken.json: vocab has an entry without token_bytes in base64") from None
    if max(map(len, raw), default=0) > LONGEST_WORD:
        raise TokenizerError(f"tekken.json: a word of over {LONGEST_WORD} bytes")
    words = [text.decode("latin-1").translate(_SYMBOLS) for text in raw]
    control = [f"<SPECIAL_{id}>" for id in range(n_control)]
    control[: len(_CONTROL)] = _CONTROL[:n_control]
    for item in [] if content.get("special_tokens") is None else value(content, "special_tokens", list):
        id = value(item, "rank", int) if isinstance(item, dict) else -1
        if not 0 <= id < n_control:
            raise TokenizerError("tekken.json: a special token has no valid rank")
        control[id] = value(item, "token_str", str)
    return control, words


def _ranks(vocab: Lookup) -> Lookup:
    return ProductRanks(
        vocab,
        "",
        lambda id, pair: id if id >= 0 else NO_RANK,
        np.arange(max(vocab.values(), default=-1) + 1),
    )
