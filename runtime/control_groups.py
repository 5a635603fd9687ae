"""The control groups of Linux around this process, versions 1 and 2, by which containers, services and batch
systems limit it. A limit of any of them holds, however far up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """The folders of the groups of a controller ("cpu", "memory"), from this process's up to the root of the
    mounted tree, each with its version. Those that there are not have no files.

    `root` replaces the root of the file system in tests.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines() or ["::/", f":{controller}:/"]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        version, tree = (1, controller) if controllers else (2, "")
        # A container may see its path on the host, although only its own group is mounted.
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            parts = []
        for depth in range(len(parts), -1, -1):
            yield version, (root / "sys/fs/cgroup" / tree).joinpath(*parts[:depth])


def read_text(path: Path) -> str:
    """The text of a file, "" if it cannot be read."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
