"""The results of `llm eval` as a table, markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...quant.units import human_bytes
from ..console.safe_text import as_json, one_line
from ..console.table import fits, markdown_table, records, table
from ..console.wording import count
from .results import Result


@dataclass(frozen=True)
class Report:
    """All results on one text. `baseline` is None if there was none."""

    text: str
    sha256: str
    context: int
    baseline: Result | None
    models: Sequence[Result]

    @property
    def every(self) -> list[Result]:
        """The baseline first."""
        return [*([self.baseline] if self.baseline else []), *self.models]


# "weights" is the size of the tensors; `list` and `show` tell that of the file.
HEADER = (
    "model", "weights", "bits/weight", "perplexity", "all tokens", "KLD", "KLD 99 %", "RMS Δp", "same top",
)  # fmt: skip


def as_json_object(report: Report) -> str:
    told = {
        "file": report.text,
        "text_sha256": report.sha256,
        "context": report.context,
        "baseline": report.baseline,
        "models": list(report.models),
    }
    return as_json(told, indent=1) + "\n"


def as_markdown(report: Report) -> str:
    header, rows = _cells(report)
    return markdown_table(header, rows) + "\n" + "".join(f"{note}\n" for note in _notes(report))


def as_table(report: Report, width: int | None = None) -> str:
    """A table for people; one record a model where it would be wider than `width`."""
    header, rows = _cells(report)
    text = table(header, rows, right=range(1, len(header)))
    if not fits(text, width):
        text = records(header, rows)
    return text + "\n" + "".join(f"{note}\n" for note in _notes(report))


def _cells(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows; without a baseline the columns of comparisons are left out."""
    n = len(HEADER) if report.baseline else 5
    return list(HEADER[:n]), [_row(result)[:n] for result in report.every]


def _row(r: Result) -> list[str]:
    compared = ["", "", "", ""]
    if r["kld"] is not None:
        compared = [
            _with_error(r["kld"], r["kld_stderr"], 6),
            f"{r['kld_99']:.4f}",
            _with_error(100 * r["rms_dp"], _percent(r["rms_dp_stderr"]), 3) + " %",
            _with_error(100 * r["same_top"], _percent(r["same_top_stderr"]), 2) + " %",
        ]
    return [
        r["name"],
        "" if r["size"] is None else human_bytes(r["size"]),
        "" if r["bits_per_weight"] is None else f"{r['bits_per_weight']:.3f}",
        _with_error(r["perplexity"], r["perplexity_stderr"], 4),
        _with_error(r["perplexity_all"], r["perplexity_all_stderr"], 4),
        *compared,
    ]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _with_error(value: float, error: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" if error is None else f"{value:.{digits}f} ± {error:.{digits}f}"


def _notes(report: Report) -> list[str]:
    """The lines under the table: text, window, device, threads."""
    notes = [f"{report.text}, windows of {count(report.context, 'token')}, SHA-256 {report.sha256[:16]}…"]
    notes += [
        f"{r['name']}, {r['device']}: {count(r['windows'], 'window')}, "
        f"{count(r['scored'], 'token')} of second halves, {r['scored_all']} of all"
        + (f"; {r['seconds']:.1f} s" if r["seconds"] is not None else "")
        for r in report.every
    ]
    if report.baseline:
        notes.append(f"KLD in nats, Δp and same top against {report.baseline['name']}, on second halves")
    return list(dict.fromkeys(map(one_line, notes)))
