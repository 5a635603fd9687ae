"""A list of kernel calls under construction, with barriers inserted where threads depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....quant.jit.kernel import CpuKernel
from ..arena import Arena, Region
from .records import INSTRUCTION

# How an instruction's work is partitioned over the threads. Between two instructions with the same partition
# (other than OTHER) no barrier is needed, since each thread reads only what it wrote itself.
ROWS, LOGITS_ROWS, OTHER = "rows", "logits rows", "other"

Progress = Callable[[str, int, int], None]  # (stage, done, total)


@dataclass
class _Access:
    """Names of the shared regions that an instruction reads and writes, and its partition."""

    reads: set[str]
    writes: set[str]
    partition: str


class Instructions:
    """Kernels with their argument records, in program order."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.names: list[str] = []  # a readable name for each instruction, for profiles
        self._kernels: list[tuple[CpuKernel, np.ndarray]] = []
        self._barriers: list[bool] = []
        self._pending: list[_Access] = []  # accesses since the last barrier
        self._ahead: list[np.ndarray | None] = []  # of each instruction, the memory that its threads read

    def append(
        self,
        kernel: CpuKernel,
        record: np.dtype,
        reads: Iterable[Region],
        writes: Iterable[Region],
        partition: str = OTHER,
        **values: Any,
    ) -> None:
        """Append a call of `kernel` with a `record` of `values`, fields not named being 0.

        A barrier is put before the call if it conflicts with a pending access to a shared region; regions
        with a copy for each thread never conflict.
        """
        reads, writes = list(reads), list(writes)
        access = _Access(_shared_names(reads), _shared_names(writes), partition)
        if any(_conflict(before, access) for before in self._pending):
            self._barriers[-1] = True
            self._pending.clear()
        self._pending.append(access)
        arguments = self.arena.keep(np.zeros(1, record))
        for name, value in values.items():
            arguments[name] = value
        self._kernels.append((kernel, arguments))
        self._barriers.append(False)
        self._ahead.append(None)
        self.names.append(f"{kernel} → {writes[0].name.split()[0] if writes else ''}")

    def read_ahead(self, runs: np.ndarray) -> None:
        """Let threads prefetch for the last instruction while they wait at barriers before it.

        `runs`, int64 [n_threads, 4], are the bounds of two runs of memory that each thread reads first.
        """
        self._ahead[-1] = self.arena.keep(runs)

    @property
    def kernels(self) -> list[CpuKernel]:
        """The distinct kernels, in the order of their first call."""
        return list({id(kernel): kernel for kernel, _ in self._kernels}.values())

    def table(self) -> np.ndarray:
        """INSTRUCTION [n] for the team to run. Compiles kernels that are not compiled yet."""
        table = np.zeros(len(self._kernels), INSTRUCTION)
        for row, (kernel, arguments), barrier in zip(table, self._kernels, self._barriers, strict=True):
            row["kernel"], row["arguments"] = kernel.address, arguments.ctypes.data
            row["barrier"] = barrier
        table[-1]["barrier"] = True  # thread 0 returns only when all threads have finished
        self._look_ahead(table)
        return table

    def _look_ahead(self, table: np.ndarray) -> None:
        """Let the threads that wait at a barrier prefetch for the next instruction that says what it reads;
        behind the last one that is the first one of the next step."""
        ahead = next((memory for memory in self._ahead if memory is not None), None)
        for row, memory in zip(reversed(table), reversed(self._ahead), strict=True):
            if row["barrier"] and ahead is not None:
                row["ahead"] = ahead.ctypes.data
            ahead = ahead if memory is None else memory


def _shared_names(regions: list[Region]) -> set[str]:
    """Names of the regions that threads share."""
    return {region.name for region in regions if not region.thread_stride}


def _conflict(before: _Access, after: _Access) -> bool:
    """Whether a barrier must separate two instructions: a read after a write, a write after a read, or a
    write after a write of the same region, unless both use the same partition.
    """
    if before.partition == after.partition != OTHER:
        return False
    return bool(before.writes & (after.reads | after.writes) or before.reads & after.writes)
