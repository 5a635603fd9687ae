"""The results of `llm bench` as markdown, JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from ..console.safe_text import as_json, one_line
from ..console.table import fits, markdown_table, records
from ..console.wording import count

Result = dict[str, Any]  # llama-bench's keys and further ones; docs/cli.md lists them


# What llama-bench's table has, and a second one, which it does not have.
_SPEEDS = ("model", "size", "params", "backend", "threads", "test", "t/s")
_DETAILS = (
    "model", "threads", "test", "median t/s", "first token", "cold", "read a token", "of bandwidth",
)  # fmt: skip


def as_markdown(results: Sequence[Result]) -> str:
    """Two tables: llama-bench's, and one of medians, first tokens and bandwidth; then notes."""
    first = markdown_table(_SPEEDS, [_speeds(r) for r in results], left=(0, 3))
    second = markdown_table(_DETAILS, [_details(r) for r in results], left=(0,))
    return f"{first}\n{second}\n" + "".join(f"{note}\n" for note in _notes(results))


def for_terminal(results: Sequence[Result], width: int | None) -> str:
    """Markdown, or one record a test where that would be wider than `width` columns (None: any)."""
    text = as_markdown(results)
    if fits(text, width):
        return text
    once = slice(3, None)  # model, threads and test are in both tables
    rows = [(*_speeds(r), *_details(r)[once]) for r in results]
    text = records((*_SPEEDS, *_DETAILS[once]), rows)
    return f"{text}\n" + "".join(f"{note}\n" for note in _notes(results))


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
        notes.append(f"{r['model_type']}, {threads}, {r['type_k']} cache: {loaded}")
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
