"""What a first run waits for: kernels that are compiled before the first token, and behind it. Without a card
they are compiled for an H200 all the same, and no launch does anything."""

from __future__ import annotations

import ctypes
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from kukri.cli.console.table import markdown_table
from kukri.quant.block import QTensor
from kukri.quant.jit.kernel_cache import cache_folder
from kukri.runtime.cuda import machine as machines
from kukri.runtime.cuda.compile import workers
from kukri.runtime.cuda.compile.kernel import CudaKernel, Kernels
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.errors import NoCudaDevice
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.weights.packing import packed_bytes
from kukri.runtime.cuda.weights.upload import Matrix
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.ops import Program

from .models import load_fixture, random_model

PROMPT, LONG_PROMPT, ANSWER = 40, 512, 4  # tokens
TOP_K = 40  # of the usual sampling settings
PTX = 2  # nvJitLinkInputType


class PlannedCard:
    """The interface of `driver.device.Device`: an H200 that does nothing and has no memory, with nvJitLink in
    place of the driver's linker."""

    capability = (9, 0)
    multiprocessors = 132
    warpgroups = True
    name = "H200 that is not there"
    index = 0

    def __init__(self) -> None:
        pathfinder = importlib.import_module("cuda.pathfinder")
        self._next = 1 << 40
        self._linker: Any = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("nvJitLink").abs_path)

    def use(self) -> None: ...

    def wait(self) -> None: ...

    def close(self) -> None: ...

    def allocate(self, n_bytes: int) -> int:
        address = self._next
        self._next += -(-n_bytes // 256) * 256
        return address

    def pinned(self, n_bytes: int) -> np.ndarray:
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: int, source: np.ndarray) -> None: ...

    def download(self, out: np.ndarray, address: int) -> None: ...

    def clear(self, address: int, n_bytes: int) -> None: ...

    def launch(self, launch: object) -> None: ...

    @contextmanager
    def capture(self) -> Iterator[object]:
        yield None

    def run(self, graph: object) -> None: ...

    def load(self, code: bytes, name: str, shared_bytes: int = 0) -> int:
        return 1

    def assemble(self, ptx: str) -> bytes:
        handle, size, text = ctypes.c_void_p(), ctypes.c_size_t(), ptx.encode() + b"\0"
        option = b"-arch=sm_90a" if ".target sm_90a" in ptx else b"-arch=sm_90"
        self._call("Create", ctypes.byref(handle), 1, (ctypes.c_char_p * 1)(option))
        try:
            self._call("AddData", handle, PTX, text, ctypes.c_size_t(len(text)), b"kernel")
            self._call("Complete", handle)
            self._call("GetLinkedCubinSize", handle, ctypes.byref(size))
            cubin = ctypes.create_string_buffer(size.value)
            self._call("GetLinkedCubin", handle, cubin)
            return cubin.raw
        finally:
            self._call("Destroy", ctypes.byref(handle))

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._linker[f"nvJitLink{name}"](*arguments)
        if code:
            raise RuntimeError(f"nvJitLink{name} returned {code}")


class WatchedKernels(Kernels):
    """Notes how long steps wait for kernels: the number of these and seconds, by stage."""

    stage = "loading"

    def __init__(self, card: Device) -> None:
        super().__init__(card)
        self.waits: dict[str, tuple[int, float]] = {}

    def begin(self, stage: str) -> None:
        self.stage = stage

    def _compile_now(self, missing: list[CudaKernel]) -> None:
        begin = time.perf_counter()
        super()._compile_now(missing)
        n, seconds = self.waits.get(self.stage, (0, 0.0))
        self.waits[self.stage] = n + len(missing), seconds + time.perf_counter() - begin


class ListedKernels:
    """The interface of `Kernels`: notes what is asked for, and compiles nothing."""

    def __init__(self, device: PlannedCard) -> None:
        self.device = device
        self.wanted: dict[CudaKernel[Any], None] = {}

    def compile_all(self, ask: Callable[[], object]) -> None:
        ask()

    def compile_in_order(
        self,
        capacity: str,
        first: Callable[[], object],
        alike: Sequence[Callable[[], object]],
        later: Sequence[Callable[[], object]],
    ) -> None:
        for ask in (first, *later):
            ask()

    def complete(self, make: Callable[[], Any]) -> Any:
        return make()

    def close(self) -> None: ...

    def function(self, what: CudaKernel[Any], shared_bytes: int = 0) -> int:
        self.wanted[what] = None
        return 1


