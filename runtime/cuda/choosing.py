"""The best tokens of the rows of a step, found on the card: see `kernels/choose.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..choice import MOST_BEST, Best
from .driver import Launch
from .kernel import Kernels, kernel, pack_arguments
from .memory import Memory, Region

MOST_ROWS = 8  # whose best tokens are found on the card
RUNS = (1, 64, MOST_BEST)  # numbers of tokens that there are kernels for
PART = 2048  # keys that a block takes, at least twice as many as a run has
THREADS = 256


@dataclass(frozen=True)
class BestPlan:
    """Launches, and where they leave keys, int64 [rows, k]."""

    launches: list[Launch]
    keys: Region
    k: int


@dataclass
class BestOf:
    """Makes the launches, on a card of that compute capability."""

    memory: Memory
    kernels: Kernels
    capability: tuple[int, int]
    part: int = PART
    threads: int = THREADS

    def plan(self, logits: Region, rows: int, k: int, n_tokens: int) -> BestPlan:
        """For at least `k` best of the first `n_tokens` of each of so many rows of logits."""
        run = next(length for length in RUNS if length >= k)
        launches: list[Launch] = []
        source, left, name = logits, n_tokens, "best_logits"
        while not launches or left > run:
            blocks = -(-left // self.part)
            keys = self.memory.rows(f"best {run}, {len(launches)}, {blocks}", MOST_ROWS, 8 * run * blocks)
            early = self.capability >= (9, 0)
            constants = {"K": run, "N": self.part, "THREADS": self.threads, "PDL": int(early)}
            what = kernel("choose", name, self.threads, **constants)
            function = self.kernels.function(what, 8 * self.part)
            arguments = pack_arguments(source.address, source.stride, left, keys.address, keys.stride)
            grid = (blocks, rows, 1)
            launches.append(Launch(name, function, grid, self.threads, 8 * self.part, arguments, early))
            source, left, name = keys, run * blocks, "best_keys"
        return BestPlan(launches, source, run)


def decode(keys: np.ndarray, k: int, n_tokens: int) -> list[Best]:
    """What keys, int64 [rows, at least k], say: the `k` best of each row, or all if there are fewer."""
    keys = keys[:, : min(k, n_tokens)]
    order = (keys >> 32).astype(np.int32)
    logits = np.where(order < 0, order ^ np.int32(0x7FFFFFFF), order).view(np.float32)
    ids = 0xFFFFFFFF - (keys & 0xFFFFFFFF)
    return [Best(row, values) for row, values in zip(ids, logits, strict=True)]
