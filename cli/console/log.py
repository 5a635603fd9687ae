"""The library's log records as lines on stderr, as long as a command runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from . import terminal
from .safe_text import one_line

LIBRARY = "kukri"  # the logger above those of all modules of the package


class _LinesOnStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Show an information as a dim line, a warning or an error as a plain one."""
        show = terminal.note if record.levelno >= logging.WARNING else terminal.remark
        show(record.getMessage())


class _SafeRecord(logging.LogRecord):
    """A record whose message is one safe line, also for handlers of other libraries, which write to stderr
    themselves: huggingface-hub logs what a server sent."""

    def getMessage(self) -> str:
        return one_line(super().getMessage())


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Within the block, what the library logs from the level INFO on appears on stderr.

    What other libraries log, and Python's warnings, cannot command the terminal either.
    """
    logger, handler = logging.getLogger(LIBRARY), _LinesOnStderr()
    level, factory = logger.level, logging.getLogRecordFactory()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.setLogRecordFactory(_SafeRecord)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logging.setLogRecordFactory(factory)
        logger.removeHandler(handler)
        logger.setLevel(level)
