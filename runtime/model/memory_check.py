"""Whether a model fits: weights and KV cache against the available memory, before anything is loaded.

The available memory is the least of what the system has (MemAvailable of /proc/meminfo) and what the control
groups around this process still allow, in version 1 and 2: the kernel kills a container that goes beyond its
limit. Page cache counts as available, since the kernel takes it back when it needs it. On macOS and Windows,
which have no /proc, psutil says what is available.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import KukriError
from ...quant.units import human_bytes
from ..control_groups import control_groups, read_text
from ..engine.cache import PAGE_SIZE
from ..ops import CacheLayer

_NUMBER_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}  # of a number in the KV cache
# Bytes of a number of a key and of a value, by type of the KV cache, or types of keys / of values.
KV_BYTES = {
    kind: (_NUMBER_BYTES[kind.split("/")[0]], _NUMBER_BYTES[kind.split("/")[-1]])
    for kind in ("f32", "f16", "f16/q8_0", "f16/q4_0", "q8_0", "q8_0/q4_0", "q4_0")
}
OVERHEAD = 150_000_000  # bytes of interpreter, Numba and compiled kernels, activations, tokenizer
MOST_CONTEXT = 1 << 30  # tokens, of a model without a KV cache
LEAST_CONTEXT = 512  # tokens; the advice suggests no context below this
# A control group's limit and use, by the version of control groups.
_MEMORY_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


class NotEnoughMemory(KukriError, RuntimeError):
    """The model does not fit into the memory; the message says what would."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of memory that a model needs."""

    weights: int
    per_token: float  # of the KV cache for one token of context
    states: int = 0  # recurrent states and their saved copies
    contexts: int = 1  # contexts that the KV cache has room for at once

    def beside(self, other: MemoryNeed) -> MemoryNeed:
        """The need of this model and of another one with as many contexts."""
        return MemoryNeed(
            self.weights + other.weights,
            self.per_token + other.per_token,
            self.states + other.states,
            self.contexts,
        )

    def total(self, context: int) -> int:
        """Bytes with a KV cache for `context` tokens, and with what the process itself takes."""
        return self.weights + self.states + OVERHEAD + self.cache(context)

    @property
    def _times(self) -> str:
        return f"{self.contexts} times " if self.contexts > 1 else ""

    def cache(self, context: int) -> int:
        """Bytes of the KV cache for contexts of `context` tokens each, in whole pages."""
        return round(self.contexts * -(-context // PAGE_SIZE) * PAGE_SIZE * self.per_token)

    def largest_context(self, available: int) -> int:
        """Tokens of context that fit into `available` bytes, in whole pages; 0 if none do."""
        left = available - self.weights - self.states - OVERHEAD
        tokens = (
            int(left / self.per_token / self.contexts) if self.per_token else MOST_CONTEXT if left > 0 else 0
        )
        return max(0, tokens // PAGE_SIZE * PAGE_SIZE)

    def check(self, name: str, context: int, available: int, memory: str = "memory") -> None:
        """Raise NotEnoughMemory unless the model fits into `available` bytes with `context` tokens.

        The message calls the model `name`, and the memory `memory`.
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
            f"{name} needs about {human_bytes(self.total(context))} of {memory} "
            f"({human_bytes(self.weights)} of weights, {human_bytes(self.cache(context))} of KV cache for "
            f"{self._times}{context} tokens), but {human_bytes(available)} are free; {advice}"
        )


def cache_bytes_per_token(layers: Sequence[CacheLayer], kv_type: str) -> float:
    """Bytes of KV cache that one token takes in all layers together. ValueError for an unknown `kv_type`."""
    if kv_type not in KV_BYTES:
        raise ValueError(f"unknown KV cache type {kv_type!r}; there are {', '.join(KV_BYTES)}")
    key, value = KV_BYTES[kv_type]
    return sum(layer.key_width * key + layer.value_width * value for layer in layers)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process can still take, or None where the system does not say.

    Where there is no /proc, psutil asks the system. `root` stands in for the file system's in tests.
    """
    limits = [*_system_free(root), *_cgroup_free(root)]
    return min(limits) if limits else None


def _system_free(root: Path) -> Iterator[int]:
    """The system's available memory in bytes."""
    meminfo = read_text(root / "proc/meminfo")
    for line in meminfo.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "MemAvailable:" and words[1].isdecimal():
            yield int(words[1]) * 1024
    if not meminfo and root == Path("/"):
        try:
            import psutil  # only on systems without /proc

            yield int(psutil.virtual_memory().available)
        except (ImportError, OSError, RuntimeError):  # psutil's own errors for a system that it does not know
            return


def _cgroup_free(root: Path) -> Iterator[int]:
    """Bytes that each control group around this process still allows."""
    for version, group in control_groups("memory", root):
        limit, usage = _MEMORY_FILES[version]
        most, used = read_text(group / limit).strip(), read_text(group / usage).strip()
        if most.isdecimal() and used.isdecimal():  # "max": no limit
            yield max(0, int(most) - int(used) + _page_cache(group))


def _page_cache(group: Path) -> int:
    """Bytes of page cache that are charged to a control group."""
    stat = dict(line.split()[:2] for line in read_text(group / "memory.stat").splitlines() if " " in line)
    # Version 1 states the group alone and, as total_…, the group with all groups below it.
    names = [
        name if f"total_{name}" not in stat else f"total_{name}" for name in ("inactive_file", "active_file")
    ]
    return sum(int(stat[name]) for name in names if stat.get(name, "").isdecimal())
