"""llguidance, which turns schemas and grammars into masks; imported where it is first needed."""

from __future__ import annotations

from types import ModuleType

from ...engine.errors import ConstraintError


def llguidance() -> ModuleType:
    """The library. ConstraintError with what to do where there is none."""
    try:
        import llguidance as library
    except ImportError as problem:
        raise ConstraintError(
            f"structured output needs the package llguidance: pip install llguidance ({problem})"
        ) from None
    return library
