"""The library's log records as lines on stderr, as long as a command runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from . import terminal

LIBRARY = "kukri"  # the logger above those of all modules of the package


class _LinesOnStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Show an information as a dim line, a warning or an error as a plain one."""
        show = terminal.note if record.levelno >= logging.WARNING else terminal.remark
        show(terminal.one_line(record.getMessage()))


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Within the block, what the library logs from the level INFO on appears on stderr."""
    logger, handler = logging.getLogger(LIBRARY), _LinesOnStderr()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
