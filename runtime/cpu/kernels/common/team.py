"""The loop that every thread of a team runs for a step: call the instructions in order, meet at barriers.

Thread 0 posts a step (`post`) and runs its part (`lead`); the worker threads wait for posted steps and run
theirs (`follow`). Barriers are numbered. A worker that arrives at one writes its number to a cache line of
its own; thread 0, once it has read that in the lines of all workers, writes the number to the TEAM record,
where they wait for it, so that no line is written by two threads. Waiting spins because a barrier is passed
within a fraction of a microsecond and a decode step has hundreds of them; `runtime.cpu.team` explains when
workers sleep instead.
"""

from __future__ import annotations

from typing import Any

from .....quant.jit.decorators import jit, kernel
from .....quant.jit.simd.memory import prefetch_far
from .....quant.jit.simd.threads import atomic_add, atomic_load, atomic_store, call_kernel, pause
from ...abi.records import INSTRUCTION, TEAM
from ...simd.dot16 import load_i64
from .access import record_reader, step_at

team_at = record_reader(TEAM)
instruction_at = record_reader(INSTRUCTION)
POSTED, RELEASED = TEAM.fields["posted"][1], TEAM.fields["released"][1]  # type: ignore[index]  # byte offsets
INSTRUCTION_BYTES, ARRIVAL_BYTES, AHEAD_BYTES = INSTRUCTION.itemsize, 64, 32

SPINS = 2000  # reads of a barrier's counter before yielding the processor, which another thread may need
LINES = 16  # cache lines prefetched between two reads of a barrier's counter


@jit
def _wait_until(counter: int, value: int, give_way: int) -> None:
    """Spin until the int64 at address `counter` is at least `value`.

    After SPINS reads, call the C function at address `give_way` (if any) between reads.
    """
    spins = 0
    while atomic_load(counter) < value:
        pause()
        spins += 1
        if spins > SPINS and give_way != 0:
            call_kernel(give_way, 0, 0, 0)


@jit
def _prefetch_until(counter: int, value: int, ahead: int) -> None:
    """Prefetch two runs of memory, whose bounds are int64 [4] at address `ahead`, line by line in turn, while
    the int64 at address `counter` is less than `value`; the first lines in any case."""
    first, end = load_i64(ahead), load_i64(ahead + 8)
    second, second_end = load_i64(ahead + 16), load_i64(ahead + 24)
    while first < end or second < second_end:
        for _ in range(LINES):
            if first < end:
                prefetch_far(first)
                first += 64
            if second < second_end:
                prefetch_far(second)
                second += 64
        if atomic_load(counter) >= value:
            return


@jit
def _meet(team: int, shared: Any, thread: int, barrier: int, ahead: int) -> None:
    """Pass a barrier; they are numbered. `ahead` as in `_prefetch_until`, 0 for none."""
    if thread > 0:
        atomic_store(shared.arrivals + ARRIVAL_BYTES * thread, barrier)
    else:
        for other in range(1, shared.n_threads):
            arrival = shared.arrivals + ARRIVAL_BYTES * other
            if ahead != 0 and atomic_load(arrival) < barrier:
                _prefetch_until(arrival, barrier, ahead)
                ahead = 0
            _wait_until(arrival, barrier, shared.give_way)
        atomic_store(team + RELEASED, barrier)
    if ahead != 0:
        _prefetch_until(team + RELEASED, barrier, ahead)
    _wait_until(team + RELEASED, barrier, shared.give_way)


@jit
def _run(team: int, step: int, thread: int) -> None:
    """Call all instructions of the step as thread number `thread`.

    Other threads may be at the first barrier already, but none can pass it without this thread. So the number
    of the last barrier that was passed is still that of the step before.
    """
    s, shared, barrier = step_at(step), team_at(team), atomic_load(team + RELEASED)
    for i in range(s.n_instructions):
        instruction = instruction_at(s.instructions + INSTRUCTION_BYTES * i)
        call_kernel(instruction.kernel, instruction.arguments, step, thread)
        if instruction.barrier:
            barrier += 1
            ahead = instruction.ahead
            _meet(team, shared, thread, barrier, ahead + AHEAD_BYTES * thread if ahead != 0 else 0)


@kernel
def post(team: int, step: int, thread: int) -> None:
    """Publish the STEP record at address `step` to the workers of the TEAM record at address `team`."""
    shared = team_at(team)
    shared.step = step
    atomic_add(team + POSTED, 1)


@kernel
def lead(team: int, step: int, thread: int) -> None:
    """Run the step posted last as thread 0, and count it in `led`. Returns after its last barrier."""
    _run(team, step, 0)
    team_at(team).led += 1


@kernel
def follow(team: int, done: int, thread: int) -> None:
    """Run steps as worker number `thread` until none has been posted for so many reads as TEAM says.

    `done` is the address of the int64 number of steps that this worker has run; it is updated here.
    """
    shared = team_at(team)
    spins = 0
    while spins < shared.idle_spins:
        if atomic_load(team + POSTED) > atomic_load(done):
            _run(team, shared.step, thread)
            atomic_add(done, 1)
            spins = 0
        pause()
        spins += 1
