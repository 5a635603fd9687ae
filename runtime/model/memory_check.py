"""Does a model fit? Weights and KV cache against the memory that is free, before anything is loaded.

Free is the least of what the system has available (MemAvailable of /proc/meminfo) and what the
control groups around this process still allow, in version 1 and 2: a container that goes beyond is
killed without a word. Page cache counts as free, since the kernel takes it back when it needs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import KukriError
from ...quant.units import human_bytes
from ..engine.cache import PAGE_SIZE
from ..ops import CacheLayer

KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}  # of one number in the cache
OVERHEAD = 150_000_000  # interpreter, Numba and compiled kernels, activations, tokenizer
MOST_CONTEXT = 1 << 30  # of a model that keeps nothing of a token
LEAST_CONTEXT = 512  # a context below this is not worth suggesting


class NotEnoughMemory(KukriError, RuntimeError):
    """The model does not fit; the message says what would."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a model needs: `weights` and `states` at once, `per_token` for every token of context."""

    weights: int
    per_token: float
    states: int = 0  # recurrent ones, with the copies of them

    def total(self, context: int) -> int:
        return self.weights + self.states + OVERHEAD + self.cache(context)

    def cache(self, context: int) -> int:
        """Bytes of the KV cache, which comes in whole pages."""
        return round(-(-context // PAGE_SIZE) * PAGE_SIZE * self.per_token)

    def largest_context(self, available: int) -> int:
        """Tokens of context that fit into `available` bytes, in whole pages; 0 if none do."""
        left = available - self.weights - self.states - OVERHEAD
        tokens = int(left / self.per_token) if self.per_token else MOST_CONTEXT if left > 0 else 0
        return max(0, tokens // PAGE_SIZE * PAGE_SIZE)

    def check(self, name: str, context: int, available: int, what: str = "memory") -> None:
        """Raise NotEnoughMemory unless model `name` fits into `available` bytes of `what` with `context`
        tokens.
        """
        if self.total(context) <= available:
            return
        least = min(context, LEAST_CONTEXT)
        fitting = self.largest_context(available)
        room = available - OVERHEAD - self.states - self.cache(least)
        if fitting >= least:
            advice = f"a context of {fitting} tokens would fit (-c {fitting})"
        elif room > 0:
            advice = f"a smaller quantisation or model would fit, of up to {human_bytes(room)}"
        else:
            advice = "free some memory first"
        raise NotEnoughMemory(
            f"{name} needs about {human_bytes(self.total(context))} of {what} "
            f"({human_bytes(self.weights)} of weights, {human_bytes(self.cache(context))} of KV cache for "
            f"{context} tokens), but {human_bytes(available)} are free; {advice}"
        )


def cache_bytes_per_token(layers: Sequence[CacheLayer], kv_type: str) -> float:
    """Bytes that all layers together keep of one token. ValueError for an unknown `kv_type`."""
    if kv_type not in KV_BYTES:
        raise ValueError(f"unknown KV cache type {kv_type!r}; there are {', '.join(KV_BYTES)}")
    return sum(layer.width for layer in layers) * KV_BYTES[kv_type]


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still take, or None where the system does not say.

    `root` stands in for the file system in tests. Systems without /proc tell their physical memory
    at best.
    """
    limits = [*_system_free(root), *_cgroup_free(root)]
    return min(limits) if limits else None


def _system_free(root: Path) -> Iterator[int]:
    meminfo = _read(root / "proc/meminfo")
    for line in meminfo.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "MemAvailable:" and words[1].isdecimal():
            yield int(words[1]) * 1024
    if not meminfo and root == Path("/"):
        try:
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):  # Windows; a name or a value that is not known
            return


def _cgroup_free(root: Path) -> Iterator[int]:
    """What each control group from ours up to the root of the mounted tree still allows."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            tree, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            tree, limit = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            usage = "memory.usage_in_bytes"
        else:
            continue
        # A container may see its path from outside although only its own group is mounted.
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            parts = []
        for depth in range(len(parts), -1, -1):
            group = tree.joinpath(*parts[:depth])
            most, used = _read(group / limit).strip(), _read(group / usage).strip()
            if most.isdecimal() and used.isdecimal():  # "max": no limit
                yield max(0, int(most) - int(used) + _page_cache(group))


def _page_cache(group: Path) -> int:
    """Bytes charged to a group that are only copies of files."""
    stat = dict(line.split()[:2] for line in _read(group / "memory.stat").splitlines() if " " in line)
    # Version 1 has its own numbers and, as total_…, those that include the groups below.
    names = [
        name if f"total_{name}" not in stat else f"total_{name}" for name in ("inactive_file", "active_file")
    ]
    return sum(int(stat[name]) for name in names if stat.get(name, "").isdecimal())


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
