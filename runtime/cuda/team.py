"""Several GPUs that share the work of every layer (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...quant.errors import UnsupportedModel
from ..engine.cache import Batch, PageTable
from ..engine.observing import Observed, Tap
from ..engine.sampling.top_k import TopK, top_k_of
from ..engine.state import States
from ..ops import Buffer, Program
from .driver.device import Device
from .lowering.cards import CardGroup
from .machine import CudaMachine, Step, TopKRequest

MOST_SUMS = 1 << 30  # numbers of sums, before they start again


class CudaTeam:
    """CudaMachines for the parts that `tensor_parts` makes of a program, with the interface of one machine.

    `make` makes the machine of a part of the program on one of the devices, which must reach each other's
    memory. The machines run their graphs at the same time, and kernels in these exchange sums. Logits are
    those of the first machine. Not thread-safe.
    """

    def __init__(
        self,
        program: Program,
        parts: Sequence[Program],
        devices: Sequence[Device],
        make: Callable[[Program, Device, CardGroup], CudaMachine],
    ) -> None:
        self.program = program
        group = CardGroup(len(devices), shared=len({device.index for device in devices}) < len(devices))
        self.machines: list[CudaMachine] = []
        try:
            for part, device in zip(parts, devices, strict=True):
                self.machines.append(make(part, device, group))
            for machine in self.machines:
                machine.make_ready()
        except BaseException:
            self.close()
            raise
        self.max_rows = self.machines[0].max_rows
        self.max_logits = self.machines[0].max_logits
        self.kv_type = self.machines[0].kv_type
        self._next_sum = 1

    @property
    def states(self) -> States:
        """Of recurrent ops, which no model for several machines has."""
        return self.machines[0].states

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step."""
        self._run(batch, table, None)
        return self.machines[0].logits(len(batch.logits_indices))

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """Run the rows of `batch`; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        first, m = self.machines[0], len(batch.logits_indices)
        request = first.top_k_request(m, k, n_tokens)
        if request is None:
            return top_k_of(self.step(batch, table)[:, :n_tokens], k)
        self._run(batch, table, request)
        return first.selected(m, k, request)

    def _run(self, batch: Batch, table: PageTable, request: TopKRequest | None) -> None:
        # Nothing starts before all is ready: a GPU that waits for another one holds up its own allocations.
        steps: list[Step] = []
        for machine in self.machines:
            step = machine.prepare(batch, table, None if steps else request)
            if step is None:
                return
            steps.append(step)
        for machine, step in zip(self.machines, steps, strict=True):
            machine.number_sums(self._next_sum)
            machine.device.use()
            machine.start(step)
        self._next_sum += steps[0].n_sums
        if self._next_sum > MOST_SUMS:
            self._next_sum = 2 + (self._next_sum & 1)  # sums take two rooms in turn
        for machine, step in zip(self.machines, steps, strict=True):
            machine.device.use()
            machine.complete(step)

    @property
    def page_layout(self) -> str:
        """How a page's bytes are to be read: those of each machine in turn."""
        return " + ".join(machine.page_layout for machine in self.machines)

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page's keys and values, for each layer of the cache."""
        sizes = (machine.page_bytes for machine in self.machines)
        return tuple(sum(layer) for layer in zip(*sizes, strict=True))

    def read_page(self, page: int) -> np.ndarray:
        """A copy of the keys and values of a page in all layers, uint8 [bytes of a page]."""
        return np.concatenate([machine.read_page(page) for machine in self.machines])

    def write_page(self, page: int, content: np.ndarray) -> None:
        """Set the keys and values of a page to what `read_page` gave."""
        at = 0
        for machine in self.machines:
            size = sum(machine.page_bytes)
            machine.write_page(page, content[at : at + size])
            at += size

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page of the KV cache, in all layers."""
        for machine in self.machines:
            machine.copy_page(source, target)

    def observe(self, batch: Batch, table: PageTable, taps: Sequence[Tap]) -> Observed:
        """Raises UnsupportedModel: no machine has the buffers of the whole program."""
        raise UnsupportedModel(_NO_INSPECTION)

    def finish(self, at: int, values: Mapping[Buffer, np.ndarray]) -> np.ndarray:
        """Raises UnsupportedModel, like `observe`."""
        raise UnsupportedModel(_NO_INSPECTION)

    def close(self) -> None:
        """Free all memory. Later steps raise RuntimeError."""
        for machine in self.machines:
            machine.close()


_NO_INSPECTION = "cards that share every layer cannot be inspected; load the model on one card for that"
