"""`llm bench`: speed of prefill and decode, measured as llama-bench does."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import store, terminal
from .options import DEFAULT_MODEL, THREADS_HELP, Model_, flag, load_quietly

if TYPE_CHECKING:
    from ..runtime.cache import PageTable
    from ..runtime.engine import Machine
    from .describe import Description


class Format(StrEnum):
    md = "md"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


@dataclass(frozen=True)
class Test:
    """Prefill of `n_prompt` tokens or decode of `n_gen`, behind `n_depth` tokens already in the cache."""

    n_prompt: int
    n_gen: int
    n_depth: int

    @property
    def name(self) -> str:
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return f"{name} @ d{self.n_depth}" if self.n_depth else name

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_gen


def bench(
    model: Model_ = DEFAULT_MODEL,
    n_prompt: Annotated[
        int, flag("-p", "--n-prompt", metavar="N", min=0, help="Tokens to prefill; 0: no such test.")
    ] = 512,
    n_gen: Annotated[
        int, flag("-n", "--n-gen", metavar="N", min=0, help="Tokens to decode; 0: no such test.")
    ] = 128,
    repetitions: Annotated[
        int, flag("-r", "--repetitions", metavar="N", min=1, help="Runs of each test.")
    ] = 5,
    n_depth: Annotated[
        int, flag("-d", "--n-depth", metavar="N", min=0, help="Tokens in the cache beforehand.")
    ] = 0,
    threads: Annotated[int | None, flag("-t", "--threads", metavar="N", min=1, help=THREADS_HELP)] = None,
    output: Annotated[Format, flag("-o", "--output", help="Format of the results.")] = Format.md,
) -> None:
    """Measure prefill (pp) and decode (tg) speed in tokens a second.

    Same tests and columns as llama-bench; tokenising and sampling are not timed there either. The
    time to the first token is that of the prefill. Loading, with the compiling of kernels that are not
    in the cache yet, is timed apart.
    """
    tests = [Test(p, n, n_depth) for p, n in ((n_prompt, 0), (0, n_gen)) if p or n]
    if not tests:
        raise typer.BadParameter("-p 0 and -n 0 leave nothing to measure")
    path = store.resolve(model)
    from .describe import describe

    about = describe(path)
    start = perf_counter()
    loaded = load_quietly(path, model, context=n_depth + max(n_prompt, n_gen), threads=threads)
    load_seconds = perf_counter() - start
    results = []
    with closing(loaded):
        machine = loaded.engine.machine
        for test in tests:
            with terminal.status(f"{test.name} …"):
                seconds = measure(machine, loaded.engine.table, loaded.config.vocab_size, test, repetitions)
            results.append(_result(test, seconds, about, _threads(machine), load_seconds))
    terminal.write(_WRITERS[output](results))


def measure(machine: Machine, table: PageTable, vocab_size: int, test: Test, repetitions: int) -> list[float]:
    """Seconds that each of `repetitions` runs of `test` took, after one that does not count.

    The ids are pseudo-random. Prefill wants the logits of its last token, decode those of each.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(0, vocab_size, test.n_depth + test.n_tokens).astype(np.int32)
    run = _prefill if test.n_prompt else _decode
    table.truncate(0, 0)
    _prefill(machine, table, ids[: test.n_depth])
    seconds = []
    for _ in range(repetitions + 1):
        table.truncate(0, test.n_depth)
        start = perf_counter()
        run(machine, table, ids[test.n_depth :])
        seconds.append(perf_counter() - start)
    table.truncate(0, 0)
    return seconds[1:]


def _prefill(machine: Machine, table: PageTable, ids: Any) -> None:
    for start in range(0, len(ids), machine.max_rows):
        chunk = ids[start : start + machine.max_rows]
        last = start + len(chunk) == len(ids)
        _step(machine, table, chunk, [len(chunk) - 1] if last else [])


def _decode(machine: Machine, table: PageTable, ids: Any) -> None:
    for i in range(len(ids)):
        _step(machine, table, ids[i : i + 1], [0])


def _step(machine: Machine, table: PageTable, ids: Any, wanted: list[int]) -> None:
    import numpy as np

    from ..runtime.cache import Batch

    n = len(ids)
    first = int(table.lengths[0])
    table.extend(0, n)
    machine.step(
        Batch(
            tokens=ids,
            sequences=np.zeros(n, np.int32),
            positions=np.arange(first, first + n, dtype=np.int32),
            wanted=np.array(wanted, np.int32),
        ),
        table,
    )


def _threads(machine: Machine) -> int:
    return int(getattr(machine, "n_threads", 1))


def _result(
    test: Test, seconds: list[float], about: Description, n_threads: int, load_seconds: float
) -> dict[str, Any]:
    from .describe import human_count

    speeds = [test.n_tokens / s for s in seconds]
    result: dict[str, Any] = {
        "model_filename": str(about.paths[0]),
        "model_type": f"{about.architecture} {human_count(about.n_params).replace(' ', '')} {about.quant}",
        "model_size": about.n_bytes,
        "model_n_params": about.n_params,
        "backend": "CPU",
        "n_threads": n_threads,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "avg_ts": statistics.fmean(speeds),
        "stddev_ts": _deviation(speeds),
        "samples_ts": speeds,
        "load_seconds": load_seconds,
    }
    if test.n_prompt:
        result |= {"ttft_seconds": statistics.fmean(seconds), "ttft_stddev": _deviation(seconds)}
    return result


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _markdown(results: list[dict[str, Any]]) -> str:
    header = ("model", "size", "params", "backend", "threads", "test", "t/s")
    rows = []
    for r in results:
        rows.append(
            (
                r["model_type"],
                f"{r['model_size'] / 2**20:.2f} MiB",
                f"{r['model_n_params'] / 1e6:.2f} M",
                r["backend"],
                str(r["n_threads"]),
                Test(r["n_prompt"], r["n_gen"], r["n_depth"]).name,
                f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}",
            )
        )
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    left = (0, 3)
    rule = ["-" * w if i in left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines = [
        "| "
        + " | ".join(
            c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in (header, rule, *rows)
    ]
    notes = [f"loaded in {results[0]['load_seconds']:.2f} s (with the kernels that had to be compiled)"]
    for r in results:
        if "ttft_seconds" in r:
            notes.insert(0, f"time to first token after {r['n_prompt']} tokens: "
                         f"{r['ttft_seconds']:.3f} ± {r['ttft_stddev']:.3f} s")  # fmt: skip
    return "\n".join([*lines, "", *notes]) + "\n"


def _json(results: list[dict[str, Any]]) -> str:
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def _jsonl(results: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)


def _csv(results: list[dict[str, Any]]) -> str:
    names = [name for name in results[0] | results[-1] if name != "samples_ts"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return text.getvalue()


_WRITERS: dict[Format, Callable[[list[dict[str, Any]]], str]] = {
    Format.md: _markdown,
    Format.json: _json,
    Format.jsonl: _jsonl,
    Format.csv: _csv,
}
