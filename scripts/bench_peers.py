#!/usr/bin/env python3
"""Kukri beside other programs that have a llama-bench: same files, same threads, same run.

    python scripts/bench_peers.py --peer llama.cpp=llama.cpp/build/bin/llama-bench \\
        --peer "ik_llama.cpp=ik/build/bin/llama-bench:-rtr 1" --models a.gguf b.gguf -t 2 --rounds 3

In each round every program runs every model once, one after the other, and who goes first changes from
round to round. A program's speed is the median over the rounds of its median in a round; a ratio is the
median of the rounds' ratios, so that what slows a whole round down cancels out. The load
average before each round is told, and a warning if others took processor time in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import kukri
from kukri.cli.bench.plan import Test, numbers
from kukri.cli.console.explain import explain
from kukri.cli.console.table import markdown_table
from kukri.cli.console.terminal import note
from kukri.runtime.cpu.processors import cpu_name, default_threads
from kukri.runtime.hub.errors import ModelNotFound
from kukri.runtime.hub.resolve import resolve

OURS = "kukri"
BUSY = 0.05  # of the machine's time, taken by others, is worth a warning

Key = tuple[int, Test]  # threads, test
Speeds = dict[Key, dict[str, Any]]  # what one run of a program told of each test


class Failed(RuntimeError):
    """A program gave no results; the message says why."""


@dataclass(frozen=True)
class Plan:
    """What every program is asked for."""

    prompts: Sequence[int]
    gens: Sequence[int]
    depths: Sequence[int]
    threads: Sequence[int]
    repetitions: int


@dataclass(frozen=True)
class Program:
    """A benchmark to run: its name in the tables, and the command but for model and tests."""

    name: str
    command: tuple[str, ...]
    extra: tuple[str, ...] = ()

    def run(self, model: Path, plan: Plan) -> Speeds:
        """One run of all tests that this program knows. Raises Failed."""
        tests = self._tests(plan)
        if not tests:
            return {}
        common = ["-t", _list(plan.threads), "-r", str(plan.repetitions), "-o", "json"]
        return speeds(_output([*self.command, "-m", str(model), *tests, *common, *self.extra]))

    def _tests(self, plan: Plan) -> list[str]:
        """The tests in the words of this program; [] if it has none of them."""
        every = ["-p", _list(plan.prompts), "-n", _list(plan.gens)]
        if not any(plan.depths):
            return every
        if self.name == OURS or re.search(r"--n-depth\b", _output([*self.command, "--help"], strict=False)):
            return [*every, "-d", _list(plan.depths)]
        # ik_llama.cpp decodes at a depth with -gp, and does not prefill at one.
        deep = [word for d in plan.depths if d for n in plan.gens if n for word in ("-gp", f"{d},{n}")]
        if 0 in plan.depths:
            return [*every, *deep]
        return ["-p", "0", "-n", "0", *deep] if deep else []


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _output(command: Sequence[str], strict: bool = True) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLM_")}
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=kept, check=False)
    except OSError as problem:
        raise Failed(f"cannot start {command[0]}: {problem.strerror or problem}") from None
    if strict and done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise Failed(f"exit code {done.returncode}: {told[-1]}")
    return done.stdout.decode(errors="replace")


def speeds(text: str) -> Speeds:
    """The results in a llama-bench's JSON, with whatever is printed around it. Raises Failed."""
    start, end = re.search(r"^\s*\[", text, re.MULTILINE), text.rfind("]")
    try:
        entries = json.loads(text[start.end() - 1 : end + 1]) if start else None
        found: Speeds = {}
        for entry in entries or ():
            samples = entry.get("samples_ts") or [entry["avg_ts"]]
            median = float(statistics.median(samples))
            found[int(entry["n_threads"]), _test(entry)] = {**entry, "median_ts": median}
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise Failed(f"its results are not as llama-bench writes them ({explain(problem)})") from None
    if not found:
        raise Failed("it printed no results")
    return found


