"""Whether the table of `llm eval --route` is what `llm batch --route` gives, on questions made here.

    python scripts/route_check.py SMALL LARGE [--questions 60] [--thresholds 4] [--kind KIND]

The questions are sums, capitals and opposites with known answers. Both tables are compared with runs of
`llm batch --deterministic` at some of the thresholds. Exits with 1 if a share of right answers is another.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kukri.runtime.routing.labelled import Question

N_NEW = 16
LLM = (sys.executable, "-P", "-m", "kukri.cli.start")
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Hungary": "Budapest", "Egypt": "Cairo", "Kenya": "Nairobi", "Japan": "Tokyo",
    "China": "Beijing", "India": "New Delhi", "Thailand": "Bangkok", "Canada": "Ottawa", "Peru": "Lima",
    "Chile": "Santiago", "Cuba": "Havana", "Ireland": "Dublin", "Iceland": "Reykjavik", "Turkey": "Ankara",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": ["small", "little"], "up": "down", "day": "night", "early": "late", "rich": "poor",
    "happy": ["sad", "unhappy"], "fast": "slow", "open": "closed", "light": ["dark", "heavy"], "wet": "dry",
    "old": ["new", "young"], "full": "empty", "left": "right", "loud": "quiet", "strong": "weak",
}  # fmt: skip


def questions(n: int) -> list[dict[str, Any]]:
    """`n` questions in a mixed order, the same each time."""
    generator = random.Random(0)
    found: list[dict[str, Any]] = [
        {"prompt": f"What is the capital of {country}? Answer with its name only.", "answer": capital}
        for country, capital in CAPITALS.items()
    ]
    found += [
        {"prompt": f'What is the opposite of "{word}"? Answer with one word.', "answer": answer}
        for word, answer in OPPOSITES.items()
    ]
    while len(found) < max(n, 80):
        a, b = generator.randrange(2, 60), generator.randrange(2, 60)
        found.append({"prompt": f"What is {a} + {b}? Answer with the number only.", "answer": a + b})
    generator.shuffle(found)
    return found[:n]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def llm(*arguments: object) -> bytes:
    return subprocess.run([*LLM, *map(str, arguments)], stdout=subprocess.PIPE, check=True).stdout


def batch(folder: Path, route: str, source: Path, threshold: float, *more: object) -> float:
    """The share of right answers of a run."""
    out = folder / "out.jsonl"
    flags = ("-t", 0, "-n", N_NEW, "--deterministic", "--answer-column", "given", "--force")
    llm("batch", source, out, "--route", route, "--route-threshold", threshold, *flags, *more)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return sum(Question.of(row).is_right(row["given"]) for row in rows) / len(rows)


def chosen(rows: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """`n` of some rows, the first and the last among them."""
    return [rows[round(i * (len(rows) - 1) / max(1, n - 1))] for i in range(min(n, len(rows)))]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--thresholds", type=int, default=4)
    parser.add_argument("--kind", choices=["calibrated", "uncalibrated"], help="default: both")
    given = parser.parse_args()
    route, same = f"{given.small},{given.large}", True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, saved = write(folder / "questions.jsonl", questions(given.questions)), folder / "route.json"
        evaluate = ("eval", "--route", route, "--file", source, "-n", N_NEW, "-o", "json")
        told = json.loads(llm(*evaluate, "--save-calibration", saved))
        for kind, more in (("calibrated", ("--route-calibration", saved)), ("uncalibrated", ())):
            if given.kind not in (None, kind):
                continue
            print(f"{kind}\nthreshold  to the large model  right  seconds  cost")
            for row in told[kind]:
                print(
                    f"{row['threshold']:9.5f}  {row['escalated']:18.1%}  {row['right']:5.1%}  "
                    f"{row['seconds']:7.1f}  {row['cost']:4.0%}",
                    flush=True,
                )
            for row in chosen(told[kind], given.thresholds):
                right = batch(folder, route, source, row["threshold"], *more)
                same = same and right == row["right"]
                print(f"{row['threshold']:9.5f}  a batch has {right:.1%} right", flush=True)
    print("the batches have what the table says" if same else "a batch has something else")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
