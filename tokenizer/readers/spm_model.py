"""Reads the fields of SentencePiece's protocol buffer (tokenizer.model) that encoding depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..errors import TokenizerError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # of ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of SentencePiece
_TEXT_KEY, _SCORE_KEY = _PIECE << 3 | _BYTES, bytes([_SCORE << 3 | _FIXED32])
_MODEL_TYPE, _SPACE_AT_END = 3, 24  # of TrainerSpec
_CHARACTERS, _DUMMY_PREFIX, _SQUEEZE, _ESCAPE, _RULES = 2, 3, 4, 5, 6  # of NormalizerSpec
_NORMAL, _UNUSED, _BPE = 1, 5, 2
_SCORE_AND_TYPE = 9  # bytes of a piece beside its text, at most


MAX_PIECES = 1 << 19  # the largest models have 2^18
LONGEST_PIECE = 1 << 8  # bytes with score and type; pieces of models have up to 100
MAX_TEXT_BYTES = 1 << 22  # of all pieces without score and type; a node of a trie is made for each
MAX_OTHER_BYTES = 1 << 22  # of everything that is no piece; rules of normalisers have up to 2^19


class PlainModel(NamedTuple):
    """A model of byte-pair encoding whose normaliser only spells spaces as U+2581.

    `scores` is float32 [n], `types` int32 [n] (TokenType); with `prefix` a space is put in front of a text.
    """

    pieces: list[str]
    scores: np.ndarray
    types: np.ndarray
    prefix: bool


def check_model(raw: bytes) -> None:
    """TokenizerError for a file that is no message, or that holds so much that it is not read.

    To be asked before the package reads a file: it makes objects of what it finds, and its tries recurse once
    for each byte of a piece.
    """
    n_pieces = n_text = n_other = 0
    try:
        for field, value in _fields(raw):
            size = len(value) if isinstance(value, bytes) else 8
            if field != _PIECES:
                n_other += size
                if n_other > MAX_OTHER_BYTES:
                    raise TokenizerError(
                        f"a SentencePiece model with over {MAX_OTHER_BYTES} bytes beside its pieces"
                    )
                continue
            n_pieces += 1
            n_text += max(0, size - _SCORE_AND_TYPE)
            if n_pieces > MAX_PIECES or n_text > MAX_TEXT_BYTES:
                raise TokenizerError(
                    f"a SentencePiece model of over {MAX_PIECES} pieces or {MAX_TEXT_BYTES} bytes of text"
                )
            if size > LONGEST_PIECE:
                raise TokenizerError(f"a SentencePiece model with a piece of over {LONGEST_PIECE} bytes")
    except IndexError:
        raise TokenizerError("not a SentencePiece model (cut off)") from None


def plain_model(raw: bytes) -> PlainModel | None:
    """The model in a file, None for one of any other kind."""
    try:
        return _plain_model(raw)
    except (ValueError, IndexError):
        return None


def _plain_model(raw: bytes) -> PlainModel | None:
    pieces, scores, types = [], [], []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in _fields(raw):
        if field == _PIECES and isinstance(value, bytes):
            text, score, kind = _piece(value)
            if kind == _UNUSED:
                return None
            pieces.append(text)
            scores.append(score)
            types.append(kind)
        elif field == _TRAINER and isinstance(value, bytes):
            trainer.update(_fields(value))
        elif field == _NORMALIZER and isinstance(value, bytes):
            normalizer.update(_fields(value))
    changed = normalizer.get(_CHARACTERS) or normalizer.get(_RULES) or normalizer.get(_SQUEEZE, 1)
    if trainer.get(_MODEL_TYPE) != _BPE or trainer.get(_SPACE_AT_END) or changed:
        return None
    if not normalizer.get(_ESCAPE, 1):
        return None
    numbers = np.frombuffer(b"".join(scores), "<f4")
    if len(numbers) != len(pieces):
        return None
    return PlainModel(pieces, numbers, np.array(types, np.int32), bool(normalizer.get(_DUMMY_PREFIX, 1)))


def _piece(raw: bytes) -> tuple[str, bytes, int]:
    """Text, score (float32) and type of a piece. Nearly all are laid out alike, and there are very many."""
    size = raw[1]
    if (
        raw[0] == _TEXT_KEY
        and size < 0x80
        and raw[2 + size : 3 + size] == _SCORE_KEY
        and len(raw) == size + 7
    ):
        return raw[2 : 2 + size].decode(), raw[3 + size :], _NORMAL
    fields = dict(_fields(raw))
    text, score, kind = fields.get(_PIECE, b""), fields.get(_SCORE, bytes(4)), fields.get(_TYPE, _NORMAL)
    if not (isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int)):
        raise ValueError("a piece of another kind")
    return text.decode(), score, kind


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: (number, integer or bytes). TokenizerError, IndexError for none."""
    at = 0
    while at < len(raw):
        key, at = (raw[at], at + 1) if raw[at] < 0x80 else _varint(raw, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, at = (raw[at], at + 1) if raw[at] < 0x80 else _varint(raw, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise TokenizerError("not a SentencePiece model (an unknown wire type)")
        if at + size > len(raw):
            raise TokenizerError("not a SentencePiece model (cut off)")
        yield key >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise TokenizerError("not a SentencePiece model (a number without an end)")
