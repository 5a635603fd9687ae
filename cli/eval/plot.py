"""`llm eval --plot`: quality against size, as a picture."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ...quant.extras import how_to_install
from ...quant.safe_files import NewFile
from ..console.safe_text import one_line
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

    The file appears at once and complete. Raises OSError if it cannot be written.
    """
    with _outside_of_current_folder():
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
        label = one_line(result["name"])
        axes.annotate(label, (size, value), (5, 5), textcoords="offset points", fontsize=8, parse_math=False)
    if report.baseline and values and min(values) > 0 and max(values) > 10 * min(values):
        axes.set_yscale("log")
    axes.set_xlabel("size, MB")
    axes.set_ylabel(f"{what} (± standard error)")
    title = f"against {report.baseline['name']}" if report.baseline else "lower is better"
    axes.set_title(one_line(title), fontsize=10, parse_math=False)
    axes.margins(0.15)
    axes.grid(alpha=0.3)
    with NewFile(path) as file:
        figure.savefig(file, format=path.suffix.lower()[1:], metadata=_undated(path))


@contextmanager
def _outside_of_current_folder() -> Iterator[None]:
    """Within the block the current folder is the root of the file system.

    When it is imported, matplotlib reads the settings in `matplotlibrc` of the current folder, among them
    Python expressions and names of modules. Whoever could put that file there must not have it executed.
    """
    try:
        before = os.getcwd()
    except FileNotFoundError:  # it has been deleted, and there is nothing to read
        yield
        return
    os.chdir(os.path.abspath(os.sep))
    try:
        yield
    finally:
        os.chdir(before)


def _undated(path: Path) -> dict[str, None] | None:
    """Settings with which the same results give the same file, byte for byte."""
    return {"Date": None} if path.suffix.lower() == ".svg" else None
