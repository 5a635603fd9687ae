"""SentencePiece vocabularies: pieces with scores (from a GGUF) and tokenizer.model files.

A piece spells a space as U+2581. Kudo and Richardson 2018, "SentencePiece: A simple and language
independent subword tokenizer and detokenizer for neural text processing".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TokenizerError
from ..readers.files import read_file
from ..readers.spm_model import plain_model
from ..strings import NO_ID, Lookup, PackedLookup, Strings
from .bpe import BPE, score_ranks

SPACE = "\u2581"


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` of a GGUF, the same numbers as in SentencePiece's model file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class PartsAtSpaces:
    """Cuts in front of each run of U+2581, but not after those characters that precede one inside a piece.

    No merge can cross such a cut, so the ids are those of the whole text, and words can be remembered.
    """

    def __init__(self, joins: frozenset[str]) -> None:
        self.joins = joins
        joined_on = f"(?:(?<=[{''.join(map(re.escape, sorted(joins)))}]){SPACE}++)?" if joins else ""
        word = f"(?:[^{SPACE}]++{joined_on})"
        self._parts = re.compile(f"{SPACE}++{word}*+|{word}++")

    def __call__(self, text: str) -> list[str]:
        return self._parts.findall(text)


def parts_at_spaces(pieces: Strings) -> PartsAtSpaces | None:
    """How to cut texts for these pieces; None if too many characters precede U+2581."""
    raw = pieces.raw
    lead, middle, last = SPACE.encode()
    spaces = np.flatnonzero((raw[:-2] == lead) & (raw[1:-1] == middle) & (raw[2:] == last))
    begins = raw[spaces - 1] == 0
    begins[1:] |= spaces[1:] == spaces[:-1] + 3
    joins = {pieces.blob[max(0, i - 4) : i].decode(errors="ignore")[-1] for i in spaces[~begins].tolist()}
    return PartsAtSpaces(frozenset(joins)) if len(joins) <= 64 else None


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


class SentencePieceFile:
    """A tokenizer.model, read and encoded by the `sentencepiece` package (BPE or unigram, any normaliser).

    `plain` is what of it is enough to do without the package, where that is possible.
    """

    def __init__(self, path: Path) -> None:
        import sentencepiece

        sentencepiece.set_min_log_level(3)  # its errors are raised as well as logged
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            raw = read_file(path)
            self._processor.LoadFromSerializedProto(raw)
        except UnicodeDecodeError:  # of what it quotes in its own error
            raise TokenizerError(f"{path}: not a SentencePiece model") from None
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TokenizerError(f"{path}: not a SentencePiece model ({reason})") from None
        ids = list(range(self._processor.get_piece_size()))
        if not ids:
            raise TokenizerError(f"{path}: a SentencePiece model without pieces")
        try:
            self.pieces: list[str] = self._processor.id_to_piece(ids)
            probes = self._processor.encode_as_pieces(["a", "0", "\u4e00"])  # may lose any to a normaliser
        except UnicodeDecodeError:
            raise TokenizerError(f"{path}: a SentencePiece model whose pieces are not UTF-8") from None
        self.control_ids = [
            id
            for id, control, unknown in zip(
                ids, self._processor.is_control(ids), self._processor.is_unknown(ids), strict=True
            )
            if control or unknown
        ]
        self.has_dummy_prefix = next((p[0].startswith(SPACE) for p in probes if p), False)
        self.bos_id: int | None = self._id(self._processor.bos_id())
        self.eos_id: int | None = self._id(self._processor.eos_id())
        self.plain = plain_model(raw)

    def scores(self) -> np.ndarray:
        """float32 [n]"""
        return np.array(self._processor.get_score(list(range(len(self.pieces)))), np.float32)

    def types(self) -> np.ndarray:
        """TokenType of each piece, int32 [n]. User-defined ones cannot be told from normal ones."""
        ids = list(range(len(self.pieces)))
        types = np.full(len(ids), TokenType.NORMAL, np.int32)
        for kind, flags in (
            (TokenType.UNUSED, self._processor.is_unused(ids)),
            (TokenType.BYTE, self._processor.is_byte(ids)),
            (TokenType.CONTROL, self._processor.is_control(ids)),
            (TokenType.UNKNOWN, self._processor.is_unknown(ids)),
        ):
            types[np.array(flags)] = kind
        return types

    @staticmethod
    def _id(id: int) -> int | None:
        return id if id >= 0 else None

    def encode(self, words: Iterable[str]) -> Iterable[int]:
        return chain.from_iterable(self._processor.encode(list(words)))

    def learn(self, words: Iterable[str]) -> None:
        """Nothing: the package keeps no words."""
