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
    return lambda text: text.replace(old, new)


def substitute(pattern: regex.Pattern[str], new: str, seconds: float | None = None) -> Normalizer:
    """Every match becomes `new`, which is taken literally.

    A pattern that backtracks for longer than `seconds` is a TokenizerError.
    """

    def run(text: str) -> str:
        try:
            return pattern.sub(lambda _: new, text, timeout=seconds)
        except TimeoutError:
            raise TokenizerError(f"a normalizer pattern takes over {seconds:.0f} s") from None

    return run


def prepend(prefix: str) -> Normalizer:
    """`prefix` in front of every text but the empty one."""
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
        for normalizer in normalizers:
            text = normalizer(text)
        return text

    return run
