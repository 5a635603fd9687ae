"""The best tokens of the rows of a step, found on the card: see `kernels/choose.py`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ..engine.top_k import MAX_TOP_K, TopK
from .compile.arguments import Region
from .compile.kernel import Kernels, kernel, pack_arguments
from .driver.allocator import Memory
from .driver.launch import Launch
from .kernels.common import top_k

MOST_ROWS = 8  # whose best tokens are found on the card
RUNS = (1, 64, MAX_TOP_K)  # numbers of tokens that there are kernels for
BLOCKS = 64  # that share a row at most
WARPS = 8  # of each of these
LAST_WARPS = {1: 2, 64: 32, MAX_TOP_K: 32}  # of the block that brings their results together


@dataclass(frozen=True)
class BestPlan:
    """Launches, and how many of the best tokens they find."""

    launches: list[Launch]
    run: int


@dataclass
class BestOf:
    """Makes the launches, on a card of that compute capability."""

    memory: Memory
    kernels: Kernels
    capability: tuple[int, int]
    blocks: int = BLOCKS

    def plan(self, logits: Region, rows: int, run: int, n_tokens: int, found: Region) -> BestPlan:
        """For the `run` best, one of RUNS, of the first `n_tokens` of each of so many rows of logits.

        `found` gets as many ids, int32, and then logits, float32, of each row. It may be pinned memory.
        """
        each = WARPS * max(32, run)  # logits that a block takes at once
        blocks = min(self.blocks, -(-n_tokens // each))
        keys = self.memory.rows(f"best {run} of parts", MOST_ROWS, 8 * run * self.blocks)
        first = self._launch(logits, rows, run, n_tokens, keys, blocks, WARPS, FIRST=1, LAST=0)
        last = self._launch(keys, rows, run, run * blocks, found, 1, LAST_WARPS[run], FIRST=0, LAST=1)
        return BestPlan([first, last], run)

    def _launch(
        self, source: Region, rows: int, run: int, n: int, out: Region, blocks: int, warps: int, **which: int
    ) -> Launch:
        early = self.capability >= (9, 0)
        find, shared = top_k.best_one if run == 1 else top_k.best, 8 * warps * run
        constants = which | {"K": run, "WARPS": warps, "PDL": int(early)}
        if run > 1:
            constants |= {"R": run // 32, "LOG_K": run.bit_length() - 1, "LOG_WARPS": warps.bit_length() - 1}
        what = kernel(find, 32 * warps, **constants)
        function = self.kernels.function(what, shared)
        arguments = pack_arguments(source.address, source.stride, n, out.address, out.stride)
        return Launch(what.name, function, (blocks, rows, 1), what.threads, shared, arguments, early)


def run_for(k: int) -> int:
    """The least of RUNS that `k` best are a part of."""
    return RUNS[bisect_left(RUNS, k)]


def decode(found: np.ndarray, run: int, k: int, n_tokens: int) -> list[TopK]:
    """What a plan found, int32 [rows, 2 run or more]: the `k` best of each row, or all if there are fewer.

    They are views of `found`.
    """
    k = min(k, n_tokens)
    ids, logits = found[:, :k], found[:, run : run + k].view(np.float32)
    return [TopK(ids[i], logits[i]) for i in range(len(found))]