def first_run(shape: str, kind: str) -> None:
    """The waits of a first run with an empty cache, and the seconds that each kernel takes."""
    card: Device | PlannedCard
    try:
        card = Device()
    except NoCudaDevice:
        card = PlannedCard()
    program = program_of(shape, kind)
    seconds: dict[CudaKernel, float] = {}
    request = workers._request

    def timed(process: Any, kernel: CudaKernel, *rest: Any) -> str:
        begin = time.perf_counter()
        ptx = request(process, kernel, *rest)
        seconds[kernel] = time.perf_counter() - begin
        return ptx

    workers._request = timed  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KUKRI_HOME"] = folder
        cache_folder.cache_clear()
        kernels = WatchedKernels(cast("Device", card))
        begin = time.perf_counter()
        machine = make_machine(program, card, kernels)
        loaded = time.perf_counter() - begin
        answer(machine, kernels)
        kernels.begin("the rest")
        if kernels._workers is not None:
            kernels._compile_now([*kernels._workers._later])
        total = time.perf_counter() - begin
        machine.close()
    cache_folder.cache_clear()
    print(f"{shape} {kind} on the {card.name}, {os.cpu_count()} cores: loaded in {loaded:.1f} s")
    rows = [(stage, str(n), f"{s:.1f}") for stage, (n, s) in kernels.waits.items()]
    print(markdown_table(("stage", "kernels missing", "seconds waited"), rows, left=(0,)))
    together = sum(seconds.values())
    print(f"{len(seconds)} kernels, {together:.1f} s of processes; after {total:.1f} s all are there")
    for kernel, each in seconds.items():
        print(f"  {each:6.2f}  {kernel}")


def answer(machine: CudaMachine, kernels: WatchedKernels) -> None:
    """A short prompt, some tokens, and a long prompt."""
    table = PageTable(machine._n_pages)
    at = 0
    for stage, n in (("short prompt", PROMPT), *[("decode", 1)] * ANSWER, ("long prompt", LONG_PROMPT)):
        kernels.begin(stage)
        table.extend(0, n)
        rows = np.arange(n, dtype=np.int32)
        step = Batch(rows % 100, np.zeros(n, np.int32), rows + at, np.array([n - 1], np.int32))
        machine.top_k(step, table, TOP_K, machine.program.logits.width)
        at += n


def count_kernels(models: Iterable[str]) -> None:
    """How many kernels models ask for, each as SHAPE:TYPE or the path of a GGUF file, and how many of them no
    model in front of it does."""
    seen: set[CudaKernel] = set()
    rows = []
    for name in models:
        shape, _, kind = name.partition(":")
        card = PlannedCard()
        kernels = ListedKernels(card)
        make_machine(program_of(shape, kind), card, kernels)
        wanted = set(kernels.wanted)
        rows.append((Path(name).name, str(len(wanted)), str(len(wanted - seen))))
        seen |= wanted
    print(markdown_table(("model", "kernels", "new"), rows, left=(0,)))
    print(f"{len(seen)} in all")


def program_of(shape: str, kind: str) -> Program:
    path = Path(shape)
    return load_fixture(path.parent, path.name) if path.suffix == ".gguf" else random_model(shape, kind)


def make_machine(
    program: Program, card: Device | PlannedCard, kernels: Kernels | ListedKernels
) -> CudaMachine:
    """A machine with room for the prompts; no weights are packed for a card that is not there."""
    upload = machines.upload_weights
    if isinstance(card, PlannedCard):
        machines.upload_weights = _no_upload  # type: ignore[assignment]
    try:
        return CudaMachine(
            program, 16, max_rows=512, device=cast("Device", card), kernels=cast("Kernels", kernels)
        )
    finally:
        machines.upload_weights = upload


def _no_upload(device: Any, groups: Iterable[tuple[QTensor, ...]], *rest: Any) -> dict[int, Matrix]:
    return {id(w): Matrix(w, device.allocate(packed_bytes(w))) for group in groups for w in group}
