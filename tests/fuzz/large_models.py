"""tokenizer.model and tekken.json files made to cost as much as they can; see large.py."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from struct import pack
from typing import Any

from kukri.tokenizer.readers import files, sentencepiece_file, settings, spm_model
from kukri.tokenizer.readers import tekken as tekken_reader

from .large import Cases, json_object, registrar
from .protobuf import varint

CASES: Cases = {}
case = registrar(CASES)


def field(number: int, raw: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def piece(content: bytes, kind: int = 1) -> bytes:
    return field(1, field(1, content) + b"\x15" + pack("<f", 0.0) + b"\x18" + varint(kind))


def spm(folder: Path, pieces: Iterable[tuple[bytes, int]] = (), raw: bytes = b"", kind: int = 2) -> Path:
    """A tokenizer.model of these pieces and types, BPE (2) or unigram (1), with `raw` behind them."""
    whole = b"".join(piece(*each) for each in pieces) + field(2, b"\x18" + varint(kind)) + field(3, b"") + raw
    (folder / "tokenizer.model").write_bytes(whole)
    return folder


UNKNOWN = (b"<unk>", 2)


@case
def model_of_two_pieces(folder: Path) -> Path:
    return spm(folder, [UNKNOWN, (b"a", 1)])


@case
def model_of_empty_pieces(folder: Path) -> Path:
    return spm(folder, [UNKNOWN], b"\x0a\x00" * (sentencepiece_file.MAX_BYTES // 2 - 100))


@case
def model_of_many_pieces(folder: Path) -> Path:
    n = min(spm_model.MAX_PIECES, 330_000) - 1
    return spm(folder, [UNKNOWN, *((b"%x" % i, 1) for i in range(n))])


@case
def model_of_many_unigrams(folder: Path) -> Path:
    n = min(spm_model.MAX_PIECES, 330_000) - 1
    return spm(folder, [UNKNOWN, *((b"%x" % i, 1) for i in range(n))], kind=1)


@case
def model_of_user_defined_pieces(folder: Path) -> Path:
    n = min(spm_model.MAX_PIECES, 330_000) - 1
    (folder / "tokenizer_config.json").write_bytes(b'{"a": 1}')
    return spm(folder, [UNKNOWN, *((b"%x" % i, 4) for i in range(n))])


@case
def model_of_a_long_piece(folder: Path) -> Path:
    return spm(folder, [UNKNOWN, (b"x" * 16_000_000, 1)], kind=1)


@case
def model_of_a_long_user_defined_piece(folder: Path) -> Path:
    return spm(folder, [UNKNOWN, (b"x" * 16_000_000, 4)])


@case
def model_of_long_pieces(folder: Path) -> Path:
    longest = spm_model.LONGEST_PIECE
    n = spm_model.MAX_TEXT_BYTES // longest
    return spm(folder, [UNKNOWN, *((b"%d" % i + b"x" * (longest - 20), 4) for i in range(n))], kind=1)


@case
def model_of_inputs(folder: Path) -> Path:
    """The trainer's list of files, which nobody reads."""
    return spm(folder, [UNKNOWN, (b"a", 1)], field(2, b"\x0a\x00" * 8_000_000))


@case
def model_of_self_tests(folder: Path) -> Path:
    return spm(folder, [UNKNOWN, (b"a", 1)], field(4, b"\x0a\x00" * 8_000_000))


@case
def model_of_a_large_charsmap(folder: Path) -> Path:
    charsmap = pack("<I", 8_000_000) + bytes(16_000_000)
    return spm(folder, [UNKNOWN, (b"a", 1)], field(3, field(2, charsmap)))


@case
def model_of_unknown_fields(folder: Path) -> Path:
    return spm(folder, [UNKNOWN, (b"a", 1)], b"\xa0\x06\x00" * 5_000_000)


@case
def tokenizer_config_of_added_tokens(folder: Path) -> Path:
    added = b",".join(b'"%d":{"content":"%x"}' % (i, i) for i in range(200_000))
    (folder / "tokenizer_config.json").write_bytes(json_object(b"{" + added + b"}", "added_tokens_decoder"))
    return spm(folder, pieces=[(b"<unk>", 2), (b"a", 1)])


def tekken(folder: Path, vocab: bytes, **config: Any) -> Path:
    size = config.pop("size", 1 << 20)
    about = {"pattern": "a+", "default_vocab_size": size, "default_num_special_tokens": 10} | config
    (folder / "tekken.json").write_bytes(
        b'{"config":' + json.dumps(about).encode() + b',"vocab":' + vocab + b"}"
    )
    return folder


@case
def tekken_of_many_words(folder: Path) -> Path:
    n = (files.VOCABULARY_LIMITS.n_marks - 100) // 4
    words = b",".join(b'{"token_bytes":"%b"}' % b64encode(b"%x" % i) for i in range(n))
    return tekken(folder, b"[" + words + b"]")


@case
def tekken_of_a_long_word(folder: Path) -> Path:
    return tekken(folder, b'[{"token_bytes":"' + b"A" * 48_000_000 + b'"}]')


@case
def tekken_of_special_tokens(folder: Path) -> Path:
    return tekken(
        folder, b"[]", size=settings.MAX_VOCAB, default_num_special_tokens=tekken_reader.MAX_CONTROL
    )
