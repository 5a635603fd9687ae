"""Ids to bytes: the bytes that each entry of the vocabulary stands for."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from .errors import TokenizerError
from .pretokenize.pretokenize import BYTE_SYMBOLS
from .strings import Strings

_SYMBOL_BYTES = {symbol: byte for byte, symbol in enumerate(BYTE_SYMBOLS)}
# The symbols as the characters of their bytes, and what is no symbol as one that Latin-1 does not have.
_TO_LATIN_1 = dict.fromkeys(range(256), "\u2603") | {ord(s): chr(b) for s, b in _SYMBOL_BYTES.items()}
_NO_SYMBOL = re.compile(r"[^\0-\xff]")  # behind that
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer:
    """The bytes of a token. A text is the bytes of its tokens, joined, and bad UTF-8 replaced.

    `byte_level`: a piece is spelled in GPT-2's byte symbols; one with any other character in it stands for
    itself (added tokens do). `byte_fallback`: "<0x0A>" is that byte. `replacements` are made in all pieces.
    `strip_space`: a space is taken off the start of a whole text, because the encoder puts one there.
    `word_piece`: pieces that begin with this prefix continue a word, and all others begin one.
    """

    def __init__(
        self,
        pieces: Sequence[str | None],
        *,
        byte_level: bool = False,
        byte_fallback: bool = False,
        replacements: Sequence[tuple[str, str]] = (),
        strip_space: bool = False,
        word_piece: str = "",
    ) -> None:
        self._pieces = pieces
        self._byte_level = byte_level
        self._byte_fallback = byte_fallback
        self._replacements = replacements
        self.strips_space = strip_space or bool(word_piece)
        self._word_piece = word_piece
        self._known: dict[int, bytes] = {}

    def piece(self, id: int) -> str:
        """The entry as the vocabulary spells it; "" for a number that the vocabulary skips."""
        if not 0 <= id < len(self._pieces):
            raise TokenizerError(f"token id {id} is not in the vocabulary of {len(self._pieces)}")
        return self._pieces[id] or ""

    def bytes_of(self, id: int) -> bytes:
        found = self._known.get(id)
        if found is None:
            found = self._known[id] = self._spell(self.piece(id))
        return found

    def all_bytes(self) -> list[bytes]:
        """The bytes of all entries, by id."""
        packed = self._pieces
        pieces = packed.tolist() if isinstance(packed, Strings) else [piece or "" for piece in packed]
        if not self._byte_level:
            return self._spell_all(pieces)
        text = "".join(pieces).translate(_TO_LATIN_1)  # as many characters as there are bytes
        raw = text.encode("latin-1", "replace")
        ends = [*accumulate(map(len, pieces))]
        spelled = [raw[start:end] for start, end in pairwise([0, *ends])]
        for i in sorted({bisect_right(ends, found.start()) for found in _NO_SYMBOL.finditer(text)}):
            spelled[i] = pieces[i].encode()
        return spelled

    def _spell_all(self, pieces: list[str]) -> list[bytes]:
        """The bytes of pieces that spell no bytes in symbols."""
        text = "\0".join(pieces)
        if text.count("\0") != len(pieces) - 1:
            return [self._spell(piece) for piece in pieces]
        for old, new in self._replacements:
            text = text.replace(old, new)
        spelled = text.encode().split(b"\0")
        if self._byte_fallback:
            for i in (i for i, piece in enumerate(pieces) if piece.startswith("<0x")):
                spelled[i] = self._spell(pieces[i])
        return spelled

    def _spell(self, piece: str) -> bytes:
        if self._byte_level:
            try:
                return bytes([_SYMBOL_BYTES[symbol] for symbol in piece])
            except KeyError:
                return piece.encode()
        if self._byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        if self._word_piece:
            begins = not piece.startswith(self._word_piece)
            return (f" {piece}" if begins else piece.removeprefix(self._word_piece)).encode()
        for old, new in self._replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    def strip(self, text: str) -> str:
        """`text`, the start of a whole text, without the space that the encoder put there."""
        return text.removeprefix(" ") if self.strips_space else text
