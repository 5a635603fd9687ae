#!/usr/bin/env python3
"""Decode steps of several sequences at once on the CPU: tokens a second by the number of sequences.

    python scripts/bench_rows.py MODEL [-n 1,2,3,4,6,8,12,16,32] [--depth 100] [--threads 2] [--seconds 2]

Each sequence has `--depth` tokens in the cache, and a step appends one row to each. All numbers of sequences
take turns, a step each, so that other work on the machine slows all of them alike; the time of a number is
the lowest decile of its steps, and the median is printed beside it. With one thread it is processor time,
which leaves out other work. GB/s are of the weights that a step reads.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from kukri.quant.jit.levels import LEVEL
from kukri.runtime.cpu.lowering.weight_panels import weight_matrices
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PAGE_SIZE, Batch, PageTable
from kukri.runtime.hub.resolve import resolve
from kukri.runtime.model.source import open_source
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights

STEPS = 24  # tokens that a sequence gets before it is cut back to the depth


class Sequences:
    """`n` sequences with `depth` tokens each in the cache of a machine."""

    def __init__(self, machine: CpuMachine, n: int, depth: int) -> None:
        self.machine, self.n, self.depth, self.times = machine, n, depth, list[float]()
        pages = n * -(-(depth + STEPS) // PAGE_SIZE)
        self.table = PageTable(pages, max_sequences=n)
        self._restart()

    def _restart(self) -> None:
        for sequence in range(self.n):
            self.table.truncate(sequence, 0)
            self.table.extend(sequence, self.depth)

    def step(self) -> None:
        """Append a row to every sequence; the time is noted."""
        if self.table.lengths[0] == self.depth + STEPS:
            self._restart()
        position = int(self.table.lengths[0])
        for sequence in range(self.n):
            self.table.extend(sequence, 1)
        rows = np.arange(self.n, dtype=np.int32)
        now = time.thread_time if self.machine.n_threads == 1 else time.perf_counter
        start = now()
        # Any token: speed does not depend on it, nor on what is in the cache.
        self.machine.step(Batch(rows + 100, rows, 0 * rows + position, rows), self.table)
        self.times.append(now() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name, file or folder as `llm run -m` takes it")
    parser.add_argument("-n", default="1,2,3,4,6,8,12,16,32", help="numbers of sequences")
    parser.add_argument("--depth", type=int, default=100, help="tokens already in the cache of each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="time of steps for each number, at least")
    args = parser.parse_args()

    counts = [int(n) for n in args.n.split(",")]
    source = open_source(resolve(args.model))
    n_pages = max(counts) * -(-(args.depth + STEPS) // PAGE_SIZE)
    program = build_program(source.config, Weights(source.config, source.tensors))
    weights = {id(weight): weight.n_bytes for _, weight in weight_matrices(program)}
    machine = CpuMachine(
        program, n_pages, threads=args.threads, release=source.release, max_sequences=max(counts)
    )
    runs = [Sequences(machine, n, args.depth) for n in counts]
    for run in runs:
        start = time.perf_counter()
        run.step()
        print(f"first step of {run.n} rows: {(time.perf_counter() - start) * 1e3:.0f} ms")
        run.times.clear()
    end = time.perf_counter() + args.seconds * len(runs)
    while time.perf_counter() < end:
        for run in runs:
            run.step()

    print(
        f"{source.name}, depth {args.depth}, {LEVEL}, {args.threads} threads, load {os.getloadavg()[0]:.1f}"
    )
    print("sequences  tokens/s  median  ÷ one  ms a step  GB/s")
    best = {run.n: float(np.quantile(run.times, 0.1)) for run in runs}
    for run in runs:
        seconds, median = best[run.n], float(np.median(run.times))
        ratio = run.n / seconds * best[counts[0]] / counts[0]
        print(
            f"{run.n:9} {run.n / seconds:9.1f} {run.n / median:7.1f} {ratio:6.2f} {seconds * 1e3:10.2f}"
            f" {sum(weights.values()) / seconds / 1e9:5.1f}"
        )
    machine.close()


if __name__ == "__main__":
    main()
