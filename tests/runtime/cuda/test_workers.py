"""Kernels compiled by other processes, and what is said of cards and drivers that are not suited."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from kukri.runtime.cuda.compile import workers
from kukri.runtime.cuda.compile.kernel import ENTRY, Kernels, kernel
from kukri.runtime.cuda.driver import device as driver
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.errors import CudaError, CudaOutOfMemory, CudaUnavailable
from kukri.runtime.cuda.kernels.common import pointwise
from kukri.runtime.model.cuda_device import gpu_memory

KERNELS = [kernel(pointwise.add, 256, PDL=0), kernel(pointwise.soft_cap, 256, PDL=0)]
MANY = [kernel(pointwise.add, 32 * i, PDL=0) for i in range(1, 9)]
# Answers with the number of threads, after a while; for 96 threads it dies.
SERVE = """
import json, sys, time
def serve(arguments):
    for line in sys.stdin:
        threads = json.loads(line)[0][2]
        time.sleep(0.05)
        if threads == 96:
            sys.exit()
        print(json.dumps(str(threads)), flush=True)
"""


class Card:
    """Assembles nothing, and notes what it loads."""

    capability = (9, 0)

    def __init__(self):
        self.loaded: list[str] = []

    def use(self): ...

    def assemble(self, ptx):
        return ptx.encode()

    def load(self, code, entry, shared_bytes):
        self.loaded.append(code.decode())
        return len(self.loaded)


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A single process that compiles nothing, and an empty cache."""
    (tmp_path / "quick_compiler.py").write_text(SERVE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(workers, "_ENTRY", "quick_compiler:serve")
    monkeypatch.setattr(workers.os, "cpu_count", lambda: 1)
    monkeypatch.setattr("kukri.runtime.cuda.compile.kernel.compiler_version", lambda: "1")
    monkeypatch.setattr("kukri.runtime.cuda.compile.kernel.cache_folder", lambda: tmp_path)
    return tmp_path


def threads_of(kernels):
    return [str(each.threads) for each in kernels]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("numba_cuda"), reason="numba-cuda is not installed")
def test_other_processes_compile():
    found = {}
    compiling = workers.Workers((9, 0), found.__setitem__)
    compiling.compile_now(KERNELS)
    compiling.close()
    assert set(found) == set(KERNELS)
    for text in found.values():
        assert f".entry {ENTRY}(" in text
        assert ".target sm_90" in text


def test_what_is_waited_for_comes_first(quick):
    found, seen = [], []
    compiling = workers.Workers((9, 0), lambda _, ptx: found.append(ptx))
    with compiling._changed:  # nothing is begun until somebody waits
        compiling.add(MANY[3:])
        compiling.add(MANY[5:])  # they are in the queue
        compiling.compile_now([MANY[6], MANY[0]], lambda done, total: seen.append((done, total)))
    assert found[:2] == ["224", "32"]
    assert (seen[0], seen[-1]) == ((0, 2), (2, 2))
    compiling.compile_now(MANY[3:6])
    compiling.compile_now([MANY[7]])
    assert sorted(map(int, found)) == [32, 128, 160, 192, 224, 256]
    compiling.close()


def test_kernels_of_a_process_that_died_are_left_out(quick):
    found = []
    compiling = workers.Workers((9, 0), lambda _, ptx: found.append(ptx))
    compiling.compile_now([MANY[2], *MANY[:2]])  # the others by another process
    assert found == ["32", "64"]
    compiling.close()


def test_closing_ends_what_is_compiled(quick):
    found = []
    compiling = workers.Workers((9, 0), lambda _, ptx: found.append(ptx))
    with compiling._changed:
        compiling.add(MANY[3:])
        compiling.add(kernel(pointwise.soft_cap, 32 * i, PDL=0) for i in range(4, 400))
        compiling.compile_now(MANY[:1])
        process = compiling._processes[0]
    compiling.close()
    assert process.poll() is not None
    n = len(found)
    assert n < 200
    compiling.add(MANY[3:])
    compiling.compile_now(MANY[3:])
    assert len(found) == n


def test_the_first_answer_does_not_wait_for_all_kernels(quick):
    """At the second start nothing is missing, and at the third nothing but the first kernels is asked for."""
    card, asked = Card(), []

    def start():
        asked.clear()
        kernels = Kernels(card)

        def asking(*wanted):
            return lambda: [asked.append(each) or kernels.function(each) for each in wanted]

        alike = [asking(MANY[1], MANY[3]), asking(MANY[4], MANY[3])]
        later = [asking(MANY[5]), asking(MANY[0], MANY[6])]
        kernels.compile_in_order("", asking(MANY[0]), alike, later)
        return kernels

    kernels = start()
    assert {what.threads for what in kernels._codes} >= {32, 128}
    # What a step needs is compiled together, before it is launched.
    assert kernels.complete(lambda: [kernels.function(MANY[6]), kernels.function(MANY[0])]) == [2, 1]
    assert card.loaded == ["32", "224"]
    kernels._compiling().compile_now([MANY[5]])
    kernels.close()
    start()
    assert len(asked) > 1
    start()
    assert asked == [MANY[0]]


