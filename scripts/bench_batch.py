"""Measure what `llm batch` adds to the steps themselves: a file of prompts against `llm bench --parallel`.

    python scripts/bench_batch.py MODEL.gguf --rows 64 --width 16

Both compute prompts of 128 tokens and answers of as many, in one process and in turn, so that a machine that
is slower now and then is so for both. Printed are the tokens of answers in a second: of the steps alone, as
`llm bench -pg 128,128 --parallel WIDTH` takes them, and of a batch with its reading, templates, sampling,
text and files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from kukri.cli.bench.measure import measure
from kukri.cli.bench.plan import Test
from kukri.runtime.batch.ahead import RowsAhead
from kukri.runtime.batch.execute import Endpoints
from kukri.runtime.batch.job import open_job
from kukri.runtime.batch.requests import Asking
from kukri.runtime.batch.runner import Batch
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.model import Model
from kukri.runtime.model.options import LoadOptions


@dataclass(frozen=True)
class Shape:
    """What is measured: tokens of prompts and of answers, and how many answers at a time."""

    prompt: int
    answer: int
    width: int


def steps(model: Model, shape: Shape) -> float:
    """Tokens of answers a second of the steps alone."""
    engine = model.engine
    table = PageTable(engine.table.n_pages, max_sequences=shape.width)
    test = Test(shape.prompt, shape.answer, 0, shape.width)
    seconds = measure(engine.machine, table, model.config.vocab_size, test, 1, warm_up=False)
    return shape.width * shape.answer / seconds[0]


def write_rows(path: Path, model: Model, shape: Shape, n: int, seed: int) -> None:
    """A file of `n` prompts, which begin differently: none shares anything with another."""
    generator = random.Random(seed)
    most = min(model.config.vocab_size, 20_000)
    with path.open("w") as file:
        for i in range(n):
            prompt = [generator.randrange(100, most) for _ in range(shape.prompt)]
            body = {"prompt": prompt, "max_tokens": shape.answer, "ignore_eos": True, "temperature": 0}
            line = {"custom_id": f"{seed} {i}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


async def batch(model: Model, shape: Shape, folder: Path, rows: int, seed: int) -> float:
    """Tokens of answers a second of a batch."""
    source, out = folder / f"{seed}.jsonl", folder / f"{seed}.out.jsonl"
    write_rows(source, model, shape, rows, seed)
    start = perf_counter()
    job = open_job(str(source), str(out), {})
    running = Batch(
        RowsAhead(job.rows), Asking(), Endpoints(model, "model"), job.lines, job.output, shape.width
    )
    await running.run()
    job.complete()
    seconds = perf_counter() - start
    assert running.progress.tokens == rows * shape.answer, "some rows failed"
    return running.progress.tokens / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shape = Shape(given.prompt, given.answer, given.width)
    options = LoadOptions(device="cpu", parallel=shape.width, contexts=-(-shape.width // 16))
    best = {"steps": 0.0, "batch": 0.0}
    with tempfile.TemporaryDirectory() as name, load_model(given.model, options) as model:
        for nth in range(given.rounds):
            speed = {"steps": steps(model, shape)}
            speed["batch"] = asyncio.run(batch(model, shape, Path(name), given.rows, nth))
            best = {kind: max(best[kind], speed[kind]) for kind in best}
            print(f"steps {speed['steps']:.1f} tokens/s, batch {speed['batch']:.1f}", flush=True)
    print(f"best of each: {100 * best['batch'] / best['steps']:.1f} %")


if __name__ == "__main__":
    main()
