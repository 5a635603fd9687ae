"""The results of `llm bench --serve`: a table, records for programs, and a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from ...console.safe_text import as_json, one_line
from ...console.table import fits, markdown_table, records
from .measure import Result

_HEADER = (
    "clients", "rate", "requests", "failed", "req/s", "tokens/s", "TTFT p50/p90/p99", "TPOT p50/p90/p99",
    "ITL p50/p90/p99", "goodput",
)  # fmt: skip
_PERCENTILES = ("p50", "p90", "p99")
_NOTE = (
    "tokens/s: of answers. Times in ms: to the first token (TTFT), of a token behind it (TPOT), between "
    "parts of an answer (ITL). Goodput: requests a second within the limits."
)


def written(results: Sequence[Result], form: str, width: int | None) -> str:
    """The results in the format `form` of `llm bench`."""
    if form == "json":
        return as_json(results, indent=1) + "\n"
    if form == "jsonl":
        return "".join(as_json(result) + "\n" for result in results)
    if form == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, list(results[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(results)
        return out.getvalue()
    rows = [_row(result) for result in results]
    text = markdown_table(_HEADER, rows)
    if form == "auto" and not fits(text, width):
        text = records(_HEADER, rows)
    errors = [
        f"{each['failed']} requests failed: {one_line(each['error'])}\n" for each in results if each["failed"]
    ]
    return f"{text}\n{_NOTE}\n" + "".join(errors)


def _row(result: Result) -> tuple[str, ...]:
    return (
        str(result["concurrency"]),
        "–" if result["rate"] is None else f"{result['rate']:g}",
        str(result["requests"]),
        str(result["failed"]),
        f"{result['requests_per_second']:.2f}",
        f"{result['new_tokens_per_second']:.1f}",
        *("/".join(_ms(result[f"{name}_{p}"]) for p in _PERCENTILES) for name in ("ttft", "tpot", "itl")),
        f"{result['goodput']:.2f}",
    )


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}" if seconds < 0.1 else f"{seconds * 1000:.0f}"


def plot(results: Sequence[Result], path: Path) -> None:
    """Write a picture of speed and times by the number of clients. Needs the extra `plot`."""
    from matplotlib.figure import Figure

    clients = [result["concurrency"] for result in results]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    speed, first, between = figure.subplots(1, 3)
    speed.plot(clients, [result["new_tokens_per_second"] for result in results], "o-")
    speed.set_title("tokens a second")
    for axes, name, title in (
        (first, "ttft", "time to the first token, ms"),
        (between, "tpot", "time a token, ms"),
    ):
        for p in _PERCENTILES:
            values = [(result[f"{name}_{p}"] or 0) * 1000 for result in results]
            axes.plot(clients, values, "o-", label=p)
        axes.set_title(title)
        axes.legend()
    for axes in (speed, first, between):
        axes.set_xlabel("clients")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
    figure.savefig(path)
