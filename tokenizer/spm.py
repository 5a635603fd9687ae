"""SentencePiece vocabularies: pieces with scores (from a GGUF) and tokenizer.model files.

A piece spells a space as U+2581. Kudo and Richardson 2018, "SentencePiece: A simple and language
independent subword tokenizer and detokenizer for neural text processing".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import regex

from .bpe import BPE
from .errors import TokenizerError
from .files import read_file
from .pretokenize import Step, split

SPACE = "\u2581"


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` of a GGUF, the same numbers as in SentencePiece's model file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def cut_at_spaces(pieces: Sequence[str]) -> Step:
    """Cuts in front of each run of U+2581, but not after a character that precedes one inside a piece.

    No merge can cross such a cut, so the ids are those of the whole text, and words can be remembered.
    """
    joined = "\0".join(pieces)
    inside = set(regex.findall(f"[^\0{SPACE}](?={SPACE})", joined))
    if joined.count("\0") >= len(pieces) or len(inside) > 64:
        return lambda text, at_start: [text]
    joined_on = f"(?:(?<=[{''.join(map(regex.escape, sorted(inside)))}]){SPACE}++)?" if inside else ""
    word = f"(?:[^{SPACE}]++{joined_on})"
    return split(regex.compile(f"{SPACE}++{word}*+|{word}++"))


def bpe_from_scores(pieces: Sequence[str], scores: np.ndarray, types: np.ndarray) -> BPE:
    """SentencePiece's BPE: of all neighbours that make a piece, the best score first.

    `scores` is float [n] and `types` int [n] (TokenType).
    """
    order = np.unique(-scores.astype(np.float64), return_inverse=True)[1].reshape(-1).tolist()
    usable = np.isin(types, (TokenType.NORMAL, TokenType.USER_DEFINED)).tolist()
    vocab = dict(compress(zip(pieces, range(len(pieces)), strict=True), usable))
    ranks = dict(compress(zip(pieces, order, strict=True), usable))
    unknown = np.flatnonzero(types == TokenType.UNKNOWN)
    by_piece = {pieces[i]: i for i in np.flatnonzero(types == TokenType.BYTE).tolist()}
    return BPE(
        vocab,
        ranks,
        "",
        byte_ids=byte_ids(by_piece),
        unknown_id=int(unknown[0]) if unknown.size else None,
        fuse_unknown=True,
    )


def byte_ids(vocab: dict[str, int]) -> list[int] | None:
    """The ids of "<0x00>" … "<0xFF>", None unless all are there."""
    ids = [vocab.get(f"<0x{byte:02X}>") for byte in range(256)]
    return None if None in ids else [id for id in ids if id is not None]


class SentencePieceFile:
    """A tokenizer.model, read and encoded by the `sentencepiece` package (BPE or unigram, any normaliser)."""

    def __init__(self, path: Path) -> None:
        import sentencepiece

        sentencepiece.set_min_log_level(3)  # its errors are raised as well as logged
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(read_file(path))
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TokenizerError(f"{path}: not a SentencePiece model ({reason})") from None
        ids = list(range(self._processor.get_piece_size()))
        if not ids:
            raise TokenizerError(f"{path}: a SentencePiece model without pieces")
        self.pieces: list[str] = self._processor.id_to_piece(ids)
        self.control_ids = [
            id
            for id, control, unknown in zip(
                ids, self._processor.is_control(ids), self._processor.is_unknown(ids), strict=True
            )
            if control or unknown
        ]
        probes = self._processor.encode_as_pieces(["a", "0", "\u4e00"])  # a normaliser may drop any of them
        self.has_dummy_prefix = next((p[0].startswith(SPACE) for p in probes if p), False)
        self.bos_id: int | None = self._id(self._processor.bos_id())
        self.eos_id: int | None = self._id(self._processor.eos_id())

    @staticmethod
    def _id(id: int) -> int | None:
        return id if id >= 0 else None

    def encode(self, words: Iterable[str]) -> Iterable[int]:
        return chain.from_iterable(self._processor.encode(list(words)))
