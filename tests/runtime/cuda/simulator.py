"""Runs a kernel in Python, thread by thread: what it computes can be tested where there is no card.

Threads are greenlets. Instructions of one thread do what their body in `ptx/` says; those that several
threads take part in are in `together.py`: a thread waits in them until the others of its warp, of its four
warps, or of its block or cluster have come as far. Clusters run one after the other. Addresses are those of
NumPy arrays, so a wild one ends the process.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import groupby, product, repeat
from threading import Lock
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from kukri.runtime.cuda.compile.stage import constants_for, stage
from kukri.runtime.cuda.kernels.attention.scores import quad_maximum, quad_sum
from kukri.runtime.cuda.kernels.common.common import warp_maximum, warp_sum
from kukri.runtime.cuda.ptx import Instruction

from .together import GROUP, WARP

# Device functions that run as one instruction, since most instructions of a step would be theirs.
REDUCTIONS: dict[Any, str] = {
    function: function.__name__ for function in (quad_maximum, quad_sum, warp_maximum, warp_sum)
}
# Python 3.11 counts the depth of syntax trees once for all threads, so that two threads that read sources at
# a time may get a SystemError (python/cpython issue 106905).
_STAGING = Lock()


class _Warp:
    """Threads that run an instruction together as soon as the last of them has come to it."""

    def __init__(self) -> None:
        self.lanes: list[_Thread] = []
        self.waiting = 0  # lanes that have a request

    def answer(self, name: str) -> bool:
        """Give all lanes their results, if all of them wait in this instruction."""
        if self.waiting < 32 or name not in WARP or any(lane.request[0] != name for lane in self.lanes):
            return False
        _resume(self.lanes, WARP[name]([lane.request[1] for lane in self.lanes]))
        return True


class _Thread(greenlet):
    number: int
    index: int  # of its block in the cluster
    block: tuple[int, int, int]
    grid: tuple[int, ...]
    cluster: _Cluster
    warp: _Warp
    request: tuple[str, tuple[Any, ...]] = ("", ())  # the instruction that it waits in, and its operands
    result: Any


def run(
    kernel: Callable[..., None],
    constants: Mapping[str, Any],
    grid: tuple[int, ...],
    threads: int,
    arguments: Iterable[Any],
    shared_bytes: int = 0,
    cluster: int = 1,
) -> None:
    """Launch a kernel with its parameters or its argument record; arrays stand for their addresses.

    `cluster` consecutive blocks of grid x run together.
    """
    with _STAGING:
        staged = _staged(kernel, tuple(sorted(constants.items())))
    values = [_value(a) for a in arguments]
    grid = (*grid, 1, 1)[:3]
    assert grid[0] % cluster == 0
    together = _Cluster(partial(staged, *values), cluster, threads, shared_bytes)
    for z, y, x in product(range(grid[2]), range(grid[1]), range(0, grid[0], cluster)):
        together.run([(x + i, y, z) for i in range(cluster)], grid)
    together.close()


def _value(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    return np.float32(argument) if isinstance(argument, float) else int(argument)


@cache
def _staged(function: Callable[..., Any], constants: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return stage(function, dict(constants), _resolve)


def _resolve(found: Any, constants: Mapping[str, Any]) -> Any:
    if isinstance(found, str) and found == "float32":
        return np.float32
    if (name := REDUCTIONS.get(found) if callable(found) else None) is not None:
        return _TOGETHER[name]
    if isinstance(found, Instruction):
        return _TOGETHER.get(found.name, found.meaning)
    if getattr(found, "on_device", False):
        return _staged(found, tuple(sorted(constants_for(found, constants).items())))
    return found


class _Cluster:
    """Blocks that run together. One set of threads runs all clusters of a launch, one after the other: a new
    greenlet costs two calls of the system."""

    def __init__(self, program: Callable[[], None], blocks: int, threads: int, shared_bytes: int) -> None:
        self._memory = [np.empty(shared_bytes + 1040, np.uint8) for _ in range(blocks)]
        # The same place in each block, which is no better aligned than a kernel may expect.
        self.shared = [-(-each.ctypes.data // 1024) * 1024 + 16 for each in self._memory]
        self.ready: deque[_Thread] = deque()  # those that wait for nobody, in the order in which they run
        self._alive: set[_Thread] = set()
        self._threads: list[_Thread] = []
        here = getcurrent()

        def body() -> None:
            # Between blocks it is here, where it also starts: a greenlet begins at the depth of recursion of
            # the one that starts it.
            while True:
                here.switch()
                program()
                self._alive.remove(getcurrent())

        for block, number in product(range(blocks), range(threads)):
            thread = _Thread(body)
            thread.number, thread.index, thread.cluster = number, block, self
            thread.warp = self._threads[-1].warp if number % 32 else _Warp()
            thread.warp.lanes.append(thread)
            self._threads.append(thread)
            thread.switch()

    def run(self, blocks: list[tuple[int, int, int]], grid: tuple[int, ...]) -> None:
        """Run these blocks to their end."""
        for each in self._memory:
            each.fill(0xFF)  # NaN: nobody may read what was not written
        for thread in self._threads:
            thread.block, thread.grid = blocks[thread.index], grid
        self._alive.update(self._threads)
        self.ready.extend(self._threads)
        passed: Counter[tuple[int, int]] = Counter()
        while self._alive:
            while self.ready:  # one that waits goes on to the next by itself, this is for those that ended
                self.ready.popleft().switch()
            self.ready.extend(_answer([*self._alive], passed))
            waiting = [(thread.number, thread.request) for thread in self._alive]
            assert self.ready or not waiting, f"threads wait for each other: {waiting}"

    def close(self) -> None:
        """End the threads, whose stacks would stay until the garbage collector comes."""
        for thread in self._threads:
            thread.throw()


def _wait(name: str) -> Callable[..., Any]:
    """An instruction that several threads take part in, as one thread calls it."""

    def wait(*operands: Any) -> Any:
        thread: _Thread = getcurrent()
        thread.request = name, operands
        thread.warp.waiting += 1
        if thread.warp.answer(name):
            thread.cluster.ready.extend(lane for lane in thread.warp.lanes if lane is not thread)
        elif thread.cluster.ready:
            thread.cluster.ready.popleft().switch()
        else:
            thread.parent.switch()
        return thread.result

    return wait


def _resume(threads: Sequence[_Thread], results: Iterable[Any]) -> None:
    for thread, result in zip(threads, results, strict=True):
        thread.result = result
        thread.warp.waiting -= 1


def _answer(alive: list[_Thread], passed: Counter[tuple[int, int]]) -> list[_Thread]:
    """Resume those that wait for nobody else any more, where all threads wait and no warp has an answer.

    `passed` are the threads that have called `pass_turn`, of each block and barrier.
    """
    found: list[_Thread] = []

    def resume(threads: Sequence[_Thread], results: Iterable[Any] | None = None) -> None:
        _resume(threads, repeat(None, len(threads)) if results is None else results)
        found.extend(threads)

    if all(thread.request[0] == "cluster_barrier" for thread in alive):
        resume(alive)
        return found
    for block, members in _by(alive, lambda thread: thread.index):
        if all(thread.request[0] == "barrier" for thread in members):
            resume(members)
        for passing in [thread for thread in members if thread.request[0] == "pass_turn"]:
            passed[block, passing.request[1][0]] += 1
            resume([passing])
        for n in [n for b, n in passed if b == block]:
            waiters = [thread for thread in members if thread.request == ("wait_for_turn", (n,))]
            assert passed[block, n] <= 128
            if passed[block, n] == len(waiters) == 128:
                resume(waiters)
                del passed[block, n]
        for _, group in _by(members, lambda thread: thread.number // 128):
            names = {thread.request[0] for thread in group}
            if len(group) == 128 and len(names) == 1 and names <= {*GROUP}:
                resume(group, GROUP[names.pop()]([thread.request[1] for thread in group]))
    return found


def _by(threads: list[_Thread], key: Callable[[_Thread], int]) -> Iterator[tuple[int, list[_Thread]]]:
    """Threads with the same key, in the order of their numbers."""
    ordered = sorted(threads, key=lambda thread: (key(thread), thread.number))
    return ((value, [*members]) for value, members in groupby(ordered, key))


def _shared(rank: int | None = None) -> int:
    """Where the shared memory of a block of the cluster begins, or that of this thread's block."""
    thread: _Thread = getcurrent()
    return thread.cluster.shared[thread.index if rank is None else rank]


_BLOCKS = "barrier", "cluster_barrier", "wait_for_turn", "pass_turn"

_TOGETHER: dict[str, Callable[..., Any]] = {
    **{name: _wait(name) for name in (*_BLOCKS, *GROUP, *WARP)},
    "thread": lambda: getcurrent().number,
    "block_x": lambda: getcurrent().block[0],
    "block_y": lambda: getcurrent().block[1],
    "block_z": lambda: getcurrent().block[2],
    "blocks_x": lambda: getcurrent().grid[0],
    "blocks_y": lambda: getcurrent().grid[1],
    "shared": _shared,
    "shared_of_block": lambda a, rank: a - _shared() + _shared(rank),
    "wait_for_grid": lambda: None,
    "launch_dependents": lambda: None,
    "fence": lambda: None,
    "fence_system": lambda: None,
    "commit_copies": lambda: None,
    "wait_copies": lambda: None,
    "wait_copies_all_but_1": lambda: None,
    "wait_copies_all_but_2": lambda: None,
    "wait_copies_all_but_3": lambda: None,
    "wait_copies_all_but_4": lambda: None,
    "wait_products": lambda: None,
    "wgmma_wait_all_but_1": lambda: None,
    "fence_async_proxy": lambda: None,
}
