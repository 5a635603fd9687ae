"""Steps of many sequences: see `bench_cuda.py batch`."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from cuda_bench.models import random_model
from cuda_bench.timing import seconds

from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import Batch, PageTable

MOST = 128  # sequences
DEPTH = 128  # tokens that each sequence has before the first step
PAGES = 8 * MOST
Run = Callable[[Batch, PageTable], object]


def batch(shape: str, kind: str, show: Callable[[CudaMachine, int], None]) -> dict[str, float]:
    """Tokens a second of 1 … MOST sequences whose contexts grow from DEPTH on; `show` prints the profile of a
    step. The steps that count have logits on the host; those that choose tokens on the card are shown beside.
    """
    machine = CudaMachine(random_model(shape, kind), PAGES, max_sequences=MOST)
    speeds: dict[str, float] = {}
    for n in (1, 2, 4, 8, 16, 32, 64, 96, MOST):
        if n > machine.max_logits:
            break
        walls = _walls(machine.step, n, [DEPTH] * n)
        chosen = _walls(lambda step, table: machine.top_k(step, table, 1, 1 << 30), n, [DEPTH] * n)
        median, late = np.median(walls), np.percentile(walls, 99)
        on_card = seconds(machine.device, machine.plan(n, n))
        times = f"{median * 1e3:.3f} ms a step, 99 %: {late * 1e3:.3f}, on the card {on_card * 1e3:.3f}"
        there = f"{n / np.median(chosen):.0f} with tokens chosen there"
        print(f"{n} sequences: {n / median:.0f} tokens/s ({times}), {there}")
        speeds[f"tg64 @ d{DEPTH}, {n} sequences"] = n / float(median)
    show(machine, 32)  # of rows as the last step has left them
    show(machine, MOST)
    for n, lengths in ((8, [32_000]), (64, [32_000])):
        walls = _walls(machine.step, n, lengths + [DEPTH] * (n - 1))
        print(f"{n} sequences, one of 32,000 tokens: {np.median(walls) * 1e3:.3f} ms a step")
    machine.close()
    return speeds


def _walls(run: Run, n: int, lengths: list[int], steps: int = 64) -> np.ndarray:
    """Seconds of each of so many steps of `n` sequences, behind four that do not count."""
    table, rows, walls = PageTable(PAGES, MOST), np.arange(n, dtype=np.int32), []
    for sequence, length in enumerate(lengths):
        table.extend(sequence, length)
    for i in range(4 + steps):
        for sequence in range(n):
            table.extend(sequence, 1)
        step = Batch(rows, rows, np.array(lengths, np.int32) + i, rows)
        begin = time.perf_counter()
        run(step, table)
        walls.append(time.perf_counter() - begin)
    return np.array(walls[4:])
