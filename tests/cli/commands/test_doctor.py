"""What `llm doctor` finds out about a machine that these files describe."""

from __future__ import annotations

import os

from kukri.cli.commands.doctor import numa_nodes


def test_numa_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 8}, raising=False)
    assert numa_nodes(tmp_path) == 1
    for node, cpus in enumerate(("0-3", "4-7", "8-11,20", "")):  # the last has memory only
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    assert numa_nodes(tmp_path) == 2  # the process may not run on the second
