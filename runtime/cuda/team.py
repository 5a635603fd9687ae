"""Several GPUs that share the work of every layer (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, zip_longest

import numpy as np

from ...quant.errors import UnsupportedModel
from ..engine.cache import Batch, PageTable
from ..engine.observing import Observed, Tap
from ..engine.sampling.top_k import TopK, top_k_of
from ..engine.state import States
from ..ops import Buffer, Program
from .card_starter import CardStarter
from .driver.device import Device
from .driver.errors import CudaError
from .lowering.cards import CardGroup
from .machine import CudaMachine
from .step import Step, TopKRequest

MOST_SUMS = 1 << 30  # numbers of sums, before they start again


class CudaTeam:
    """CudaMachines for the parts that `tensor_parts` makes of a program, with the interface of one machine.

    `make` makes the machine of a part of the program on one of the devices, which must reach each other's
    memory. The machines run their graphs at the same time, and kernels in these exchange sums. Each has the
    logits of a part of the vocabulary, or all have all. Not thread-safe.
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
        self._starter = CardStarter(len(devices))
        try:
            for part, device in zip(parts, devices, strict=True):
                self.machines.append(make(part, device, group))
            for machine in self.machines:
                machine.make_ready()
        except BaseException:
            self.close()
            raise
        self.max_rows = self.machines[0].max_rows
        self.max_logits = min(machine.max_logits for machine in self.machines)
        self.kv_type = self.machines[0].kv_type
        self._next_sum, self._running = 1, False
        widths = [part.logits.width for part in parts]
        self._divided = sum(widths) == program.logits.width  # the logits
        self._starts = [0, *accumulate(widths[:-1])] if self._divided else [0]
        for machine in self.machines[len(self._starts) :]:
            machine.gives_logits = False

    @property
    def states(self) -> States:
        """Of recurrent ops, which no model for several machines has."""
        return self.machines[0].states

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step."""
        self._run(batch, table, [])
        m = len(batch.logits_indices)
        if not self._divided:
            return self.machines[0].logits(m)
        return np.concatenate([machine.logits(m) for machine in self.machines], axis=1)

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """Run the rows of `batch`; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        m, requests = len(batch.logits_indices), list[TopKRequest]()
        # A machine that has none of these ids selects one that nobody reads.
        for machine, start in zip(self.machines, self._starts, strict=False):
            request = machine.top_k_request(m, k, max(1, n_tokens - start))
            if request is None:
                return top_k_of(self.step(batch, table)[:, :n_tokens], k)
            requests.append(request)
        self._run(batch, table, requests)
        found = [
            machine.selected(m, k, request)
            for machine, request, start in zip(self.machines, requests, self._starts, strict=False)
            if start < n_tokens
        ]
        return (
            found[0]
            if len(found) == 1
            else [merged(row, self._starts, k) for row in zip(*found, strict=True)]
        )

    def _run(self, batch: Batch, table: PageTable, requests: Sequence[TopKRequest]) -> None:
        if self._running:  # a step that Ctrl-C has interrupted
            for machine in self.machines:
                machine.wait()
        # Nothing starts before all is ready: a GPU that waits for another one holds up its own allocations.
        steps: list[Step] = []
        for machine, request in zip_longest(self.machines, requests):
            step = machine.prepare(batch, table, request)
            if step is None:
                return
            steps.append(step)
        self._running = True
        self._number_sums(steps[0].n_sums)
        self._starter.start(self.machines, steps)
        for machine, step in zip(self.machines, steps, strict=True):
            machine.device.use()
            machine.complete(step)
        self._running = False
        errors = [machine.take_error() for machine in self.machines]
        if any(errors):
            raise CudaError("a card has waited too long for what another one computes")

    def _number_sums(self, n: int) -> None:
        """Give the sums of the next step, `n` of them, numbers that none has had, if it starts or not."""
        first = self._next_sum
        if first > MOST_SUMS:
            first = 2 + (first & 1)  # sums take two rooms in turn
        self._next_sum = first + n
        for machine in self.machines:
            machine.number_sums(first)

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
        self._starter.close()
        for machine in self.machines:
            machine.close()


def merged(parts: Sequence[TopK], starts: Sequence[int], k: int) -> TopK:
    """The top `k` of a row, of those of parts of the vocabulary that begin at these ids."""
    for part in parts:
        if np.isnan(part.logits[0]):
            return part
    if k == 1:
        best = max(range(len(parts)), key=lambda i: parts[i].logits[0])  # the first among equals
        return TopK(parts[best].ids + starts[best], parts[best].logits)
    ids = np.concatenate([part.ids + start for part, start in zip(parts, starts, strict=False)])
    logits = np.concatenate([part.logits for part in parts])
    order = np.argsort(-logits, kind="stable")[:k]
    return TopK(ids[order], logits[order])


_NO_INSPECTION = "cards that share every layer cannot be inspected; load the model on one card for that"
