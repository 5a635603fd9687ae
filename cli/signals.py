"""SIGTERM and SIGHUP end a command as Ctrl-C does: half-done work is undone, terminals are restored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def as_sent(problem: BaseException) -> BaseException:
    """The request to leave that an error hides, or the error itself.

    Until Python 3.12 what a signal raises while a class is made, as imports do, arrives as the cause of a
    RuntimeError ("Error calling __set_name__").
    """
    cause = problem.__cause__ if isinstance(problem, RuntimeError) else None
    return cause if isinstance(cause, SystemExit | KeyboardInterrupt) else problem


@contextmanager
def unwinding() -> Iterator[None]:
    """Within the block these signals raise SystemExit, with 128 and the signal's number as the exit code.

    A second one ends the process at once. A signal that is ignored (by nohup) stays so. Only the main thread
    can do this; elsewhere, and where there are no such signals, nothing changes.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
