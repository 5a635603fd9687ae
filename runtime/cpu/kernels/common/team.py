"""How a team of threads (`..team`) gets through a step: instruction by instruction, with spin barriers."""

from __future__ import annotations

from .....quant.jit.jit import jit, kernel
from .....quant.jit.simd import atomic_add, atomic_load, call_kernel, pause
from ...abi.records import INSTRUCTION, TEAM
from .access import reader, step_at

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
