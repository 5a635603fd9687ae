"""What the CPU machine asks the system about processors, with systems that only claim to be others."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kukri.quant.jit import levels
from kukri.runtime.cpu import processors
from kukri.runtime.cpu.team import Team


class System:
    """The C library of a system: `numbers` are what `sysctl` knows, with their bytes."""

    def __init__(self, numbers: dict[bytes, bytes] | None = None, hwcaps: tuple[int, int] = (0, 0)) -> None:
        self._numbers, self._hwcaps = numbers or {}, hwcaps
        self.asked: list[tuple[int, int]] = []

    def sysctlbyname(self, name: bytes, to: Any, size: Any, new: Any, new_size: Any) -> int:
        value = self._numbers.get(name)
        if value is None or len(value) > size._obj.value:
            return -1
        ctypes.memmove(ctypes.addressof(to._obj), value, len(value))
        size._obj.value = len(value)
        return 0

    @property
    def getauxval(self) -> Any:
        hwcap, hwcap2 = self._hwcaps

        def ask(number: int) -> int:
            return {16: hwcap, 26: hwcap2}[number]

        return ask

    def pthread_set_qos_class_self_np(self, quality: Any, priority: Any) -> int:
        self.asked.append((quality.value, priority.value))
        return 0


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> System:
    """An M2 with 4 performance and 4 efficiency cores; numbers are of 4 or 8 bytes."""
    numbers = {
        b"hw.perflevel0.physicalcpu": struct.pack("<i", 4),
        b"hw.physicalcpu": struct.pack("<q", 8),
        b"hw.optional.arm.FEAT_I8MM": struct.pack("<i", 1),
    }
    system = System(numbers)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: system)
    monkeypatch.setattr(sys, "platform", "darwin")
    return system


def test_threads_of_a_mac_are_its_performance_cores(mac, monkeypatch):
    monkeypatch.delattr(processors.os, "sched_getaffinity", raising=False)
    assert processors.default_threads() == 4
    del mac._numbers[b"hw.perflevel0.physicalcpu"]  # a Mac without two kinds of cores
    assert processors.default_threads() == 8
    mac._numbers.clear()
    monkeypatch.setattr(processors.os, "cpu_count", lambda: 3)
    assert processors.default_threads() == 3


def test_workers_on_a_mac_ask_for_performance_cores(mac, monkeypatch):
    processors.prefer_performance_cores()
    assert mac.asked == [(0x19, 0)]
    monkeypatch.setattr(System, "pthread_set_qos_class_self_np", property(lambda self: self.missing))
    processors.prefer_performance_cores()  # a library without the function


def test_every_worker_asks_and_the_caller_does_not(monkeypatch):
    asked: list[str] = []
    step = threading.Barrier(3)

    def ask() -> None:
        asked.append(threading.current_thread().name)
        step.wait(timeout=20)

    monkeypatch.setattr("kukri.runtime.cpu.team.prefer_performance_cores", ask)
    team = Team(3)
    step.wait(timeout=20)
    team.close()
    assert sorted(asked) == ["kukri-1", "kukri-2"]


def test_no_thread_stays_where_there_is_no_room_for_all(monkeypatch):
    start, started = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="cannot start 8 threads: the system allows only 3 here"):
        Team(8)
    for worker in started:
        worker.join(timeout=20)
        assert not worker.is_alive()


def test_other_systems_are_not_asked(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("asked"))
    processors.prefer_performance_cores()


class TestLevelsOfArm64:
    """Levels follow from what the system says, since LLVM's own list may lack it."""

    @pytest.fixture(autouse=True)
    def arm64(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "arm64")
        monkeypatch.setattr(levels.llvm, "get_host_cpu_features", dict)

    @pytest.mark.parametrize(
        ("hwcaps", "expected"),
        [((1 << 20, 1 << 13), ["i8mm", "neon"]), ((1 << 20, 0), ["neon"]), ((0, 1 << 13), []), ((0, 0), [])],
    )
    def test_linux(self, monkeypatch, hwcaps, expected):
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        monkeypatch.setattr(ctypes, "CDLL", lambda name: System(hwcaps=hwcaps))
        assert levels.supported_levels() == [*expected, "plain", "plain16"]

    @pytest.mark.parametrize(("says", "expected"), [(1, ["i8mm", "neon"]), (0, ["neon"]), (None, ["neon"])])
    def test_mac(self, monkeypatch, mac, says, expected):
        monkeypatch.setattr(platform, "system", lambda: "Darwin")
        if says is None:
            del mac._numbers[b"hw.optional.arm.FEAT_I8MM"]
        else:
            mac._numbers[b"hw.optional.arm.FEAT_I8MM"] = struct.pack("<i", says)
        assert levels.supported_levels() == [*expected, "plain", "plain16"]
        assert levels.pick_level(None) == expected[0]
        assert levels.pick_level("neon") == "neon"

    def test_what_llvm_knows_counts(self, monkeypatch, mac):
        monkeypatch.setattr(platform, "system", lambda: "Windows")  # which is not asked
        assert levels.supported_levels() == ["plain", "plain16"]
        monkeypatch.setattr(levels.llvm, "get_host_cpu_features", lambda: {"dotprod": True, "i8mm": True})
        assert levels.supported_levels()[:2] == ["i8mm", "neon"]


def test_threads_by_default(tmp_path: Path) -> None:
    """A container's quota counts, in either version of control groups; none means all processors."""
    usable = processors.default_threads(tmp_path)
    group = tmp_path / "sys/fs/cgroup"
    (group / "cpu").mkdir(parents=True)
    for quota, threads in (("max 100000", usable), ("100000 100000", 1), ("50000 100000", 1), ("x", usable)):
        (group / "cpu.max").write_text(quota)
        assert processors.default_threads(tmp_path) == threads
    (group / "cpu.max").unlink()
    (group / "cpu/cpu.cfs_period_us").write_text("100000\n")
    for quota, threads in (("-1\n", usable), ("100000\n", 1), ("100000000\n", usable)):
        (group / "cpu/cpu.cfs_quota_us").write_text(quota)
        assert processors.default_threads(tmp_path) == threads


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("limited", ["", "system.slice", "system.slice/llm.service"])
def test_threads_within_the_quota_of_a_group_further_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, limited: str
) -> None:
    """Of a service (systemd's CPUQuota) or a job, which sees the whole tree: the least one counts."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    tree = tmp_path / "sys/fs/cgroup" / ("cpu" if version == 1 else "")
    (tree / "system.slice/llm.service").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    controllers = "cpu,cpuacct" if version == 1 else ""
    line = f"3:{controllers}:/system.slice/llm.service\n"
    (tmp_path / "proc/self/cgroup").write_text("5:memory:/system.slice\n" + line)
    assert processors.default_threads(tmp_path) == 8
    for group, quota in ((limited, "350000"), ("system.slice/llm.service", "600000")):
        path = tree / group / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")
        if not path.exists():
            path.write_text(quota + "\n" if version == 1 else quota + " 100000\n")
            path.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert processors.default_threads(tmp_path) == 3
