"""How many threads to start: the physical cores that this process may use."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def default_threads(root: Path = Path("/")) -> int:
    """Physical cores that the process may run on, no more than a container's quota pays for.

    Two threads of one core share its multipliers, and the second only makes the first wait at barriers. A
    thread beyond the quota would be stopped in mid-step while the others wait for it. `root` stands in for
    the file system in tests.
    """
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    usable = _cores(own, root) if own else _performance_cores() or os.cpu_count() or 1
    quota = _quota(root)
    return usable if quota is None else max(1, min(usable, int(quota)))


def _cores(processors: set[int], root: Path) -> int:
    """How many cores these logical processors belong to; one each where the system does not say."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = set()
    for number in processors:
        try:
            cores.add((root / topology.format(number)).read_text().strip())
        except OSError:
            cores.add(str(number))
    return len(cores)


def _performance_cores() -> int | None:
    """The fast cores of a Mac: with its slow ones, the fast ones would wait at every barrier."""
    if sys.platform != "darwin":
        return None
    library, count = ctypes.CDLL(None), ctypes.c_int32(0)
    size = ctypes.c_size_t(ctypes.sizeof(count))
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
        if (
            library.sysctlbyname(name, ctypes.byref(count), ctypes.byref(size), None, 0) == 0
            and count.value > 0
        ):
            return count.value
    return None


def _quota(root: Path) -> float | None:
    """Processors' worth of time that control groups allow, version 2 or 1; None if unlimited."""
    group = root / "sys/fs/cgroup"
    try:
        quota, period = (group / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (group / "cpu/cpu.cfs_quota_us").read_text()
            period = (group / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        return float(quota) / float(period) if float(quota) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max"
        return None
