"""A standing team of threads that runs a whole step in compiled code.

A step costs one wake-up a thread; from there on the threads meet at spin barriers (a fifth of a
microsecond), since a decode step has hundreds of instructions. After a step the workers look out for the next
one for as long as a sampler needs, then they sleep.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

import numpy as np

from ...quant.jit import jit, kernel
from ...quant.simd import atomic_add, atomic_load, call_kernel, pause
from .records import INSTRUCTION, reader, record, step_at

# Each counter has a cache line of its own.
TEAM = record(
    *("posted", *(f"_{i}" for i in range(7))),
    *("arrived", *(f"_{i}" for i in range(7, 14))),
    "led",  # steps that thread 0 has run
    "n_threads",
    "step",
    "give_way",
)
team_at = reader(TEAM)
instruction_at = reader(INSTRUCTION)
POSTED, ARRIVED = TEAM.fields["posted"][1], TEAM.fields["arrived"][1]  # type: ignore[index]

SPINS = 2000  # looks at a counter before giving the core away: others may need it
IDLE_SPINS = 4000  # looks at a counter before going to sleep: some 100 microseconds


@jit
def _wait_until(counter: int, value: int, give_way: int) -> None:
    spins = 0
    while atomic_load(counter) < value:
        pause()
        spins += 1
        if spins > SPINS and give_way != 0:
            call_kernel(give_way, 0, 0, 0)


@jit
def _run(team: int, step: int, thread: int, met: int) -> None:
    """Run the step's instructions; `met` is the barriers' counter when the step was posted."""
    s, shared = step_at(step), team_at(team)
    for i in range(s.n_instructions):
        instruction = instruction_at(s.instructions + 24 * i)
        call_kernel(instruction.kernel, instruction.arguments, step, thread)
        if instruction.barrier:
            met += s.n_threads
            atomic_add(team + ARRIVED, 1)
            _wait_until(team + ARRIVED, met, shared.give_way)


@kernel
def post(team: int, step: int, thread: int) -> None:
    """Let the workers have a step."""
    shared = team_at(team)
    shared.step = step
    atomic_add(team + POSTED, 1)


@kernel
def lead(team: int, step: int, thread: int) -> None:
    """Run thread 0's share of the step that was posted last."""
    met = atomic_load(team + ARRIVED)
    shared = team_at(team)
    _run(team, step, 0, met - met % shared.n_threads)
    shared.led += 1


@kernel
def follow(team: int, done: int, thread: int) -> None:
    """Run this thread's share of all steps after number `done`, which is kept up to date at that address."""
    shared = team_at(team)
    spins = 0
    while spins < IDLE_SPINS:
        if atomic_load(team + POSTED) > atomic_load(done):
            # Nobody passes the first barrier before this thread arrives there, so the counter cannot have
            # moved by a whole barrier: what lacks to a multiple of the threads is who has arrived already.
            step = shared.step
            met = atomic_load(team + ARRIVED)
            _run(team, step, thread, met - met % shared.n_threads)
            atomic_add(done, 1)
            spins = 0
        pause()
        spins += 1


TEAM_KERNELS = (post, lead, follow)


class _Workers:
    """What the worker threads share with their team; they hold this and not the team itself, so that a
    forgotten team can end them."""

    def __init__(self, n_threads: int) -> None:
        self.memory = np.zeros(1, TEAM)
        self.memory["give_way"] = _give_way_address()
        self.memory["n_threads"] = n_threads
        self.closed = False
        self.done = np.zeros((n_threads, 8), np.int64)  # steps that each thread has run, a cache line each
        # A worker sleeps in acquiring its lock, which only `wake` releases.
        self.locks = [threading.Lock() for _ in range(n_threads - 1)]
        for lock in self.locks:
            lock.acquire()

    @property
    def posted(self) -> int:
        return int(self.memory["posted"][0])

    @property
    def led(self) -> int:
        return int(self.memory["led"][0])

    def wake(self) -> None:
        for asleep in self.locks:
            if asleep.locked():
                asleep.release()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def work(self, thread: int, follow: Any) -> None:
        done = self.done[thread].ctypes.data
        while True:
            self.locks[thread - 1].acquire()
            if self.closed:
                return
            follow(self.memory.ctypes.data, done, thread)


class Team:
    """`n_threads` threads, the caller's own among them; `run` executes a STEP record on all of them.

    Not for use from two threads at once. `close` ends the workers, as does forgetting the team.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._workers = _Workers(n_threads)
        self._post: Any = post.compiled.ctypes
        self._lead: Any = lead.compiled.ctypes
        for i in range(1, n_threads):
            work = (i, follow.compiled.ctypes)
            threading.Thread(target=self._workers.work, args=work, name=f"kukri-{i}", daemon=True).start()
        self.close = weakref.finalize(self, self._workers.close)

    @property
    def closed(self) -> bool:
        return self._workers.closed

    def run(self, step: np.ndarray) -> None:
        """Run one step and return when all threads have finished it. RuntimeError if closed.

        An interrupt that arrives in between is raised after the step: workers that are already at it
        would wait for ever for thread 0.
        """
        workers = self._workers
        if workers.closed:
            raise RuntimeError("the team of threads is closed")
        interrupt: BaseException | None = None
        ticket, memory = workers.led + 1, workers.memory.ctypes.data
        while workers.led < ticket:
            try:
                if workers.posted < ticket:
                    self._post(memory, step.ctypes.data, 0)
                workers.wake()  # after posting: who looks out for a step until then must not miss it
                self._lead(memory, step.ctypes.data, 0)
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _give_way_address() -> int:
    """The C function that lets another thread run, or 0."""
    try:
        library = ctypes.CDLL("kernel32" if os.name == "nt" else None)
        function = library.SwitchToThread if os.name == "nt" else library.sched_yield
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0
