"""Thousands of random requests from several threads on the engine, on fixtures of all kinds of models.

    python scripts/stress_engine.py [NAME ...] [--machine cpu] [--count 2000] [--threads 8] [--seed 0]

Requests are greedy or sampled, plain ones and beam searches, read by threads and by event loops, of several
priorities, often cancelled, and too many for the pages and slots there are; --interrupts adds Ctrl-C. Half of
them run with drafts out of their text, half without. A line for each fixture and machine says what was
run; the exit code is 1 if an answer was not that of a run by itself, a page was lost, or nothing went on.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from kukri.runtime.engine.engine import Engine
from kukri.tests.runtime.engine.scheduling.stress import (
    Interrupting,
    check_pages,
    make_cases,
    new_engine,
    program_of,
    run_clients,
)

ARCHIVES = Path(__file__).resolve().parent.parent / "tests" / "data" / "conformance"
NAMES = ("llama-gqa", "gemma3", "mixtral", "gpt-oss", "deepseek-v3", "lfm2", "qwen3.5", "falcon-h1")
PAGES, SLOTS = 11, 6
PATIENCE = 120.0  # seconds


def kind_of(machine: str) -> Any:
    if machine == "cpu":
        from kukri.runtime.cpu.machine import CpuMachine

        return CpuMachine
    if machine == "cuda":
        from kukri.runtime.cuda.machine import CudaMachine

        return CudaMachine
    from kukri.runtime.reference.machine import ReferenceMachine

    return ReferenceMachine


def close(engine: Engine) -> None:
    """Close an engine's machine, which a Machine in general need not have."""
    machine: Any = engine.machine
    machine.close()


def stress(folder: Path, machine: str, count: int, threads: int, seed: int, interrupts: float) -> bool:
    """Run one fixture on one machine; whether all was right."""
    program, config = program_of(folder)
    ids = (np.load(folder / "reference.npz")["input_ids"].tolist() * 4)[:90]
    kind = kind_of(machine)
    alone = new_engine(program, config, kind, PAGES, 1, deterministic=True)
    cases = make_cases(alone, ids, 60, seed)
    close(alone)
    fine = True
    for speculate in (True, False):
        engine = new_engine(program, config, kind, PAGES, SLOTS, speculate=speculate)
        if interrupts:
            Interrupting(engine.machine, interrupts, seed)
        start = time.monotonic()
        findings = run_clients(engine, cases, count // 2, threads, seed, PATIENCE)
        done = ", ".join(f"{n} {kind}" for kind, n in sorted(findings.counts.items()))
        wrong = findings.wrong or check_pages(engine)
        if findings.counts["sampled otherwise"] > 0.02 * findings.counts["sampled"] + 1:
            wrong.append("too many draws are others")
        which = "with drafts" if speculate else "without drafts"
        print(
            f"{folder.name:14} {machine:9} {which:14} {time.monotonic() - start:6.1f} s  {done}", flush=True
        )
        for problem in wrong[:5]:
            print(f"    {problem[:500]}", flush=True)
        if any("nothing has ended" in problem for problem in wrong):
            faulthandler.dump_traceback(all_threads=True)
            os._exit(1)
        fine = fine and not wrong
        engine.close()
        close(engine)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--machine", choices=("reference", "cpu", "cuda"), action="append")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interrupts", type=float, default=0.0, help="share of steps that Ctrl-C interrupts")
    args = parser.parse_args()
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        for archive in ARCHIVES.glob("*.tar.xz"):
            with tarfile.open(archive) as files:
                files.extractall(folder, filter="data")
        for name in args.names:
            for machine in args.machine or ("reference", "cpu"):
                fine &= stress(
                    Path(folder) / name, machine, args.count, args.threads, args.seed, args.interrupts
                )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
