"""The results of `llm bench` as markdown, JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ..console.safe_text import as_json, one_line
from ..console.table import fits, markdown_table, records
from ..console.wording import count
from .results import Result

# What llama-bench's table has, and a second one, which it does not have.
_SPEEDS = ("model", "size", "params", "backend", "threads", "test", "t/s")
_DETAILS = (
    "model", "threads", "test", "median t/s", "first token", "cold", "read a token", "of bandwidth",
)  # fmt: skip
_DRAFTS = ("drafted", "accepted", "tokens a step")


def as_markdown(results: Sequence[Result]) -> str:
    """Two tables: llama-bench's, and one of medians, first tokens and bandwidth; then notes."""
    first = markdown_table(_SPEEDS, [_speeds(r) for r in results], left=(0, 3))
    second = markdown_table(*_second(results), left=(0,))
    return f"{first}\n{second}\n" + "".join(f"{note}\n" for note in _notes(results))


def for_terminal(results: Sequence[Result], width: int | None) -> str:
    """Markdown, or one record a test where that would be wider than `width` columns (None: any)."""
    text = as_markdown(results)
    if fits(text, width):
        return text
    once = slice(3, None)  # model, threads and test are in both tables
    names, details = _second(results)
    rows = [(*_speeds(r), *each[once]) for r, each in zip(results, details, strict=True)]
    text = records((*_SPEEDS, *names[once]), rows)
    return f"{text}\n" + "".join(f"{note}\n" for note in _notes(results))


def _second(results: Sequence[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns and rows of the second table; those about drafts only where there were some."""
    rows = [_details(r) for r in results]
    if not any("n_drafted" in r for r in results):
        return _DETAILS, rows
    return (*_DETAILS, *_DRAFTS), [(*row, *_drafts(r)) for row, r in zip(rows, results, strict=True)]


def _drafts(r: Result) -> tuple[str, ...]:
    if "n_drafted" not in r:
        return ("", "", "")
    share = f" ({r['n_accepted'] / r['n_drafted']:.0%})" if r["n_drafted"] else ""
    return (str(r["n_drafted"]), f"{r['n_accepted']}{share}", f"{r['tokens_per_step']:.2f}")


def _speeds(r: Result) -> tuple[str, ...]:
    return (
        r["model_type"],
        f"{r['model_size'] / 2**20:.2f} MiB",
        f"{r['model_n_params'] / 1e6:.2f} M",
        r["backend"],
        str(r["n_threads"]),
        r["test"],
        f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}",
    )


def _details(r: Result) -> tuple[str, ...]:
    return (
        r["model_type"],
        str(r["n_threads"]),
        r["test"],
        f"{r['median_ts']:.2f}",
        _seconds(r.get("ttft_seconds")),
        _seconds(r.get("ttft_cold_seconds")),
        "" if r.get("bytes_per_token") is None else f"{r['bytes_per_token'] / 1e6:.1f} MB",
        _share(r),
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s"


def _share(result: Result) -> str:
    if result.get("bandwidth_share") is None:
        return ""
    return f"{result['bandwidth_share']:.0%} of {result['read_bandwidth'] / 1e9:.1f} GB/s"


def _notes(results: Sequence[Result]) -> list[str]:
    """A line for each load."""
    notes = []
    for r in results:
        compiled = f", compiled kernels for {r['compile_seconds']:.2f} s" if r["compile_seconds"] else ""
        threads = count(r["n_threads"], "thread")
        loaded = f"loaded in {r['load_seconds']:.2f} s{compiled}"
        added = f" with {r['adapters']}" if r.get("adapters") else ""
        notes.append(f"{r['model_type']}{added}, {threads}, {r['type_k']} cache: {loaded}")
    return list(dict.fromkeys(map(one_line, notes)))


def as_json_array(results: Sequence[Result]) -> str:
    return as_json(results, indent=1) + "\n"


def as_json_lines(results: Sequence[Result]) -> str:
    return "".join(as_json(result) + "\n" for result in results)


def as_csv(results: Sequence[Result]) -> str:
    """One column a key; keys that a test does not have are empty, and the samples are left out."""
    names = dict.fromkeys(name for r in results for name in r if not name.startswith("samples_"))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for r in results:
        writer.writerow({k: one_line(v) if isinstance(v, str) else v for k, v in r.items()})
    return text.getvalue()


WRITERS = {"md": as_markdown, "json": as_json_array, "jsonl": as_json_lines, "csv": as_csv}
