"""Which model of the catalogue suits a machine: the best that fits its memory and is fast enough there."""

from __future__ import annotations

from dataclasses import dataclass

from .catalogue import BY_NAME, Entry

# From the best to the smallest. None of these thinks at length before it answers, gpt-oss a little.
BEST_FIRST = (
    "gpt-oss:120b", "qwen3-next:80b-a3b", "qwen3:30b-a3b", "mistral-small3.2:24b", "gpt-oss:20b",
    "ministral3:14b", "ministral3:8b", "qwen3:4b", "llama3.2:3b", "gemma3:1b", "smollm2:360m",
)  # fmt: skip
LEAST_SPEED = 10.0  # tokens a second, a little faster than most people read
CPU_BANDWIDTH = 30e9  # bytes a second: two channels of DDR4, where nothing was measured
GPU_BANDWIDTH = 300e9  # bytes a second, of a small card
UNKNOWN_MEMORY = 4_000_000_000  # bytes, where the system does not say
CACHE_AND_REST = 700_000_000  # bytes beside the weights: a KV cache of some thousand tokens, the process
SHARE = 0.8  # of the free memory that a model may take, since other programs will want some, too


@dataclass(frozen=True)
class Memory:
    """Memory that can hold a model: free bytes, and bytes a second that can be read from it."""

    free: int
    bandwidth: float

    def suits(self, entry: Entry) -> bool:
        """Whether a model fits, and writes at least LEAST_SPEED tokens a second: each reads all its weights
        that are active."""
        fits = entry.about_bytes + CACHE_AND_REST <= SHARE * self.free
        return fits and entry.bytes_per_token * LEAST_SPEED <= self.bandwidth


def recommended(
    free: int | None,
    bandwidth: float | None = None,
    gpu_free: int | None = None,
    gpu_bandwidth: float | None = None,
) -> Entry | None:
    """The best model for a machine, or None if not even the smallest fits.

    `free` and `gpu_free` are bytes of free memory of the system and of a GPU (None: not known; no GPU).
    Bandwidths are in bytes a second, as `llm bench` measures them; None assumes those of small machines.
    """
    memories = [Memory(UNKNOWN_MEMORY if free is None else free, bandwidth or CPU_BANDWIDTH)]
    if gpu_free:
        memories.append(Memory(gpu_free, gpu_bandwidth or GPU_BANDWIDTH))
    for name in BEST_FIRST:
        if any(memory.suits(BY_NAME[name]) for memory in memories):
            return BY_NAME[name]
    return None
