"""A batch on a Ray cluster whose nodes are killed: each row must be there once, as in an undisturbed run.

    python scripts/ray_kills.py [MODEL] [--rows 5000] [--kills 10] [--tokens 16] [--seed 0]

Nodes are processes on this machine, with one processor each; whenever the batch has got some rows further,
all processes of one of them are killed and another node joins. Without MODEL a tiny one with random weights
answers. The answers, at temperature 0, are compared with those of a run of the same rows without Ray.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from kukri.runtime.batch.job import journal_path
from kukri.runtime.batch.journal import RECORD
from kukri.tests.ray_cluster import RayCluster
from kukri.tests.tiny_model import write_tiny_model

LLM = (sys.executable, "-P", "-m", "kukri.cli.start")


def n_noted(out: Path) -> int:
    """Rows in the journal of a run; 0 without one."""
    try:
        return len(journal_path(out).read_bytes().partition(b"\n")[2]) // RECORD.size
    except OSError:
        return 0


def kill_nodes(cluster: RayCluster, driver: subprocess.Popen[bytes], out: Path, at: list[int]) -> int:
    """Kill a node whenever so many rows are done, and have another one join; the number of kills."""
    n_killed = 0
    for rows in at:
        while n_noted(out) < rows:
            if driver.poll() is not None:
                return n_killed
            time.sleep(0.05)
        name = random.choice(sorted(cluster.nodes))
        cluster.kill(name)
        n_killed += 1
        print(f"{n_noted(out):>6} rows are done: {name} is killed", flush=True)
        cluster.add(f"node{n_killed + 2}")
    return n_killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    random.seed(wanted.seed)
    with tempfile.TemporaryDirectory(prefix="ray") as name:
        folder = Path(name)
        model = wanted.model or write_tiny_model(folder / "tiny.gguf")
        source, out, whole = (folder / each for each in ("in.jsonl", "out.jsonl", "whole.jsonl"))
        lines = (json.dumps({"prompt": f"text {i}", "i": i}) + "\n" for i in range(wanted.rows))
        source.write_text("".join(lines))
        flags = ("-m", str(model), "--raw", "-t", "0", "-n", str(wanted.tokens))
        start = time.monotonic()
        subprocess.run([*LLM, "batch", str(source), str(whole), *flags, "--threads", "1"], check=True)
        print(f"undisturbed, without Ray: {time.monotonic() - start:.0f} s", flush=True)

        cluster = RayCluster(str(folder / "r"))
        try:
            cluster.add("node1")
            cluster.add("node2")
            start = time.monotonic()
            command = [*LLM, "batch", str(source), str(out), *flags, "--ray", cluster.address]
            with (folder / "stderr").open("wb") as stderr:
                driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
            step = wanted.rows / (wanted.kills + 1)
            at = [int(step * (i + random.random() * 0.9)) + 1 for i in range(wanted.kills)]
            n_killed = kill_nodes(cluster, driver, out, at)
            driver.wait()
            seconds = time.monotonic() - start
        finally:
            cluster.stop()
        said = (folder / "stderr").read_text("utf-8")
        again = sum(int(n) for n in re.findall(r"(\d+) rows are done again", said))
        if driver.returncode:
            print(said)
            return 1
        rows = Counter(out.read_bytes().splitlines())
        undisturbed = Counter(whole.read_bytes().splitlines())
    twice, lost = (rows - undisturbed).total(), (undisturbed - rows).total()
    n_lost = said.count("worker is lost")
    print(f"{wanted.rows} rows, {n_killed} nodes killed, {seconds:.0f} s")
    print(f"{n_lost} workers lost, {again} rows done again")
    print(f"{lost} rows missing, {twice} too many or other than undisturbed")
    return 1 if twice or lost or n_killed < wanted.kills else 0


if __name__ == "__main__":
    sys.exit(main())
