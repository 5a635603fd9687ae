"""`llm list`: the models on this machine, or all short names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from ....quant.units import human_bytes
from ....runtime.hub.catalogue import ENTRIES
from ....runtime.hub.installed import installed
from ...console import terminal
from ...console.options import TextOrJson, flag
from ...console.safe_text import as_json
from ...console.table import columns_that_fit, table
from ...settings.model import advice, size, suggested
from .show import parameters


def list_models(
    every: Annotated[bool, flag("-a", "--all", help="List all short names, on disk or not.")] = False,
    output: Annotated[TextOrJson, flag("-o", "--output", help="What stdout gets.")] = TextOrJson.text,
) -> None:
    """List the models on this machine."""
    if every:
        _catalogue(output)
        return
    models = installed()
    if output is TextOrJson.json:
        rows = [
            {
                "name": model.name,
                "size": model.n_bytes,
                "quant": model.quant,
                "modified": _time(model.modified, "%Y-%m-%dT%H:%M:%SZ"),
                "path": str(model.path),
                "partial": model.partial,
            }
            for model in models
        ]
        terminal.write(as_json(rows, indent=1) + "\n")
    elif models:
        _show(
            ("NAME", "SIZE", "QUANT", "MODIFIED"),
            [
                (
                    model.name,
                    human_bytes(model.n_bytes),
                    "partial" if model.partial else model.quant,
                    _time(model.modified, "%Y-%m-%d %H:%M"),
                )
                for model in models
            ],
            spare=(3, 2),
        )
    else:
        better = suggested()
        what = f"; {advice(better)}" if better else ""
        terminal.note(f"no models yet{what}; llm list --all shows the names, llm pull fetches one")


def _time(seconds: float, form: str) -> str:
    return time.strftime(form, time.gmtime(seconds) if form.endswith("Z") else time.localtime(seconds))


def _catalogue(output: TextOrJson) -> None:
    if output is TextOrJson.json:
        rows = [
            {
                "name": entry.name,
                "size": entry.n_bytes,
                "size_estimate": entry.about_bytes,
                "parameters": round(entry.params * 1e9),
                "active_parameters": round((entry.active or entry.params) * 1e9),
                "chat": entry.chat,
                "sha256": entry.sha256,
                "repo": entry.repo,
                "file": entry.file,
                "licence": entry.licence,
            }
            for entry in ENTRIES
        ]
        terminal.write(as_json(rows, indent=1) + "\n")
        return
    _show(
        ("NAME", "SIZE", "PARAMETERS", "KIND", "LICENCE", "HUB"),
        [
            (e.name, size(e), parameters(e), "chat" if e.chat else "base", e.licence, f"{e.repo}/{e.file}")
            for e in ENTRIES
        ],
        spare=(5, 4, 3, 2),
    )
    if any(entry.n_bytes is None for entry in ENTRIES):
        terminal.remark("~ is an estimate from the number of parameters")


def _show(header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[int]) -> None:
    """Write a table whose second column is numbers. On a terminal too narrow for it the columns `spare` are
    given up, in that order, and a remark names them."""
    shown = columns_that_fit(header, rows, spare, terminal.width())
    cells = [[row[i] for i in shown] for row in (header, *rows)]
    terminal.write(table(cells[0], cells[1:], right=(1,)))
    if gone := ", ".join(name for i, name in enumerate(header) if i not in shown):
        terminal.remark(f"(no room for {gone} in {terminal.width()} columns; -o json has all)")
