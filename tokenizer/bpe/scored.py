"""BPE over a vocabulary of scored pieces, as SentencePiece and GGUF's `llama` tokenizer have it.

Of all neighbours that make a piece, those join first whose piece has the best score. Kudo and Richardson
2018, "SentencePiece: A simple and language independent subword tokenizer and detokenizer for neural text
processing".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from ..strings import NO_ID, Lookup, PackedLookup, Strings
from .bpe import BPE
from .ranks import score_ranks


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` of a GGUF, the same numbers as in SentencePiece's model file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def bpe_from_scores(
    pieces: Strings, scores: np.ndarray, types: np.ndarray, changes: Mapping[str, int]
) -> BPE:
    """SentencePiece's BPE: of all neighbours that make a piece, the best score first.

    `scores` is float [n] and `types` int [n] (TokenType); `changes` are ids by the texts that the vocabulary
    spells in another way.
    """
    usable = np.isin(types, (TokenType.NORMAL, TokenType.USER_DEFINED))
    vocab = PackedLookup(pieces, usable=usable.tobytes())
    vocab.respell(changes)
    unknown = np.flatnonzero(types == TokenType.UNKNOWN)
    by_piece = Lookup((pieces[i], i) for i in np.flatnonzero(types == TokenType.BYTE).tolist())
    return BPE(
        vocab,
        score_ranks(vocab, scores),
        "",
        byte_ids=byte_ids(by_piece),
        unknown_id=int(unknown[0]) if unknown.size else None,
        fuse_unknown=True,
    )


def byte_ids(vocab: Lookup) -> list[int] | None:
    """The ids of "<0x00>" … "<0xFF>", None unless all are there."""
    ids = [vocab[f"<0x{byte:02X}>"] for byte in range(256)]
    return None if NO_ID in ids else ids
