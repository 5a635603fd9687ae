"""Work in the background: a thread that computes what the next tokens may be while the machine runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

IDLE_SECONDS = 5.0  # after which the thread ends

Result = TypeVar("Result")


class Job(Generic[Result]):
    """A call that another thread makes."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self._done = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, and keep what comes of it."""
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._done.set()

    def result(self) -> Result:
        """What the call returned, once it has; or raise what it raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Background:
    """Makes calls one after the other in a thread, which is there while there are some."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, call: Callable[[], Result]) -> Job[Result]:
        """Let a call be made soon."""
        job = Job(call)
        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="kukri-masks", daemon=True)
                thread.start()
                self._thread = thread
        return job

    def finish(self) -> None:
        """Return when all calls have been made that were started before."""
        self.start(lambda: None).result()

    def _work(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():  # an interrupt came between two statements
                return
        while True:
            try:
                self._jobs.get(timeout=IDLE_SECONDS).run()
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._thread = None
                        return
