"""A list of instructions in the making, and where in it threads must wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....quant.jit.kernel import CpuKernel
from ..arena import Memory, Region
from .records import INSTRUCTION

# How threads share an instruction's work. Two instructions that give every thread the same rows need no
# barrier between them, since no thread reads what another wrote.
ROWS, LOGITS_ROWS, OTHER = "rows", "logits rows", "other"


@dataclass
class _Access:
    reads: set[str]
    writes: set[str]
    sharing: str


class Instructions:
    """Kernels with their arguments, in order. `written` counts what wrote a region, to know what is stale."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.names: list[str] = []  # of the instructions, for people
        self._kernels: list[tuple[CpuKernel, np.ndarray]] = []
        self._barriers: list[bool] = []
        self._pending: list[_Access] = []  # since the last barrier

    def emit(
        self,
        kernel: CpuKernel,
        record: np.dtype,
        reads: Iterable[Region],
        writes: Iterable[Region],
        sharing: str = OTHER,
        **values: Any,
    ) -> None:
        """Append an instruction; a thread's own copy of a row is nobody else's concern."""
        reads, writes = list(reads), list(writes)
        access = _Access(
            {r.name for r in reads if not r.private}, {r.name for r in writes if not r.private}, sharing
        )
        if any(_conflict(before, access) for before in self._pending):
            self._barriers[-1] = True
            self._pending.clear()
        self._pending.append(access)
        arguments = self.memory.keep(np.zeros(1, record))
        for name, value in values.items():
            arguments[name] = value
        self._kernels.append((kernel, arguments))
        self._barriers.append(False)
        self.names.append(f"{kernel} → {writes[0].name.split()[0] if writes else ''}")

    @property
    def kernels(self) -> list[CpuKernel]:
        """Each kernel once, in the order of first use."""
        return list({id(kernel): kernel for kernel, _ in self._kernels}.values())

    def table(self) -> np.ndarray:
        """INSTRUCTION [n]; compiles the kernels that nobody has compiled yet."""
        table = np.zeros(len(self._kernels), INSTRUCTION)
        for row, (kernel, arguments), barrier in zip(table, self._kernels, self._barriers, strict=True):
            row["kernel"], row["arguments"] = kernel.address, arguments.ctypes.data
            row["barrier"] = barrier
        table[-1]["barrier"] = True  # whoever leads returns when all are done
        return table


def _conflict(before: _Access, after: _Access) -> bool:
    if before.sharing == after.sharing != OTHER:
        return False
    return bool(before.writes & (after.reads | after.writes) or before.reads & after.writes)


Progress = Callable[[str, int, int], None]