def _test(entry: dict[str, Any]) -> Test:
    n_prompt, n_gen = int(entry["n_prompt"]), int(entry["n_gen"])
    if re.fullmatch(r"tg\d+@pp\d+", str(entry.get("test", ""))):  # the prompt is not timed
        return Test(0, n_gen, n_prompt)
    return Test(n_prompt, n_gen, int(entry.get("n_depth", 0)))


def parse_peer(text: str) -> Program:
    """NAME=PATH, or NAME=PATH:extra arguments. ValueError if there is no such file."""
    name, equals, rest = text.partition("=")
    if not (name and equals) or name == OURS:
        raise ValueError(f"{text!r} is not NAME=PATH/llama-bench[:extra arguments]")
    ends = [match.start() for match in re.finditer(":", rest)]
    for end in [len(rest), *reversed(ends)]:
        if Path(rest[:end]).is_file():
            return Program(name, (str(Path(rest[:end]).resolve()),), tuple(shlex.split(rest[end + 1 :])))
    raise ValueError(f"{name}: no such file: {rest[: ends[0]] if ends else rest}")


def others_seconds() -> float | None:
    """Processor time that others have taken so far, by everybody's clock and our own; None if unknown."""
    try:
        ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # idle, waiting for a disk
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return busy - sum(os.times()[:4])  # this process and those it has waited for


def compare(
    programs: Sequence[Program],
    models: Sequence[Path],
    plan: Plan,
    rounds: int,
) -> dict[str, Any]:
    """Run everything. The result holds `runs`, `results`, `rounds` (how busy others were) and `failures`."""
    raw: dict[Path, dict[str, list[Speeds]]] = {model: {p.name: [] for p in programs} for model in models}
    failures: list[str] = []
    watched = []
    for round_ in range(rounds):
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        start, others = time.perf_counter(), others_seconds()
        first = round_ % len(programs)
        for model in models:
            for program in (*programs[first:], *programs[:first]):
                note(f"round {round_ + 1} of {rounds}: {program.name}, {model.name}")
                try:
                    raw[model][program.name].append(program.run(model, plan))
                except Failed as problem:
                    raw[model][program.name].append({})
                    failures.append(f"{program.name}, {model.name}, round {round_ + 1}: {problem}")
                    note(f"warning: {failures[-1]}")
        now = others_seconds()
        seconds = (time.perf_counter() - start) * (os.cpu_count() or 1)
        share = None if others is None or now is None else max(0.0, (now - others) / seconds)
        watched.append({"load_average": load, "others": share})
        if share is not None and share > BUSY:
            note(f"warning: others took {share:.0%} of the processors in round {round_ + 1}")
    return {
        "rounds": watched,
        "failures": failures,
        "results": [result for model in models for result in _results(model, raw[model])],
        "runs": [
            {"program": name, "round": i, **entry}
            for model in models
            for name, runs in raw[model].items()
            for i, run in enumerate(runs)
            for entry in run.values()
        ],
    }


