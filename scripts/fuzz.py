"""Feed changed files to the loaders by the hundred thousand.

    python scripts/fuzz.py gguf tokenizer.json --count 200000 --out findings

Every input comes from a number, so that a finding can be made again: `--first N --count 1`. A process of
its own reads the files one after the other. Ended by a signal, or by the watchdog after --seconds of
processor time on one file, it is a finding, and another process goes on behind it. So is any error but the
documented ones, and any need for more than --megabytes beyond what sound files take. With --atheris the
inputs are chosen by that package (which must be installed) for the code that they reach, until it is
stopped.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import Struct

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if "--atheris" in sys.argv:
    import atheris

    with atheris.instrument_imports(include=["kukri"]):  # all that the interpreter knows would take minutes
        pass

from kukri.tests.fuzz.seeds import Seed
from kukri.tests.fuzz.targets import DOCUMENTED, TARGETS, Target

STATE = Struct("<QddQ")  # the input being read, the longest time and the most memory so far, 1: it is run
RUN_EVERY = 16  # of the files that can be read, one in so many is run as well
RUN_SECONDS = 120.0  # kernels that no sound file needed must be compiled first
WALL_SECONDS = 240.0  # for what waits without using the processor


class Reader:
    """The folders of all seeds, and the reading of one input."""

    def __init__(self, target: Target, seed: int, folder: Path) -> None:
        self.target = target
        self.seed = seed
        (folder / "made").mkdir(parents=True)
        self.seeds = target.seeds(folder / "made")
        self.folders: dict[int, Path] = {}
        self.root = folder

    def input(self, number: int) -> tuple[int, bytes]:
        """Which seed, and what becomes of its file."""
        rng = Random(f"{self.seed} {self.target.name} {number}")
        which = rng.randrange(len(self.seeds))
        return which, self.target.change(rng, self.seeds[which].raw)

    def place(self, which: int, raw: bytes) -> Path:
        seed: Seed = self.seeds[which]
        folder = self.folders.get(which)
        if folder is None:
            folder = self.folders[which] = self.root / f"seed-{which}"
            folder.mkdir()
            for name, content in seed.files.items():
                (folder / name).write_bytes(content)
        (folder / seed.changed).write_bytes(raw)
        return folder

    def read(self, which: int, raw: bytes, before_run: Callable[[], None] | None = None) -> str:
        """The name of the error, or "read" or "run"; anything that is not documented is raised.

        A file that can be read is run if there is something to call before that.
        """
        folder = self.place(which, raw)
        try:
            self.target.read(folder)
            if before_run and self.target.run is not None:
                before_run()
                self.target.run(folder)
                return "run"
        except DOCUMENTED as error:
            if "MemoryError" in str(error):
                raise
            return type(error).__name__
        return "read"

    def warm_up(self) -> None:
        """Everything that sound files need, imported and compiled before limits are set."""
        for which, seed in enumerate(self.seeds):
            outcome = self.read(which, seed.raw, before_run=lambda: None)
            if outcome not in ("read", "run", "TemplateError"):
                raise SystemExit(f"the seed {seed.name} of {self.target.name} is not sound: {outcome}")


def work(reader: Reader, state: mmap.mmap, numbers: range, megabytes: int, out: Path, results: Path) -> None:
    """In a process of its own: read the inputs, and write down what came of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outcomes: Counter[str] = Counter()
    longest, most = 0.0, 0.0
    sound = 0
    for number in numbers:
        state[:] = STATE.pack(number, longest, most, 0)
        which, raw = reader.input(number)
        start, took = time.process_time(), 0.0

        def before_run(
            number: int = number, start: float = start, past: tuple[float, float] = (longest, most)
        ) -> None:
            nonlocal took
            took = time.process_time() - start
            state[:] = STATE.pack(number, *past, 1)

        try:
            outcome = reader.read(which, raw, before_run if sound % RUN_EVERY == 0 else None)
            sound += outcome == "read" or outcome == "run"
        except BaseException:
            outcome = "FINDING"
            keep(out, reader, number, traceback.format_exc())
        longest = max(longest, took or time.process_time() - start)
        most = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - baseline) / 1024
        outcomes[outcome] += 1
        if number % 20 == 19 or number == numbers[-1]:
            results.write_text(json.dumps([number, outcomes]))
    state[:] = STATE.pack(numbers.stop, longest, most, 0)


