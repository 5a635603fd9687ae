"""Reads the fields of SentencePiece's protocol buffer (tokenizer.model) that encoding depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # of ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of SentencePiece
_TEXT_KEY, _SCORE_KEY = _PIECE << 3 | _BYTES, bytes([_SCORE << 3 | _FIXED32])
_MODEL_TYPE, _SPACE_AT_END = 3, 24  # of TrainerSpec
_CHARACTERS, _DUMMY_PREFIX, _SQUEEZE, _ESCAPE, _RULES = 2, 3, 4, 5, 6  # of NormalizerSpec
_NORMAL, _UNUSED, _BPE = 1, 5, 2


class PlainModel(NamedTuple):
    """A model of byte-pair encoding whose normaliser only spells spaces as U+2581.

    `scores` is float32 [n], `types` int32 [n] (TokenType); with `prefix` a space is put in front of a text.
    """

    pieces: list[str]
    scores: np.ndarray
    types: np.ndarray
    prefix: bool


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
    """The fields of a message in order: (number, integer or bytes). ValueError, IndexError for none."""
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
            raise ValueError("an unknown wire type")
        if at + size > len(raw):
            raise ValueError("cut off")
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
            raise ValueError("a number without an end")
