"""What functions of tools print goes to stderr: stdout is for the model's text."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_thread = threading.local()


class _Stdout:
    """Stdout, and stderr to a thread within `aside`: one that takes too long is left behind, and may print
    while the next answer is written."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if getattr(_thread, "aside", False) else self._stdout, name)


@contextmanager
def aside() -> Iterator[None]:
    """Within the block, what this thread prints goes to stderr."""
    if sys.stdout is not None and not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)
    before = getattr(_thread, "aside", False)
    _thread.aside = True
    try:
        yield
    finally:
        _thread.aside = before


def printing_aside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the same signature that prints to stderr."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with aside():
            return function(*arguments, **named)

    return call
