"""`llm list`: the models on this machine, or all short names."""

from __future__ import annotations

import json
import time
from typing import Annotated

from ...quant.units import human_bytes
from ...runtime.hub.catalogue import ENTRIES
from ...runtime.hub.installed import installed
from ..console import terminal
from ..console.default_model import advice, size, suggested
from ..console.options import TextOrJson, flag
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
        terminal.write(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
    elif models:
        terminal.write(
            terminal.table(
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
                right=(1,),
            )
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
        terminal.write(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
        return
    terminal.write(
        terminal.table(
            ("NAME", "SIZE", "PARAMETERS", "KIND", "LICENCE", "HUB"),
            [
                (
                    e.name,
                    size(e),
                    parameters(e),
                    "chat" if e.chat else "base",
                    e.licence,
                    f"{e.repo}/{e.file}",
                )
                for e in ENTRIES
            ],
            right=(1,),
        )
    )
    if any(entry.n_bytes is None for entry in ENTRIES):
        terminal.remark("~ is an estimate from the number of parameters")