def _results(model: Path, runs: dict[str, list[Speeds]]) -> list[dict[str, Any]]:
    """One result a test: every program's speed, and ours over theirs."""
    keys = dict.fromkeys(key for rounds in runs.values() for run in rounds for key in run)
    results = []
    for threads, test in keys:
        at = {name: [run.get((threads, test), {}) for run in rounds] for name, rounds in runs.items()}
        ours = at[OURS]
        results.append(
            {
                "model": model.name,
                "n_threads": threads,
                "test": test.name,
                "n_prompt": test.n_prompt,
                "n_gen": test.n_gen,
                "n_depth": test.n_depth,
                "median_ts": {
                    name: _median(run.get("median_ts") for run in rounds) for name, rounds in at.items()
                },
                "ratio": {
                    name: _median(
                        our["median_ts"] / their["median_ts"] if our and their else None
                        for our, their in zip(ours, theirs, strict=True)
                    )
                    for name, theirs in at.items()
                    if name != OURS
                },
                "read_bandwidth": _median(run.get("read_bandwidth") for run in ours),
                "bandwidth_share": _median(run.get("bandwidth_share") for run in ours),
            }
        )
    return results


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def machine(programs: Sequence[Program], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What it ran on, and the versions: ours, and what the peers say of theirs."""
    import numba

    from kukri.runtime.cpu.matrix_tiles import level_in_use

    versions = {OURS: kukri.__version__, "Python": platform.python_version(), "numba": numba.__version__}
    for program in programs[1:]:
        builds = [
            f"{run.get('build_commit', '?')} ({run.get('build_number', '?')})"
            for run in runs
            if run["program"] == program.name
        ]
        versions[program.name] = " ".join([builds[0] if builds else "?", *program.extra])
    return {
        "cpu": cpu_name(),
        "simd": level_in_use(),
        "processors": os.cpu_count(),
        "platform": platform.platform(),
        "versions": versions,
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The machine in a line, then a table: tokens/s of each program, ours over each peer's."""
    about, names = report["machine"], [*report["peers"]]
    header = [
        "model",
        "threads",
        "test",
        OURS,
        *(cell for name in names for cell in (name, "ratio")),
        "of bandwidth",
    ]
    rows = []
    for r in report["results"]:
        row = [r["model"], str(r["n_threads"]), r["test"], _cell(r["median_ts"][OURS], "{:,.1f}")]
        for name in names:
            row += [_cell(r["median_ts"][name], "{:,.1f}"), _cell(r["ratio"][name], "{:.2f}")]
        share = _cell(r["bandwidth_share"], "{:.0%}")
        rows.append([*row, f"{share} of {r['read_bandwidth'] / 1e9:.1f} GB/s" if share else ""])
    lines = [
        f"{about['cpu']}, {about['simd']}, {about['processors']} processors, {about['platform']}",
        ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        "each round's load average before it (processors' time that others took in it): "
        + ", ".join(
            f"{_cell(r['load_average'], '{:.2f}') or '?'} ({_cell(r['others'], '{:.0%}') or '?'})"
            for r in report["rounds"]
        ),
    ]
    told = "\n".join(lines) + "\n\n" + markdown_table(header, rows)
    return told + "".join(f"\nfailed: {failure}\n" for failure in report["failures"])


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PATH[:ARGS]", help="a llama-bench"
    )
    parser.add_argument("--ours", default="", metavar="ARGS", help="more flags of `llm bench`, in quotes")
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL", help="as `llm bench -m`")
    parser.add_argument("-p", "--n-prompt", default="512", metavar="N,…")
    parser.add_argument("-n", "--n-gen", default="128", metavar="N,…")
    parser.add_argument("-d", "--n-depth", default="0", metavar="N,…")
    parser.add_argument("-t", "--threads", metavar="N,…", help="default: ours, for all")
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="of a test in a run")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md")
    args = parser.parse_args(arguments)
    ours = Program(
        OURS,
        (sys.executable, "-m", "kukri.cli.main", "bench", "--no-cold"),
        tuple(shlex.split(args.ours)),
    )
    try:
        programs = [ours, *map(parse_peer, args.peer)]
        if min(args.rounds, args.repetitions) < 1:
            raise ValueError("there must be at least one round and one repetition")
        if len({program.name for program in programs}) < len(programs):
            raise ValueError("two peers have the same name")
        plan = Plan(
            numbers([args.n_prompt], "-p"),
            numbers([args.n_gen], "-n"),
            numbers([args.n_depth], "-d"),
            numbers([args.threads], "-t", 1) if args.threads else [default_threads()],
            args.repetitions,
        )
        models = [resolve(model) for model in args.models]
    except (ValueError, ModelNotFound, typer.BadParameter) as problem:
        parser.error(str(problem))
    report = compare(programs, models, plan, args.rounds)
    report |= {"machine": machine(programs, report["runs"]), "peers": [p.name for p in programs[1:]]}
    print(json.dumps(report, indent=1) if args.output == "json" else as_markdown(report), end="")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
