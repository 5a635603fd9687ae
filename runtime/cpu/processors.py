"""How many threads to start: the processors that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def default_threads(root: Path = Path("/")) -> int:
    """Logical processors that the process may run on, no more than a container's quota pays for.

    A thread beyond the quota would be stopped in mid-step while the others wait for it. `root` stands
    in for the file system in tests.
    """
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    usable = len(own) if own else os.cpu_count() or 1
    quota = _quota(root)
    return usable if quota is None else max(1, min(usable, int(quota)))


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
