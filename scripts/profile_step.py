#!/usr/bin/env python3
"""Profile of one step of the CPU machine: the time of each kernel, on one thread.

    python scripts/profile_step.py MODEL [--rows 1] [--depth 100]

Each instruction is called several times from Python, and the fastest call counts. One thread, so that the
times contain no waiting at barriers; they do contain a few microseconds of Python a call.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections import defaultdict

import numpy as np

from kukri.quant.jit.levels import LEVEL
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PAGE_SIZE, Batch, PageTable
from kukri.runtime.hub.resolve import resolve
from kukri.runtime.model.source import open_source
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights

REPEATS = 7
CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class TimedMachine(CpuMachine):
    """A machine that times the instructions of a step instead of running it on its team."""

    def instructions(self, n_rows: int) -> tuple[np.ndarray, list[str]]:
        """The instructions of a step of `n_rows` rows, and their names."""
        steps = self._lowered.steps_of(n_rows)
        return steps.instructions, steps.names

    def profile(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run a step; the seconds of each of its instructions, float64 [n]."""
        instructions, _ = self.instructions(len(batch.tokens))
        times = np.full((REPEATS, len(instructions)), np.inf)

        def run(step: int) -> None:
            for repeat in times:
                for i, instruction in enumerate(instructions):
                    kernel = CALL(int(instruction["kernel"]))
                    start = time.perf_counter()
                    kernel(int(instruction["arguments"]), step, 0)
                    repeat[i] = time.perf_counter() - start

        self.team.run = run  # type: ignore[method-assign]
        self.step(batch, table)
        return times.min(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name, file or folder as `llm run -m` takes it")
    parser.add_argument("--rows", type=int, default=1, help="tokens in the step: 1 is decode")
    parser.add_argument("--depth", type=int, default=100, help="tokens already in the cache")
    args = parser.parse_args()

    source = open_source(resolve(args.model))
    n_pages = -(-(args.depth + args.rows) // PAGE_SIZE)
    program = build_program(source.config, Weights(source.config, source.tensors))
    machine = TimedMachine(program, n_pages, threads=1, release=source.release)
    table = PageTable(n_pages)
    table.extend(0, args.depth + args.rows)
    rows = np.arange(args.rows, dtype=np.int32)
    seconds = machine.profile(Batch(0 * rows, 0 * rows, args.depth + rows, rows[-1:]), table)

    instructions, names = machine.instructions(args.rows)
    total: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for name, second in zip(names, seconds, strict=True):
        total[name] += second
        calls[name] += 1
    print(f"{source.name}, {args.rows} rows at depth {args.depth}, {LEVEL}, one thread")
    for name in sorted(total, key=lambda n: -total[n]):
        share = total[name] / seconds.sum()
        print(f"{name:24} {calls[name]:4} × {total[name] / calls[name] * 1e6:9.1f} µs = {share:6.1%}")
    barriers = int(instructions["barrier"].sum())
    print(f"{'all':24} {len(seconds):4} instructions, {barriers} barriers: {seconds.sum() * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
