"""tokenizer.model files, read by the `sentencepiece` package."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..bpe.scored import TokenType
from ..errors import TokenizerError
from ..pretokenize.metaspace import SPACE
from .files import not_the_file, read_file
from .spm_model import check_model, plain_model

MAX_BYTES = 1 << 24  # the largest have 2^22


class SentencePieceFile:
    """A tokenizer.model, read and encoded by the `sentencepiece` package (BPE or unigram, any normaliser).

    `plain` is what of it is enough to do without the package, where that is possible.
    """

    def __init__(self, path: Path, within: Path | None = None) -> None:
        import sentencepiece

        sentencepiece.set_min_log_level(3)  # its errors are raised as well as logged
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            raw = read_file(path, MAX_BYTES, within)
        except FileNotFoundError:
            raise TokenizerError(f"{path}: no such file") from None
        if kind := not_the_file(raw):
            raise TokenizerError(f"{path}: is {kind}")
        try:
            check_model(raw)
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None
        try:
            self._processor.LoadFromSerializedProto(raw)
        except UnicodeDecodeError:  # of what it quotes in its own error
            raise TokenizerError(f"{path}: not a SentencePiece model") from None
        except RuntimeError as error:
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
