"""Normalisers: what happens to a text before it is cut into words."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

from .added import WHITE_SPACE
from .errors import TokenizerError

if TYPE_CHECKING:
    import regex

MAX_GROWTH = 64  # of a text by normalisation; that of Unicode itself, at most, is 18
SPARE = 4096  # characters more, for texts of a few

Normalizer = Callable[[str], str]
Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


@cache
def _long_mark_run() -> regex.Pattern[str]:
    """Python orders combining marks by insertion, in quadratic time. Longer runs are ordered here first."""
    import regex

    return regex.compile(r"\p{M}{64,}")


def unicode_form(form: Form) -> Normalizer:
    """A Unicode normalisation form (UAX #15), in linear time whatever the text."""

    def run(text: str) -> str:
        if text.isascii():
            return text
        return unicodedata.normalize(form, _long_mark_run().sub(_order_marks, text))

    return run


def _order_marks(match: regex.Match[str]) -> str:
    """The marks decomposed and, between those of class 0, sorted by combining class (stable)."""
    ordered: list[str] = []
    run: list[str] = []
    for mark in "".join(unicodedata.normalize("NFD", c) for c in match.group()):
        if unicodedata.combining(mark):
            run.append(mark)
        else:
            ordered += sorted(run, key=unicodedata.combining)
            ordered.append(mark)
            run.clear()
    return "".join(ordered + sorted(run, key=unicodedata.combining))


def replace(old: str, new: str) -> Normalizer:
    if old and len(new) <= MAX_GROWTH:
        return lambda text: text.replace(old, new)

    def run(text: str) -> str:
        _check_growth(len(text), text.count(old) * len(new))
        return text.replace(old, new)

    return run


def _check_growth(before: int, added: int) -> None:
    if added > MAX_GROWTH * before + SPARE:
        raise TokenizerError(f"a normalizer makes a text over {MAX_GROWTH} times as long")


def substitute(pattern: regex.Pattern[str], new: str, seconds: float | None = None) -> Normalizer:
    """Every match becomes `new`, which is taken literally.

    A pattern that backtracks for longer than `seconds` is a TokenizerError.
    """

    def run(text: str) -> str:
        added = 0

        def replaced(_: regex.Match[str]) -> str:
            nonlocal added
            added += len(new)
            _check_growth(len(text), added)
            return new

        try:
            return pattern.sub(replaced if len(new) > MAX_GROWTH else lambda _: new, text, timeout=seconds)
        except TimeoutError:
            raise TokenizerError(f"a normalizer pattern takes over {seconds:.0f} s") from None

    return run


def prepend(prefix: str) -> Normalizer:
    """`prefix` in front of every text but the empty one."""
    if len(prefix) > SPARE:
        raise TokenizerError(f"a normalizer puts {len(prefix)} characters in front of every text")
    return lambda text: prefix + text if text else text


def strip(left: bool, right: bool) -> Normalizer:
    def run(text: str) -> str:
        if left:
            text = text.lstrip(WHITE_SPACE)
        return text.rstrip(WHITE_SPACE) if right else text

    return run


def lowercase(text: str) -> str:
    """Each character on its own: lower() of a whole word would turn a last sigma into its final form."""
    return "".join(c.lower() for c in text)


def chain(normalizers: Sequence[Normalizer]) -> Normalizer | None:
    """All of them, in order; None for none."""
    if len(normalizers) < 2:
        return normalizers[0] if normalizers else None

    def run(text: str) -> str:
        given = len(text)
        for normalizer in normalizers:
            text = normalizer(text)
            if len(text) > MAX_GROWTH * given + SPARE:
                _check_growth(given, len(text))
        return text

    return run
