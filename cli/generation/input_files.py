"""Texts of a prompt that come out of files: `-f FILE`, `-s @FILE`, and stdin."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path

import typer

LONGEST_INPUT = 16 << 20  # bytes; far beyond any context window

# What files that are no texts begin with, and what they are then.
KINDS = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive, or a document of an office program"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of an old office program"),
    (b"\x1f\x8b", "packed with gzip"),
    (b"\xfd7zXZ\0", "packed with xz"),
    (b"\x28\xb5\x2f\xfd", "packed with Zstandard"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\xff\xfe", "text in UTF-16, which iconv -f UTF-16 -t UTF-8 turns into UTF-8"),
    (b"\xfe\xff", "text in UTF-16, which iconv -f UTF-16 -t UTF-8 turns into UTF-8"),
)
# Kinds whose first bytes could be a text's: (offset, bytes, kind). They count where the rest is no UTF-8.
LIKELY_KINDS = (
    (0, b"GIF8", "a GIF image"),
    (0, b"BZh", "packed with bzip2"),
    (0, b"GGUF", "a model (GGUF)"),
    (0, b"OggS", "an Ogg recording"),
    (0, b"ID3", "an MP3 recording"),
    (0, b"fLaC", "a FLAC recording"),
    (8, b"WEBP", "a WebP image"),
    (8, b"WAVE", "a WAVE recording"),
    (4, b"ftyp", "a video, or an image of a phone"),
)


def decode_text(name: str, blocks: Iterable[bytes]) -> str:
    """The text that `blocks` make up, without a byte order mark and without one line end at its end.

    A usage error that begins with `name` if they are more than LONGEST_INPUT bytes, or no UTF-8 text; it says
    what they are as far as their beginning shows that.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces: list[str] = []
    n_bytes = 0
    beginning = b""
    try:
        for block in blocks:
            beginning = beginning or block
            if not n_bytes and (kind := _kind(beginning)):
                raise _not_text(name, kind)
            n_bytes += len(block)
            if n_bytes > LONGEST_INPUT:
                raise typer.BadParameter(
                    f"{name} holds more than {LONGEST_INPUT >> 20} MiB, too much for a prompt"
                )
            pieces.append(decoder.decode(block))
        pieces.append(decoder.decode(b"", final=True))
    except UnicodeDecodeError as problem:
        raise _not_text(name, _likely_kind(beginning) or f"not UTF-8 text ({problem.reason})") from None
    except OSError as problem:
        raise typer.BadParameter(f"{name} cannot be read: {problem.strerror or problem}") from None
    return "".join(pieces).removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


def read_text_file(name: str) -> str:
    """The text of the file `name`, see `decode_text`; `~` is the home folder."""
    return decode_text(name, _blocks(Path(name).expanduser()))


def _blocks(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def _kind(beginning: bytes) -> str | None:
    return next((kind for magic, kind in KINDS if beginning.startswith(magic)), None)


def _likely_kind(beginning: bytes) -> str | None:
    return next((kind for at, magic, kind in LIKELY_KINDS if beginning.startswith(magic, at)), None)


def _not_text(name: str, kind: str) -> typer.BadParameter:
    return typer.BadParameter(f"{name} is {kind}; a prompt takes text in UTF-8 only")


def text_or_file(value: str) -> str:
    """The text that an option gives: itself, the text of FILE for `@FILE`, or `@…` for `@@…`."""
    if value.startswith("@@"):
        return value[1:]
    return read_text_file(value[1:]) if value.startswith("@") else value