def test_workers_that_die_leave_their_kernels_out(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(
        "import sys\ndef serve(arguments): sys.exit(len(sys.stdin.readline()))"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(workers, "_ENTRY", "dying:serve")
    found = []
    compiling = workers.Workers((9, 0), lambda kernel, ptx: found.append(kernel))
    compiling.compile_now(KERNELS)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    compiling.compile_now(KERNELS)
    compiling.close()
    assert found == []


class Functions:
    """A driver for one card; `fails` names a function and the code that it returns."""

    def __init__(self, capability=(9, 0), version=12040, cards=1, fails=("", 0)):
        self.capability, self.version, self.cards, self.fails = capability, version, cards, fails
        self.active, self.flags = 0, []  # whether somebody uses the card already; what it was told of waiting

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments):
            if self.fails[0] == name:
                return self.fails[1]
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.cards
            elif name == "cuDriverGetVersion":
                arguments[0]._obj.value = self.version
            elif name == "cuDeviceGetAttribute":
                major, minor = self.capability
                arguments[0]._obj.value = {75: major, 76: minor}.get(arguments[1], 100)
            elif name == "cuDevicePrimaryCtxGetState":
                arguments[2]._obj.value = self.active
            elif name == "cuDevicePrimaryCtxSetFlags_v2":
                self.flags.append(arguments[1].value)
            elif name == "cuDeviceGetName":
                arguments[0].value = b"Stand-in 100"
            elif name == "cuGetErrorString":
                arguments[1]._obj.value = b"so it is"
            elif name == "cuMemGetInfo_v2":
                arguments[0]._obj.value, arguments[1]._obj.value = 3 * 10**9, 24 * 10**9
            elif name == "cuDeviceTotalMem_v2":
                arguments[0]._obj.value = 24 * 10**9
            return 0

        return call


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (None, "no NVIDIA driver was found"),
        (Functions(cards=0), "no NVIDIA card"),
        (Functions(fails=("cuInit", 100)), r"finds no card that it can use \(so it is, 100\)"),
        (Functions(capability=(7, 5)), "Stand-in 100 is too old: .* capability 7.5, 8.0 is needed"),
        (Functions(version=11040), "driver is too old for the Stand-in 100: it knows CUDA 11.4, 11.8"),
        (Functions(capability=(12, 0)), "driver is too old .* CUDA 12.4, 12.9 is needed"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_line(monkeypatch, library, message):
    monkeypatch.setattr(driver, "driver_functions", lambda: library)
    with pytest.raises(CudaUnavailable, match=message) as error:
        Device()
    assert "\n" not in str(error.value)


def test_a_card_that_others_hold(monkeypatch):
    monkeypatch.setattr(driver, "driver_functions", lambda: Functions(fails=("cuDevicePrimaryCtxRetain", 46)))
    with pytest.raises(CudaError, match="so it is, 46"):
        Device()


@pytest.mark.parametrize(
    ("library", "n_bytes"),
    [
        (None, None),
        (Functions(), 24 * 10**9),
        (Functions(cards=0), None),
        (Functions(capability=(7, 5)), None),
        (Functions(fails=("cuInit", 100)), None),
        (Functions(fails=("cuDeviceTotalMem_v2", 1)), None),
    ],
)
def test_the_memory_of_a_card_without_a_context(monkeypatch, library, n_bytes):
    monkeypatch.setattr(driver, "driver_functions", lambda: library)
    assert driver.total_memory() == n_bytes
    assert gpu_memory() == n_bytes
    monkeypatch.setattr("kukri.runtime.cuda.compile.kernel.compiler_version", lambda: None)
    assert gpu_memory() is None


@pytest.mark.parametrize("active", [0, 1])
def test_how_to_wait_is_not_changed_for_others(monkeypatch, active):
    functions = Functions()
    functions.active = active
    monkeypatch.setattr(driver, "driver_functions", lambda: functions)
    Device()
    Device(driver.BLOCK)
    assert functions.flags == ([] if active else [driver.SPIN, driver.BLOCK])


def test_out_of_memory_has_the_numbers(monkeypatch):
    monkeypatch.setattr(driver, "driver_functions", lambda: Functions(fails=("cuMemAlloc_v2", 2)))
    device = Device()
    with pytest.raises(CudaOutOfMemory, match=r"no room for 5 GB more: 3.0 GB of 24.0 GB are free") as error:
        device.allocate(5 * 10**9)
    assert "\n" not in str(error.value)


class TwoCards(Functions):
    """The driver of two cards, of which the second reaches the first; it notes contexts."""

    def __init__(self):
        super().__init__(cards=2)
        self.current = 0
        self.seen: list[tuple[str, int]] = []

    def __getattr__(self, name):
        call = super().__getattr__(name)

        def noted(*arguments):
            if name == "cuDeviceGet":
                arguments[0]._obj.value = arguments[1]
            elif name == "cuDevicePrimaryCtxRetain":
                arguments[0]._obj.value = 100 + arguments[1].value
            elif name == "cuCtxSetCurrent":
                self.current = arguments[0].value
            elif name == "cuDeviceCanAccessPeer":
                arguments[0]._obj.value = int(arguments[1].value > arguments[2].value)
            elif name in ("cuEventCreate", "cuCtxEnablePeerAccess"):
                self.seen.append((name, self.current))
            return call(*arguments)

        return noted


def test_two_cards(monkeypatch):
    """Events and the access to the other's memory are made in the context of the card that they are for."""
    functions = TwoCards()
    monkeypatch.setattr(driver, "driver_functions", lambda: functions)
    assert driver.count_devices() == 2
    first, second = Device(), Device(index=1)
    assert (first.index, second.index) == (0, 1)
    first.event(timed=False)
    second.event()
    first.event()
    assert functions.seen == [("cuEventCreate", 100), ("cuEventCreate", 101), ("cuEventCreate", 100)]
    functions.seen.clear()
    first.use()
    assert second.reaches(first)
    assert not first.reaches(second)
    assert first.reaches(first)
    assert functions.seen == [("cuCtxEnablePeerAccess", 101)]
    with pytest.raises(CudaUnavailable, match="no NVIDIA card 2: they are numbered 0 to 1"):
        Device(index=2)
    monkeypatch.setattr(driver, "driver_functions", lambda: None)
    assert driver.count_devices() == 0
