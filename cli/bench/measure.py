"""Timed runs of prefill and decode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...runtime.engine.cache import Batch
from ...runtime.ops import Program
from .plan import Test

if TYPE_CHECKING:
    from ...runtime.cuda.driver.device import Device
    from ...runtime.engine.cache import PageTable
    from ...runtime.engine.machine import Machine

WARM_UP_TOKENS = 16  # of decoding; they take as long each as the ones that count


@dataclass(frozen=True)
class Used:
    """The program of a loaded model, and the devices that run it."""

    program: Program  # where the CPU and the GPU share the layers, the GPU's part
    threads: int  # of the CPU machine, else 1
    kv_type: str
    cuda_device: Device | None = None
    gpu_layers: int = 0
    both: bool = False  # several memories are read at once or in turn
    gpu_names: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """The backend's name in llama-bench."""
        return "CPU" if self.cuda_device is None else "CUDA"


def used_devices(machine: Any) -> Used:
    """The devices of a machine, of all machines of several GPUs, or of both parts of a SplitMachine."""
    front, back = getattr(machine, "front", None), getattr(machine, "back", machine)
    if cards := getattr(machine, "machines", ()):
        names = tuple(card.device.name for card in cards)
        n_layers = len(machine.program.layers) - 1
        together = front is None  # they read their memories at the same time
        return Used(machine.program, 1, machine.kv_type, cards[0].device, n_layers, together, names)
    cuda_device: Device | None = getattr(back, "device", None)
    layers = len(back.program.layers) - 1 if cuda_device else 0
    threads = int(getattr(front or back, "n_threads", 1))
    names = (cuda_device.name,) if cuda_device else ()
    return Used(back.program, threads, back.kv_type, cuda_device, layers, front is not None, names)


def random_ids(n: int, vocab_size: int) -> np.ndarray:
    """Pseudo-random token ids, int32 [n], the same in every process."""
    return np.random.default_rng(0).integers(0, vocab_size, n).astype(np.int32)


def measure(
    machine: Machine,
    table: PageTable,
    vocab_size: int,
    test: Test,
    repetitions: int,
    warm_up: bool = True,
) -> list[float]:
    """Seconds that each of `repetitions` runs of `test` took, after one that does not count.

    The ids are pseudo-random, the same for each sequence. Prefill wants the logits of a sequence's last
    token, decode those of each.
    """
    ids = random_ids(test.n_depth + test.n_tokens, vocab_size)
    sequences = range(test.n_parallel)
    for sequence in sequences:
        table.truncate(sequence, 0)
    _prefill(machine, table, ids[: test.n_depth], sequences)
    # Decoding moves recurrent states on.
    states = [machine.states.save(sequence) for sequence in sequences] if test.n_depth else []
    ids = ids[test.n_depth :]
    if warm_up:
        _run(machine, table, test, ids[: test.n_prompt + min(test.n_gen, WARM_UP_TOKENS)])
    seconds = []
    for _ in range(repetitions):
        for sequence in sequences:
            table.truncate(sequence, test.n_depth)
        for sequence, state in enumerate(states):
            machine.states.restore(sequence, state)
        start = perf_counter()
        _run(machine, table, test, ids)
        seconds.append(perf_counter() - start)
    for sequence in sequences:
        table.truncate(sequence, 0)
    return seconds


def _run(machine: Machine, table: PageTable, test: Test, ids: np.ndarray) -> None:
    _prefill(machine, table, ids[: test.n_prompt], range(test.n_parallel))
    parts = [
        np.arange(first, min(first + machine.max_logits, test.n_parallel), dtype=np.int32)
        for first in range(0, test.n_parallel, machine.max_logits)
    ]
    for i in range(test.n_prompt, len(ids)):
        for sequences in parts:
            n = len(sequences)
            positions = table.lengths[sequences]
            for sequence in sequences.tolist():
                table.extend(sequence, 1)
            tokens = np.full(n, ids[i], np.int32)
            machine.step(Batch(tokens, sequences, positions, np.arange(n, dtype=np.int32)), table)


def _prefill(machine: Machine, table: PageTable, ids: np.ndarray, sequences: range) -> None:
    """Prefill the same tokens for each sequence, one behind the other, in steps as large as can be."""
    n = len(ids)
    rows = np.arange(n * len(sequences), dtype=np.int32)
    first = int(table.lengths[0])  # that of all of them
    size = min(machine.max_rows, machine.max_logits * max(1, n))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        of = part // n
        for sequence in np.unique(of).tolist():
            table.extend(sequence, int((of == sequence).sum()))
        ends = np.flatnonzero(part % n == n - 1).astype(np.int32)
        machine.step(Batch(ids[part % n], of, first + part % n, ends), table)


class LoadTimes:
    """Splits the time of loading into `load_seconds` and `compile_seconds`; a context manager around it.

    Compiling is the longer of two: how long Numba's compiler was at work in this process, and the stages of
    loading that say they compile (`stage` is the progress of `load_model`), which may let other processes
    do it. It counts only if the folder of compiled kernels gained files meanwhile; what comes
    out of that folder is part of the loading.
    """

    def __init__(self, kernels: Path) -> None:
        self.load_seconds = self.compile_seconds = 0.0
        self._kernels = kernels
        self._since: float | None = None  # when a stage that compiles began
        self._stages = 0.0

    def stage(self, name: str, done: int, total: int) -> None:
        now = perf_counter()
        if self._since is not None:
            self._stages += now - self._since
        self._since = now if name.startswith("compiling") else None

    def __enter__(self) -> Self:
        from numba.core import event

        self._files = self._count()
        self._compiler = event.TimingListener()
        event.register("numba:compiler_lock", self._compiler)
        self._start = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        from numba.core import event

        seconds = perf_counter() - self._start
        self.stage("", 0, 0)
        event.unregister("numba:compiler_lock", self._compiler)
        if self._count() > self._files:
            compiler = self._compiler.duration if self._compiler.done else 0.0
            self.compile_seconds = min(seconds, max(self._stages, compiler))
        self.load_seconds = seconds - self.compile_seconds

    def _count(self) -> int:
        return sum(1 for path in self._kernels.rglob("*") if path.is_file())
