"""`llm list`: the models on this machine, or all short names."""

from __future__ import annotations

import json
import time
from typing import Annotated

from ...quant.units import human_bytes
from ...runtime.hub.catalogue import ENTRIES
from ...runtime.hub.installed import installed
from ..console import terminal
from ..console.options import TextOrJson, flag


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
        terminal.note("no models yet; llm list --all shows the names, llm pull fetches one")


def _time(seconds: float, form: str) -> str:
    return time.strftime(form, time.gmtime(seconds) if form.endswith("Z") else time.localtime(seconds))


def _catalogue(output: TextOrJson) -> None:
    if output is TextOrJson.json:
        rows = [
            {
                "name": entry.name,
                "size": entry.n_bytes,
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
            ("NAME", "SIZE", "LICENCE", "HUB"),
            [(e.name, human_bytes(e.n_bytes), e.licence, f"{e.repo}/{e.file}") for e in ENTRIES],
            right=(1,),
        )
    )
