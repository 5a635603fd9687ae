"""`llm eval --plot`: quality against size, as a picture."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import typer

from ...quant.extras import how_to_install
from ..console import terminal
from .report import Report

KINDS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """A usage error for a file that cannot become a picture; RuntimeError where matplotlib is missing."""
    if path.suffix.lower() not in KINDS:
        raise typer.BadParameter(f"{path.name} must end in .png or .svg", param_hint="--plot")
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeError(f"--plot draws with matplotlib, which is an extra: {how_to_install('plot')}")


def plot(report: Report, path: Path) -> None:
    """Draw every model as a point with its standard error: KLD where there was a baseline, else perplexity.

    The file appears at once and complete.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    results = [r for r in report.models if r["size"]]
    key, what = ("kld", "mean KL divergence, nats") if report.baseline else ("perplexity", "perplexity")
    figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    sizes, values = [r["size"] / 1e6 for r in results], [r[key] for r in results]
    errors = [r[f"{key}_stderr"] or 0.0 for r in results]
    axes.errorbar(sizes, values, yerr=errors, fmt="o", capsize=3)
    for result, size, value in zip(results, sizes, values, strict=True):
        label = terminal.one_line(result["name"])
        axes.annotate(label, (size, value), (5, 5), textcoords="offset points", fontsize=8, parse_math=False)
    if report.baseline and values and min(values) > 0 and max(values) > 10 * min(values):
        axes.set_yscale("log")
    axes.set_xlabel("size, MB")
    axes.set_ylabel(f"{what} (± standard error)")
    title = f"against {report.baseline['name']}" if report.baseline else "lower is better"
    axes.set_title(terminal.one_line(title), fontsize=10, parse_math=False)
    axes.margins(0.15)
    axes.grid(alpha=0.3)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        figure.savefig(unfinished, format=path.suffix.lower()[1:], metadata=_undated(path))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _undated(path: Path) -> dict[str, None] | None:
    """Settings with which the same results give the same file, byte for byte."""
    return {"Date": None} if path.suffix.lower() == ".svg" else None
