"""The ends of a mixture of experts whose input another processor writes, such as a GPU that reads its output.

Both share memory, and tell each other by numbers in it how far they are. That costs a trip over the bus,
where starting and ending work on a GPU costs many.
"""

from __future__ import annotations

from typing import Any

from .....quant.jit.decorators import jit, kernel
from .....quant.jit.simd.threads import atomic_load, atomic_store, call_kernel, pause
from ...abi.records import EXCHANGE
from .access import record_reader, step_at

exchange_at = record_reader(EXCHANGE)
SPINS = 2000  # reads of a flag before yielding the processor, which another thread may need


@jit
def _wait_for(flag: int, number: int, a: Any) -> None:
    """Spin until the int64 at address `flag` is at least `number`, or until waiting has failed."""
    reads = 0
    while atomic_load(flag) < number:
        pause()
        reads += 1
        if reads > SPINS:
            if a.give_way != 0:
                call_kernel(a.give_way, 0, 0, 0)
            if reads > a.patience:
                atomic_store(a.failed, 1)
            if atomic_load(a.failed) != 0:
                return


@kernel
def await_rows(arguments: int, step: int, thread: int) -> None:
    """Wait until the rows of this exchange have been written. Every thread waits for itself."""
    a, s = exchange_at(arguments), step_at(step)
    if s.n_logits > 0 or not a.on_logits_rows:
        _wait_for(a.asked, atomic_load(a.first) + a.index, a)


@kernel
def answer_rows(arguments: int, step: int, thread: int) -> None:
    """Say that the output is complete: behind a barrier, by thread 0."""
    a = exchange_at(arguments)
    if thread == 0:
        atomic_store(a.answered, atomic_load(a.first) + a.index)
