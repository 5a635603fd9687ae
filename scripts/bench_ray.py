"""What Ray costs a batch: two local workers of one thread, against two runs of one thread without Ray.

    python scripts/bench_ray.py MODEL [--rows 240] [--tokens 48] [--parallel 8]

All run on this machine: first two `llm batch --threads 1` at the same time, with half of the rows each,
then one `llm batch --ray` on a cluster of two nodes with one processor each. Rows a second are those
between a fifth and four fifths of the rows, by the journals, so that neither loading nor the end counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ray_kills import LLM, n_noted

from kukri.tests.ray_cluster import RayCluster


def questions(path: Path, n: int) -> Path:
    lines = (json.dumps({"prompt": f"Write a long story about the number {i}."}) + "\n" for i in range(n))
    path.write_text("".join(lines))
    return path


def rows_a_second(commands: Sequence[Sequence[str]], outs: Sequence[Path], n_rows: int) -> float:
    """Run commands at the same time; how fast their journals grow together."""
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
    times: list[tuple[float, int]] = []
    while all(process.poll() is None for process in running):
        n = sum(n_noted(out) for out in outs)
        if not times or n > times[-1][1]:  # a journal is gone when its run is complete
            times.append((time.monotonic(), n))
        time.sleep(0.02)
    if any(process.wait() for process in running):
        sys.exit("a run has failed")
    inside = [(at, n) for at, n in times if 0.2 * n_rows <= n <= 0.8 * n_rows]
    (start, first), (end, last) = inside[0], inside[-1]
    return (last - first) / (end - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--parallel", type=int, default=8)
    wanted = parser.parse_args()
    flags = ("-m", wanted.model, "-t", "0", "-n", str(wanted.tokens), "--parallel", str(wanted.parallel))
    with tempfile.TemporaryDirectory(prefix="ray") as name:
        folder = Path(name)
        halves = [questions(folder / f"in{i}.jsonl", wanted.rows // 2) for i in range(2)]
        outs = [folder / f"out{i}.jsonl" for i in range(2)]
        commands = [
            [*LLM, "batch", str(source), str(out), *flags, "--threads", "1"]
            for source, out in zip(halves, outs, strict=True)
        ]
        alone = rows_a_second(commands, outs, wanted.rows)
        print(f"two runs of one thread: {alone:.2f} rows/s together", flush=True)
        cluster = RayCluster(str(folder / "r"))
        try:
            cluster.add("a")
            source, out = questions(folder / "in.jsonl", wanted.rows), folder / "out.jsonl"
            command = [*LLM, "batch", str(source), str(out), *flags, "--ray", cluster.address]
            together = rows_a_second([command], [out], wanted.rows)
        finally:
            cluster.stop()
    print(f"two workers of one thread: {together:.2f} rows/s, {together / alone:.1%}")


if __name__ == "__main__":
    main()
