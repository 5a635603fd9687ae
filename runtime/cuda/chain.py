"""A model split by layers over several GPUs: each runs its part of the layers, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..engine.cache import NO_LOGITS, Batch, PageTable
from ..engine.sampling.top_k import TopK, top_k_of
from ..engine.split import SplitMachine
from .machine import CudaMachine
from .step import TopKRequest


class CudaChain(SplitMachine):
    """CudaMachines for consecutive parts of a program, with the interface of one machine.

    The residual stream goes from GPU to GPU by copies on their streams. A step without logits returns when it
    is enqueued: while a GPU computes a chunk of a prompt, the one in front computes the next chunk. Not
    thread-safe.
    """

    front: CudaMachine
    back: CudaMachine | CudaChain

    def __init__(self, machines: Sequence[CudaMachine]) -> None:
        front, *others = machines
        super().__init__(front, others[0] if len(others) == 1 else CudaChain(others))
        self.machines = tuple(machines)
        for source, target in pairwise(machines):
            target.device.reaches(source.device)  # if so, copies do not go through the host
            source.leaves_on_card = target.takes_on_card = True
        # The marks of each GPU but the last: its part of a step is computed; the next GPU has taken it.
        self._computed = [machine.device.event(timed=False) for machine in machines[:-1]]
        self._taken = [machine.device.event(timed=False) for machine in others]

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(logits_indices), vocab], valid until the next step.

        Raises as CudaMachine does; what fails on a GPU of a step without logits is raised later.
        """
        self._run(batch, table, None)
        return self.machines[-1].logits(len(batch.logits_indices))

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """Run the rows of `batch`; the top k of the first `n_tokens` ids for each row in `logits_indices`."""
        last, m = self.machines[-1], len(batch.logits_indices)
        request = last.top_k_request(m, k, n_tokens)
        if request is None:
            return top_k_of(self.step(batch, table)[:, :n_tokens], k)
        self._run(batch, table, request)
        return last.selected(m, k, request)

    def read_boundary(self, n_rows: int) -> list[np.ndarray]:
        """The `boundary_out` buffers of the last part after a step, float32 [n_rows, width] each."""
        self.machines[-1].wait()
        return self.machines[-1].read_boundary(n_rows)

    def write_boundary(self, values: Sequence[np.ndarray]) -> None:
        """Set the `boundary_in` buffers of the first part for the next step, float32 [rows, width] each."""
        self.front.write_boundary(values)

    def _run(self, batch: Batch, table: PageTable, request: TopKRequest | None) -> None:
        early, last = replace(batch, logits_indices=NO_LOGITS), len(self.machines) - 1
        for i, machine in enumerate(self.machines):
            machine.wait()  # for its previous step, whose inputs the next one overwrites
            step = machine.prepare(batch if i == last else early, table, request if i == last else None)
            if step is None:
                return
            if i:
                self._hand_over(i - 1, len(batch.tokens))
            machine.start(step)
            if i < last:
                self._computed[i].record()
                machine.states.end(batch)
            elif len(batch.logits_indices):
                machine.complete(step)
            else:
                machine.states.end(batch)

    def _hand_over(self, i: int, n_rows: int) -> None:
        """Enqueue copies of what GPU number `i` has left to the next one, which waits for that; the first one
        must not begin its next step before."""
        source, target = self.machines[i : i + 2]
        target.device.wait_for(self._computed[i])
        buffers = zip(source.program.boundary_out, target.program.boundary_in, strict=True)
        for left, taken in buffers:
            a, b = source.lowering.region(left), target.lowering.region(taken)
            whole = a.stride == b.stride == 4 * left.width
            rows, size = (1, n_rows * a.stride) if whole else (n_rows, 4 * left.width)
            for row in range(rows):
                origin, to = a.address + row * a.stride, b.address + row * b.stride
                target.device.copy_from(source.device, to, origin, size)
        self._taken[i].record()
        source.device.use()
        source.device.wait_for(self._taken[i])
        target.device.use()
