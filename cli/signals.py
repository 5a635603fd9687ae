"""SIGTERM and SIGHUP end a command as Ctrl-C does: half-done work is undone, terminals are restored."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN = 0.02  # seconds after which a lost signal is sent again: the callback that lost it is over by then


class Ended(SystemExit):
    """What a signal raises: 128 and its number as the exit code."""

    def __init__(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        super().__init__(128 + number)
        self.number, self.handler = number, handler


def send_lost_signals_again(unraisable: sys.UnraisableHookArgs) -> None:
    """A hook for what Python cannot raise (`sys.unraisablehook`).

    A signal may arrive inside a `__del__` or the callback of a weak reference, as importing a module has one
    in its lock. What its handler raises there is dropped with a message, and the request to leave would be
    lost: the signal is sent again a moment later.
    """
    problem = unraisable.exc_value
    if isinstance(problem, Ended):
        number = problem.number
        signal.signal(number, problem.handler)
    elif isinstance(problem, KeyboardInterrupt):
        number = signal.SIGINT
    else:
        sys.__unraisablehook__(unraisable)
        return
    threading.Timer(AGAIN, os.kill, (os.getpid(), number)).start()


def as_sent(problem: BaseException) -> BaseException:
    """The request to leave that an error hides, or the error itself.

    Until Python 3.12 what a signal raises while a class is made, as imports do, arrives as the cause of a
    RuntimeError ("Error calling __set_name__").
    """
    cause = problem.__cause__ if isinstance(problem, RuntimeError) else None
    return cause if isinstance(cause, SystemExit | KeyboardInterrupt) else problem


@contextmanager
def unwinding() -> Iterator[None]:
    """Within the block these signals raise `Ended`, which leaves with 128 and the signal's number.

    A second one ends the process at once. A signal that is ignored (by nohup) stays so. Only the main thread
    can do this; elsewhere, and where there are no such signals, nothing changes.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Ended(number, leave)

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
