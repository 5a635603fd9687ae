"""Errors as one line for people."""

from __future__ import annotations

LONGEST_MESSAGE = 600  # characters


def explain(problem: BaseException) -> str:
    """The message of an error; Python's own kinds that are never raised on purpose are named by type."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    if isinstance(problem, MemoryError):
        return (
            f"out of memory{': ' if str(problem) else ''}{problem}; a smaller -c or a smaller model may fit"
        )
    text = str(problem)
    shown = text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + " …"
    if text and (type(problem).__module__ != "builtins" or type(problem) in (ValueError, RuntimeError)):
        return shown
    return f"unexpected {type(problem).__name__}: {shown} (--debug shows where)"
