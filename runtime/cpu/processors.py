"""Which processors compute: their name, the default number of threads, and what a Mac is told about them."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

from ...quant.jit.sysctl import mac_number
from ..control_groups import control_groups, read_text

USER_INITIATED = 0x19  # QOS_CLASS_USER_INITIATED of macOS's sys/qos.h: work that a person waits for


def default_threads(root: Path = Path("/")) -> int:
    """Physical cores that the process may run on, at most the CPU quota of its container, service
    or job (`control_groups`).

    Two threads on one core share its multipliers, so that a second one only adds waiting at barriers. A
    thread beyond the quota would be stopped within a step while the other threads wait for it. `root`
    replaces the root of the file system in tests.
    """
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    usable = _cores(own, root) if own else _performance_cores() or os.cpu_count() or 1
    quota = _quota(root)
    return usable if quota is None else max(1, min(usable, int(quota)))


def cpu_name() -> str:
    """The model of the processor as the system states it."""
    import platform  # here, since a start of the machine does without it

    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores(processors: set[int], root: Path) -> int:
    """Number of physical cores of these logical processors; one each if the system has no topology files."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = set()
    for number in processors:
        try:
            cores.add((root / topology.format(number)).read_text().strip())
        except OSError:
            cores.add(str(number))
    return len(cores)


def _performance_cores() -> int | None:
    """Number of performance cores of a Mac, None elsewhere. Efficiency cores would delay every barrier."""
    if sys.platform != "darwin":
        return None
    return mac_number("hw.perflevel0.physicalcpu") or mac_number("hw.physicalcpu") or None


def prefer_performance_cores() -> None:
    """Tell macOS that somebody waits for the calling thread, so that it runs on performance cores; nothing
    elsewhere. The system may refuse, which changes nothing."""
    if sys.platform == "darwin":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).pthread_set_qos_class_self_np(ctypes.c_uint(USER_INITIATED), ctypes.c_int(0))


def _quota(root: Path) -> float | None:
    """The least CPU quota of the control groups around this process, in processors; None if unlimited."""
    found = []
    for version, group in control_groups("cpu", root):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with suppress(ValueError, ZeroDivisionError):  # "max", "-1", no such files
            quota, period = (float(word) for name in names for word in read_text(group / name).split()[:2])
            found += [quota / period] if quota > 0 else []
    return min(found, default=None)