def keep(out: Path, reader: Reader, number: int, what: str) -> None:
    """Store an input that should not have done what it did."""
    which, raw = reader.input(number)
    seed = reader.seeds[which]
    folder = out / f"{reader.target.name}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / seed.changed).write_bytes(raw)
    (folder / "what.txt").write_text(f"seed {seed.name}, input {number}\n{what}\n")
    print(f"{reader.target.name} {number}: {what.strip().splitlines()[-1][:300]}", flush=True)


def processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def watch(pid: int, state: mmap.mmap, seconds: float) -> str:
    """Wait for the worker's end; kill it if it stays with one input for too long. "" if all went well."""
    number, cpu, wall = -1, 0.0, time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"ended with {code}"
        now, _, _, running = STATE.unpack(state[:])
        used = processor_seconds(pid)
        if now != number:
            number, cpu, wall = now, used, time.monotonic()
        elif used - cpu > (RUN_SECONDS if running else seconds) or time.monotonic() - wall > WALL_SECONDS:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"hangs: {used - cpu:.1f} s of processor time, {time.monotonic() - wall:.1f} s"
        time.sleep(0.05)


def fuzz(target: Target, arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    reader = Reader(target, arguments.seed, folder)
    reader.warm_up()
    state = mmap.mmap(-1, STATE.size)
    first, stop = arguments.first, arguments.first + arguments.count
    outcomes: Counter[str] = Counter()
    longest, most, start = 0.0, 0.0, time.monotonic()
    results = folder / "results.json"
    while first < stop:
        results.unlink(missing_ok=True)
        state[:] = STATE.pack(first, 0.0, 0.0, 0)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(reader, state, range(first, stop), arguments.megabytes, arguments.out, results)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        problem = watch(pid, state, arguments.seconds)
        number, slow, large, _ = STATE.unpack(state[:])
        longest, most = max(longest, slow), max(most, large)
        if results.exists():
            outcomes.update(json.loads(results.read_text())[1])
        if problem:
            outcomes["FINDING"] += 1
            keep(arguments.out, reader, number, problem)
        first = number + bool(problem)
        if arguments.minutes and time.monotonic() - start > 60 * arguments.minutes:
            break
    return {
        "target": target.name,
        "inputs": first - arguments.first,
        "seconds": round(time.monotonic() - start),
        "slowest": round(longest, 3),
        "megabytes": round(most),
        "outcomes": dict(outcomes.most_common()),
    }


def with_atheris(target: Target, seed: int, folder: Path, rest: list[str]) -> None:
    """Inputs chosen by coverage, changed by the same mutators."""
    import atheris

    reader = Reader(target, seed, folder)
    which = 0

    def one(raw: bytes) -> None:
        reader.read(which, raw)

    def mutate(raw: bytes, most: int, number: int) -> bytes:
        rng = Random(number)
        return target.change(rng, raw or rng.choice(reader.seeds).raw)[:most]

    corpus = folder / "corpus"
    corpus.mkdir()
    for i, found in enumerate(reader.seeds):
        if found.changed == reader.seeds[0].changed:
            (corpus / str(i)).write_bytes(found.raw)
    atheris.Setup([sys.argv[0], *rest, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", default=[*TARGETS], help=", ".join(TARGETS))
    parser.add_argument("--count", type=int, default=200_000, help="inputs of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of processor time for one input")
    parser.add_argument("--megabytes", type=int, default=500, help="beyond what sound files need")
    parser.add_argument("--minutes", type=float, default=0, help="for each kind; 0: no limit")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="where findings are kept")
    parser.add_argument("--atheris", action="store_true", help="let atheris choose; other flags go to it")
    arguments, rest = parser.parse_known_args()
    reports = []
    for name in arguments.targets:
        memory = "/dev/shm"  # noqa: S108 - TemporaryDirectory makes a folder of its own in it
        with tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as folder:
            if arguments.atheris:
                with_atheris(TARGETS[name], arguments.seed, Path(folder), rest)
            reports.append(fuzz(TARGETS[name], arguments, Path(folder)))
            print(json.dumps(reports[-1]), flush=True)
    sys.exit(any("FINDING" in report["outcomes"] for report in reports))  # type: ignore[operator]


if __name__ == "__main__":
    main()
