"""BERT's normaliser and pre-tokeniser: cleaned, lowercased text, cut at white space and punctuation."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from ..normalize import Normalizer, lowercase, unicode_form

_WHITE = "\t\n\r"
_IDEOGRAPHS = (  # first and last code points of the blocks of Chinese characters
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def bert_normalizers(clean: bool, spaced: bool, strip: bool, lower: bool) -> list[Normalizer]:
    """`clean` removes control characters, `spaced` puts spaces around Chinese ones, `strip` takes accents."""
    chosen = ((clean, _clean), (spaced, _space_ideographs), (strip, strip_accents), (lower, lowercase))
    return [normalizer for wanted, normalizer in chosen if wanted]


def _clean(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if _is_white(c) else c for c in text if not _is_removed(c))


def _is_removed(char: str) -> bool:
    return char in "\0\ufffd" or (char not in _WHITE and unicodedata.category(char)[0] == "C")


def _is_white(char: str) -> bool:
    return char in _WHITE or (char.isspace() and not "\x1c" <= char <= "\x1f")


def _space_ideographs(text: str) -> str:
    if text.isascii():
        return text
    return "".join(f" {c} " if _is_ideograph(ord(c)) else c for c in text)


def _is_ideograph(code: int) -> bool:
    return code >= 0x3400 and any(first <= code <= last for first, last in _IDEOGRAPHS)


_decompose = unicode_form("NFD")


def strip_accents(text: str) -> str:
    """Without the marks that NFD takes off their letters."""
    if text.isascii():
        return text
    return "".join(c for c in _decompose(text) if unicodedata.category(c) != "Mn")


def cut_words(text: str, at_start: bool) -> Sequence[str]:
    """The words between white space; each character of punctuation is one by itself."""
    words, start = list[str](), 0
    for i, char in enumerate(text):
        white = _is_white(char)
        if not white and not _is_punctuation(char):
            continue
        if start < i:
            words.append(text[start:i])
        if not white:
            words.append(char)
        start = i + 1
    if start < len(text):
        words.append(text[start:])
    return words


def _is_punctuation(char: str) -> bool:
    if char.isascii():
        return "!" <= char <= "/" or ":" <= char <= "@" or "[" <= char <= "`" or "{" <= char <= "~"
    return unicodedata.category(char)[0] == "P"
