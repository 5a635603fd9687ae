"""The loop that every thread of a team runs for a step: call the instructions in order, meet at barriers.

Thread 0 posts a step (`post`) and runs its part (`lead`); the worker threads wait for posted steps and run
theirs (`follow`). A barrier is a counter in the TEAM record that only grows: each thread adds 1 when it
arrives and spins until all have. Waiting spins because a barrier is passed within a fraction of a microsecond
and a decode step has hundreds of them; `runtime.cpu.team` explains when workers sleep instead.
"""

from __future__ import annotations

from .....quant.jit.decorators import jit, kernel
from .....quant.jit.simd.memory import prefetch
from .....quant.jit.simd.threads import atomic_add, atomic_load, call_kernel, pause
from ...abi.records import INSTRUCTION, TEAM
from ...simd.dot16 import load_i64
from .access import record_reader, step_at

team_at = record_reader(TEAM)
instruction_at = record_reader(INSTRUCTION)
POSTED, ARRIVED = TEAM.fields["posted"][1], TEAM.fields["arrived"][1]  # type: ignore[index]  # byte offsets
INSTRUCTION_BYTES = INSTRUCTION.itemsize

SPINS = 2000  # reads of a barrier's counter before yielding the processor, which another thread may need
LINES = 16  # cache lines prefetched between two reads of a barrier's counter
IDLE_SPINS = 4000  # reads of the posted counter before a worker goes to sleep: about 100 microseconds


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
                prefetch(first)
                first += 64
            if second < second_end:
                prefetch(second)
                second += 64
        if atomic_load(counter) >= value:
            return


@jit
def _run(team: int, step: int, thread: int, arrivals: int) -> None:
    """Call all instructions of the step as thread number `thread`.

    `arrivals` is the value that the barrier counter had before any thread arrived at this step's first
    barrier, a multiple of n_threads. Barrier k is passed when the counter reaches arrivals + k · n_threads.
    """
    s, shared = step_at(step), team_at(team)
    for i in range(s.n_instructions):
        instruction = instruction_at(s.instructions + INSTRUCTION_BYTES * i)
        call_kernel(instruction.kernel, instruction.arguments, step, thread)
        if instruction.barrier:
            arrivals += s.n_threads
            atomic_add(team + ARRIVED, 1)
            if instruction.ahead != 0:
                _prefetch_until(team + ARRIVED, arrivals, instruction.ahead + 32 * thread)
            _wait_until(team + ARRIVED, arrivals, shared.give_way)


@kernel
def post(team: int, step: int, thread: int) -> None:
    """Publish the STEP record at address `step` to the workers of the TEAM record at address `team`."""
    shared = team_at(team)
    shared.step = step
    atomic_add(team + POSTED, 1)


@kernel
def lead(team: int, step: int, thread: int) -> None:
    """Run the step posted last as thread 0, and count it in `led`. Returns after its last barrier."""
    arrivals = atomic_load(team + ARRIVED)
    shared = team_at(team)
    _run(team, step, 0, arrivals - arrivals % shared.n_threads)
    shared.led += 1


@kernel
def follow(team: int, done: int, thread: int) -> None:
    """Run steps as worker number `thread` until none has been posted for IDLE_SPINS reads.

    `done` is the address of the int64 number of steps that this worker has run; it is updated here.
    """
    shared = team_at(team)
    spins = 0
    while spins < IDLE_SPINS:
        if atomic_load(team + POSTED) > atomic_load(done):
            # Other threads may have arrived at the first barrier already, but cannot pass it without this
            # thread. So the counter is less than n_threads above its value at the start of the step, and
            # rounding down to a multiple of n_threads gives that value.
            step = shared.step
            arrivals = atomic_load(team + ARRIVED)
            _run(team, step, thread, arrivals - arrivals % shared.n_threads)
            atomic_add(done, 1)
            spins = 0
        pause()
        spins += 1
