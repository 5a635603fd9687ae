"""Mixtures of experts on the CPU, for a program whose other ops run on another machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...quant.block import QTensor
from ..ops import MoE, Program
from ..ops.buffer import buffers_of
from .machine import CpuMachine, default_threads
from .team import Team


class CpuExperts:
    """The experts of `mixtures`, repacked for the CPU, and a team of threads for all of them.

    `max_rows` is the most rows of a step; `threads`, `release` and `progress` are as for CpuMachine. Not
    thread-safe.
    """

    def __init__(
        self,
        mixtures: Sequence[MoE],
        max_rows: int,
        threads: int | None = None,
        release: Callable[[QTensor], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._team = Team(threads or default_threads())
        self._machines: dict[int, CpuMachine] = {}  # by `id` of the op
        try:
            for mixture in mixtures:
                self._machines[id(mixture)] = CpuMachine(
                    program_of(mixture),
                    1,
                    max_rows=max_rows,
                    release=release,
                    progress=progress,
                    team=self._team,
                )
        except BaseException:
            self.close()
            raise

    @property
    def n_threads(self) -> int:
        """Threads of the team."""
        return self._team.n_threads

    def __contains__(self, mixture: MoE) -> bool:
        return id(mixture) in self._machines

    def run(self, mixture: MoE, x: np.ndarray, experts: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The op's output, float32 [rows, outputs], valid until it is run again.

        `x` is float32 [rows, inputs], `experts` and `weights`, float32 [rows, top k], are what the router has
        chosen.
        """
        return self._machines[id(mixture)].transform([x, experts, weights])[0]

    def close(self) -> None:
        """End the threads and free the memory. A later `run` raises RuntimeError."""
        for machine in self._machines.values():
            machine.close()
        self._team.close()


def program_of(mixture: MoE) -> Program:
    """The op by itself: what it reads comes from outside, what it writes stays for outside."""
    return Program(
        (mixture,),
        buffers_of([mixture]),
        cache_layers=(),
        logits=mixture.out,
        layers=(0, 1),
        residual=(mixture.out,),
        boundary_in=(mixture.x, mixture.experts, mixture.routing_weights),
        boundary_out=(mixture.out,),
    )
