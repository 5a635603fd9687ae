#!/usr/bin/env python3
"""Run a folder of conformance fixtures on the reference and on the CPU machine; one line each.

    python scripts/conformance.py DIR [NAME ...] [--threads 2]

DIR has a `manifest.json`, {"fixtures": [{"name", "suggested_atol", "gguf": [files]}, …]}, and a folder for
each fixture: `config.json`, `config.v5.json` if there is another spelling, safetensors and maybe GGUF files,
and `reference.npz` (for a file that ends in -Q8_0.gguf: `reference-q8_0.npz`) with

    input_ids [T]; logits float32 [R, vocab] after the ids at rows [R] (default: all); greedy_ids, which
    continue the first 16; logits_full, where one pass over all ids differs from one id at a time

Every form of a fixture runs as one step, one id at a time, and in chunks of 7. A line has the largest errors
of the three; they may be `suggested_atol`, five times that on the CPU machine, where weights in blocks (Q8_0,
or what packed weights become) count by the mean KL divergence, at most 0.02. The exit code is 1 if any fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.cpu.lowering.weight_panels import weight_matrices
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.ops import Program
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights

PAGES = 8
CHUNKS = (512, 1, 7)
MOST_KL = 0.02
CPU_FACTOR = 5


def forms(folder: Path, entry: dict[str, Any]) -> Iterator[str]:
    """The files that a fixture can be read from."""
    yield "config.json"
    if (folder / "config.v5.json").is_file():
        yield "config.v5.json"
    yield from entry.get("gguf", ())


def load(folder: Path, form: str) -> Program:
    if form.endswith(".gguf"):
        file = GGUFFile.open(folder / form)
        config = config_from_gguf(file.metadata, file.tensors)
        return build_program(config, Weights(config, file.tensors))
    checkpoint = Checkpoint.open(folder)
    config = config_from_hf(json.loads((folder / form).read_text()), checkpoint.tensors)
    return build_program(config, Weights(config, checkpoint.tensors))


def logits(machine: Any, ids: np.ndarray, chunk: int) -> np.ndarray:
    """float32 [len(ids), vocab] of one sequence that is fed in chunks."""
    table, found = PageTable(PAGES), []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk].astype(np.int32)
        n = len(part)
        table.extend(0, n)
        rows = np.arange(n, dtype=np.int32)
        lengths = np.full(n, len(ids), np.int32) if chunk > 1 else None
        found.append(machine.step(Batch(part, 0 * rows, start + rows, rows, lengths), table).copy())
    return np.concatenate(found)


def greedy(machine: Any, ids: np.ndarray, n: int) -> list[int]:
    """The n likeliest ids after `ids`, one after the other."""
    table, part, found = PageTable(PAGES), ids.astype(np.int32), list[int]()
    while len(found) < n:
        first, rows = int(table.lengths[0]), np.arange(len(part), dtype=np.int32)
        table.extend(0, len(part))
        found.append(int(machine.step(Batch(part, 0 * rows, first + rows, rows[-1:]), table)[0].argmax()))
        part = np.array(found[-1:], np.int32)
    return found


def mean_kl(expected: np.ndarray, got: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of rows of logits, in nats."""
    wide = (rows.astype(np.float64) for rows in (expected, got))
    p, q = (rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True) for rows in wide)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def check(machine: Any, reference: Any, atol: float, by_kl: bool) -> tuple[bool, str]:
    """Whether a machine computes what it should, and what to print of that."""
    ids = reference["input_ids"]
    rows = reference["rows"] if "rows" in reference else np.arange(len(ids))
    errors = []
    for chunk in CHUNKS:
        expected = reference["logits_full" if chunk > 1 and "logits_full" in reference else "logits"]
        got = logits(machine, ids, chunk)[rows]
        errors.append(mean_kl(expected, got) if by_kl else float(np.abs(got - expected).max()))
    limit = MOST_KL if by_kl else atol
    good = all(error <= limit for error in errors)
    text = f"{'KL' if by_kl else 'error'} {' '.join(f'{error:.1e}' for error in errors)} of {limit:.0e}"
    if not by_kl:
        wanted = reference["greedy_ids"].tolist()
        same = greedy(machine, ids[:16], len(wanted)) == wanted
        good, text = good and same, text + (", greedy the same" if same else ", greedy DIFFERS")
    return good, text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the fixtures")
    parser.add_argument("names", nargs="*", help="which; default: all")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    failed = 0
    for entry in json.loads((args.folder / "manifest.json").read_text())["fixtures"]:
        name, atol = entry["name"], entry["suggested_atol"]
        if args.names and name not in args.names:
            continue
        for form in forms(args.folder / name, entry):
            of_blocks = form.endswith("-Q8_0.gguf")
            for kind in ("reference", "cpu"):
                try:
                    program = load(args.folder / name, form)
                    reference = np.load(
                        args.folder / name / ("reference-q8_0.npz" if of_blocks else "reference.npz")
                    )
                    cpu = kind == "cpu"
                    machine = (
                        CpuMachine(program, PAGES, threads=args.threads)
                        if cpu
                        else ReferenceMachine(program, PAGES)
                    )
                    factor = CPU_FACTOR if cpu else 1
                    quantised = not all(weight.format.is_float for _, weight in weight_matrices(program))
                    good, text = check(machine, reference, factor * atol, quantised and cpu)
                    machine.close()
                except (ValueError, OSError) as problem:
                    good, text = False, str(problem)
                failed += not good
                print(f"{'ok  ' if good else 'FAIL'} {name}/{form} {kind}: {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
