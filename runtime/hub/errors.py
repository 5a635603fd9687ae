"""What goes wrong on the way from a model's name to its files, and how errors are told."""

from __future__ import annotations


class ModelNotFound(LookupError):
    """No such file, name or repository, or one that cannot be reached and is not on disk."""


class Unreachable(ModelNotFound):
    """The place that would have the model cannot be reached."""


class StoreError(RuntimeError):
    """A model exists but could not be stored: no room, a broken or false download, a read-only disk."""


LONGEST_MESSAGE = 600  # characters


def explain(problem: BaseException) -> str:
    """An error in words. Those of Python's own kinds that nobody raises on purpose are named by type."""
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
