"""Selects the top k logits of each row of a step on the GPU, with `kernels/common/top_k.py`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ..engine.sampling.top_k import MAX_TOP_K, TopK
from .abi.arguments import Region
from .compile.kernel import Kernels, kernel, pack_arguments
from .driver.allocator import Memory
from .driver.launch import Launch
from .kernels.common import top_k

MAX_ROWS = 128  # rows of a step whose top k are selected on the GPU
TOP_K_SIZES = (1, 64, MAX_TOP_K)  # values of k that have kernels
FIRST_TOP_K = (64, 1)  # those of the usual settings, sampled and greedy
BLOCKS = 64  # upper limit of the blocks that share a row in the first launch
WARPS = 8  # of each of these blocks
MERGE_WARPS = {1: 2, 64: 32, MAX_TOP_K: 32}  # of the block that merges their results, by k


@dataclass(frozen=True)
class TopKPlan:
    """The launches that select the top `k` of each row."""

    launches: list[Launch]
    k: int


@dataclass
class TopKKernels:
    """Makes launches for a GPU of compute capability `capability`."""

    memory: Memory
    kernels: Kernels
    capability: tuple[int, int]
    blocks: int = BLOCKS

    def plan(self, logits: Region, rows: int, k: int, n_tokens: int, out: Region) -> TopKPlan:
        """Launches for the top `k`, one of TOP_K_SIZES, of the first `n_tokens` of each row of logits.

        Each row of `out` gets k ids, int32, and then k logits, float32. `out` may be in pinned memory.
        """
        per_block = WARPS * max(32, k)  # logits that a block takes at once
        blocks = min(self.blocks, -(-n_tokens // per_block))
        keys = self.memory.rows(f"top {k} of parts", MAX_ROWS, 8 * k * self.blocks)
        select = self._launch(logits, rows, k, n_tokens, keys, blocks, WARPS, FROM_LOGITS=1, FINAL=0)
        merge = self._launch(keys, rows, k, k * blocks, out, 1, MERGE_WARPS[k], FROM_LOGITS=0, FINAL=1)
        return TopKPlan([select, merge], k)

    def _launch(
        self, source: Region, rows: int, k: int, n: int, out: Region, blocks: int, warps: int, **flags: int
    ) -> Launch:
        """A launch of the kernel on `n` logits or keys of each row of `source`."""
        early = self.capability >= (9, 0)
        function, shared = top_k.top_1 if k == 1 else top_k.top_k, 8 * warps * k
        constants = flags | {"K": k, "WARPS": warps, "PDL": int(early)}
        if k > 1:
            constants |= {"R": k // 32, "LOG_K": k.bit_length() - 1, "LOG_WARPS": warps.bit_length() - 1}
        what = kernel(function, 32 * warps, **constants)
        handle = self.kernels.function(what, shared)
        arguments = pack_arguments(*source, n, *out)
        return Launch(what.name, handle, (blocks, rows, 1), what.threads, shared, arguments, early)


def size_for(k: int) -> int:
    """The smallest of TOP_K_SIZES that is at least `k`."""
    return TOP_K_SIZES[bisect_left(TOP_K_SIZES, k)]


def read_top_k(out: np.ndarray, size: int, k: int, n_tokens: int) -> list[TopK]:
    """The top `k` of each row, as views of `out`: int32 [rows, 2 · size or more], written by a plan for
    `size`.

    With fewer than k tokens all are returned.
    """
    k = min(k, n_tokens)
    ids, logits = out[:, :k], out[:, size : size + k].view(np.float32)
    return [TopK(ids[i], logits[i]) for i in range(len(out))]
