"""What `llm batch` promises, at full size: kills at random moments, many rows, a large input.

    python scripts/batch_stress.py kills --rows 5000 --kills 50
    python scripts/batch_stress.py rows --rows 100000
    python scripts/batch_stress.py large --gigabytes 1

`kills`: every row is there exactly once, with the answer of an undisturbed run at temperature 0. `rows`: what
the process takes of memory does not grow with the rows. `large`: the first answer of a large input comes as
soon as that of a small one. All with a tiny model of random weights; each exits with 1 if it is not so.

`kills` ends after `--seconds`, and goes on in the same `--folder` when it is called again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kukri.tests.tiny_model import write_tiny_model

LLM = (sys.executable, "-P", "-m", "kukri.cli.start", "batch")
MOST_GROWTH = 16 << 20  # bytes, from a quarter of the rows to the end
SLOWER = 3.0  # seconds that a large input may take longer to begin than a small one
PADDING = 10_000  # bytes of a row of a large input


def command(folder: Path, source: Path, out: Path, n: int) -> list[str]:
    model = folder / "tiny.gguf"
    if not model.exists():
        write_tiny_model(model)
    flags = ["--raw", "-t", "0", "-n", str(n), "--device", "cpu"]
    return [*LLM, str(source), str(out), "-m", str(model), *flags]


def write_rows(path: Path, n: int, padding: int = 0, longest: int = 12) -> Path:
    """`n` questions of different lengths, the same each time."""
    generator = random.Random(0)
    with path.open("w") as file:
        for i in range(n):
            text = f"row {i} " + "and more " * generator.randrange(longest)
            row = {"prompt": text, "i": i} | ({"padding": "x" * padding} if padding else {})
            file.write(json.dumps(row) + "\n")
    return path


def answers(path: Path) -> dict[int, str]:
    """The answer of each row. AssertionError for a row that is there twice."""
    found: dict[int, str] = {}
    with path.open() as file:
        for line in file:
            row = json.loads(line)
            assert row["i"] not in found, f"row {row['i']} is there twice"
            found[row["i"]] = row["answer"]
    return found


def kills(folder: Path, n_rows: int, n_kills: int, seconds: float) -> bool:
    """Whether all is done; False if the time is over."""
    until = time.monotonic() + seconds
    source, out, quiet = folder / "in.jsonl", folder / "out.jsonl", folder / "undisturbed.jsonl"
    state = folder / "kills.json"
    if not state.exists():
        write_rows(source, n_rows)
        done = subprocess.run(command(folder, source, quiet, 8), stderr=subprocess.PIPE, check=True)
        print(f"undisturbed: {done.stderr.decode().strip().splitlines()[-1]}", flush=True)
        state.write_text("0")
    killed = int(state.read_text())
    generator = random.Random(killed)
    size = quiet.stat().st_size
    while killed < n_kills:
        if time.monotonic() > until:
            print(f"{killed} kills so far, {out.stat().st_size / size:.0%} of the output")
            return False
        process = subprocess.Popen(command(folder, source, out, 8), stderr=subprocess.PIPE)
        if generator.random() < 0.2:  # somewhere in its start
            time.sleep(generator.random() * 2.0)
        else:
            _grown(process, out, generator.randrange(int(1.6 * size / n_kills)))
            time.sleep(generator.random() * 0.05)
        assert process.poll() is None, (process.communicate()[1] or b"").decode()[-500:]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
        state.write_text(str(killed))
    done = subprocess.run(command(folder, source, out, 8), stderr=subprocess.PIPE, check=True)
    print(f"after {killed} kills: {done.stderr.decode().strip().splitlines()[-1]}")
    found, wanted = answers(out), answers(quiet)
    assert sorted(found) == list(range(n_rows)), f"{n_rows - len(found)} rows are lost"
    other = [i for i in found if found[i] != wanted[i]]
    print(f"{n_rows} rows, each once; {len(other)} answers are others than undisturbed: {other[:5]}")
    assert not other
    left = sorted(path.name for path in folder.glob("out.jsonl*"))
    assert left == ["out.jsonl"], left
    return True


def _grown(process: subprocess.Popen[bytes], out: Path, n_bytes: int) -> None:
    """Wait until the output has grown by so many bytes since the process has begun to write."""
    before = out.stat().st_size if out.exists() else 0
    while process.poll() is None and (out.stat().st_size if out.exists() else 0) < before + n_bytes:
        time.sleep(0.002)


def memory_of(pid: int) -> int:
    """Bytes of memory that a process has to itself, without the pages of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def rows(folder: Path, n_rows: int) -> None:
    source, out = write_rows(folder / "in.jsonl", n_rows, longest=2), folder / "out.jsonl"
    process = subprocess.Popen(
        [*command(folder, source, out, 1), "--parallel", "64", "--force"], stderr=subprocess.PIPE
    )
    seen: list[tuple[float, int]] = []
    start = time.monotonic()
    for share in _shares(process, folder / "out.jsonl.journal", n_rows):
        if share >= len(seen) / 10:
            seen.append((share, memory_of(process.pid)))
            print(f"{share:4.0%} {seen[-1][1] / 1e6:7.1f} MB, {time.monotonic() - start:.0f} s", flush=True)
    print((process.communicate()[1] or b"").decode().strip().splitlines()[-1])
    assert process.returncode == 0
    assert len(answers(out)) == n_rows
    first = next(n_bytes for share, n_bytes in seen if share >= 0.25)
    growth = seen[-1][1] - first
    print(f"{growth / 1e6:+.1f} MB from a quarter of the rows to the last look")
    assert growth < MOST_GROWTH


def _shares(process: subprocess.Popen[bytes], journal: Path, n_rows: int) -> Iterator[float]:
    """How far a run is, by the size of its journal, again and again until it ends."""
    while process.poll() is None:
        time.sleep(0.05)
        if journal.exists():
            yield journal.stat().st_size / 28 / n_rows


def large(folder: Path, gigabytes: float) -> None:
    begun = {}
    for name, n in (("small", 1000), ("large", int(gigabytes * 1e9 / PADDING))):
        source, out = write_rows(folder / f"{name}.jsonl", n, PADDING), folder / f"{name}.out.jsonl"
        start = time.monotonic()
        process = subprocess.Popen(command(folder, source, out, 4), stderr=subprocess.DEVNULL)
        while not out.exists() or not out.stat().st_size:
            assert process.poll() is None, "it ended without an answer"
            time.sleep(0.005)
        begun[name] = time.monotonic() - start
        time.sleep(3)
        taken = memory_of(process.pid) if process.poll() is None else 0
        process.kill()
        process.wait()
        print(
            f"{name}: {source.stat().st_size / 1e9:.3f} GB, the first answers after {begun[name]:.1f} s, "
            f"{taken / 1e6:.0f} MB three seconds later",
            flush=True,
        )
        source.unlink()
    assert begun["large"] < begun["small"] + SLOWER


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["kills", "rows", "large"])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if given.what == "kills" and not kills(folder, given.rows, given.kills, given.seconds):
            return os.EX_TEMPFAIL
        if given.what == "rows":
            rows(folder, given.rows)
        if given.what == "large":
            large(folder, given.gigabytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
