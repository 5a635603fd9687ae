"""llguidance, which turns schemas and grammars into masks; imported where it is first needed."""

from __future__ import annotations

from functools import cache, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

from ...engine.errors import ConstraintError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


def llguidance() -> ModuleType:
    """The library. ConstraintError with what to do where there is none."""
    try:
        import llguidance as library
    except ImportError as problem:
        raise ConstraintError(
            f"structured output needs the package llguidance: pip install llguidance ({problem})"
        ) from None
    return library


@cache
def _bytes() -> LLTokenizer:
    return llguidance().LLTokenizer("byte")


@lru_cache(maxsize=64)
def impossible(grammar: str) -> bool:
    """Whether no text of a valid grammar even begins. Rules that never end are not noticed.

    Asked of a vocabulary of single bytes, with which every text can be written. Takes a millisecond or two.
    """
    matcher = llguidance().LLMatcher(_bytes(), grammar, log_level=0)
    if matcher.is_error():  # it names tokens of a model
        return False
    matcher.compute_bitmask()
    return stuck(matcher)


def stuck(matcher: LLMatcher) -> bool:
    """Whether a matcher has failed because nothing may come next."""
    return bool(matcher.is_error()) and matcher.get_error().startswith("NoExtensionBias")
