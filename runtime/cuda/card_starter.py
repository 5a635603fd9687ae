"""The thread that starts a step on several GPUs which wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread

from .lowering.base import DECODE_ROWS
from .machine import CudaMachine
from .step import Step

Pairs = Sequence[tuple[CudaMachine, Step]]


class CardStarter:
    """Starts steps in a thread of its own, since Ctrl-C may take the caller away when some GPUs have started
    and wait for the others. The queues between both cost some ten microseconds of a step, a future a hundred.
    """

    def __init__(self, n: int) -> None:
        self._asked: SimpleQueue[tuple[Pairs, SimpleQueue[BaseException | None]] | None] = SimpleQueue()
        self._threads = ThreadPoolExecutor(n, "starts a card")
        Thread(target=self._work, name="starts cards", daemon=True).start()

    def start(self, machines: Sequence[CudaMachine], steps: Sequence[Step]) -> None:
        """Enqueue a step on all GPUs. Raises what a machine raises."""
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._asked.put((list(zip(machines, steps, strict=True)), done))
        problem = done.get()
        if problem is not None:
            raise problem

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            pairs, done = asked
            try:
                self._start(pairs)
                done.put(None)
            except BaseException as problem:  # noqa: BLE001 - the caller raises it
                done.put(problem)

    def _start(self, pairs: Pairs) -> None:
        """A step of few rows is started on one GPU after the other. With many rows the driver may not return
        from a GPU that waits for another one, so that each has a thread.
        """
        if pairs[0][1].shape.n_rows <= DECODE_ROWS:
            for pair in pairs:
                _start_one(*pair)
            return
        others = [self._threads.submit(_start_one, *pair) for pair in pairs[1:]]
        _start_one(*pairs[0])
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads."""
        self._asked.put(None)
        self._threads.shutdown()


def _start_one(machine: CudaMachine, step: Step) -> None:
    machine.device.use()
    machine.start(step)
