"""A plugin for pytest that asks the GPU for what tests ask of the CPU machine, where there is a card.

    pytest -p kukri.tests.on_the_card tests/runtime/adapters tests/runtime/embedding -k cpu

Tests load models with `kukri.load(device="cpu")` or make a CpuMachine themselves; both get a CudaMachine.
Tests of what only the CPU machine has (threads, SIMD levels, few rows rounded as one) are not meant.
"""

from __future__ import annotations

from typing import Any

import kukri
import kukri.runtime.cpu.machine as cpu_machine
from kukri.runtime.cuda.machine import CudaMachine

_load = kukri.load


class _OnTheCard(CudaMachine):
    """A CudaMachine that takes the arguments of a CpuMachine."""

    n_threads = 1
    team = None

    def __init__(self, *args: Any, threads: int = 1, team: object = None, **more: Any) -> None:
        super().__init__(*args, **more)


def _load_on_the_card(*args: Any, device: str = "auto", **more: Any) -> Any:
    if device == "cpu":
        device = "cuda"
        more.pop("threads", None)
    return _load(*args, device=device, **more)


kukri.load = _load_on_the_card
cpu_machine.CpuMachine = _OnTheCard  # type: ignore[misc]
