"""`llm use`: the model of commands that name none."""

from __future__ import annotations

from typing import Annotated

import typer

from ....runtime.hub.catalogue import DEFAULT, Entry
from ....runtime.hub.names import parse_name
from ....runtime.hub.resolve import find_local
from ...console import terminal
from ...console.completion import model_names
from ...console.safe_text import one_line
from ...settings.file import change, read_settings
from ...settings.model import VARIABLE, from_environment, lasting_name, size

KEY = "model"  # of the settings file


def use(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="File, folder, short name, or org/repo[:quant] on the Hub; none: show the present one.",
            show_default=False,
            autocompletion=model_names,
        ),
    ] = None,
) -> None:
    """Choose the model of commands that name none.

    It goes into the settings file (llm config). Nothing is downloaded.
    """
    if model is None:
        terminal.write(one_line(str(from_environment() or read_settings().get(KEY, DEFAULT))) + "\n")
        return
    parsed = parse_name(model)
    name = lasting_name(model)
    path = change("", KEY, name)
    terminal.note(f"{name} is the default model from now on ({path})")
    if find_local(name) is None:
        about = f" ({size(parsed)})" if isinstance(parsed, Entry) else ""
        terminal.remark(f"it is fetched at its first use{about}; llm pull {name} does that now")
    for command, table in read_settings().items():
        if isinstance(table, dict) and table.get(KEY, name) != name:
            terminal.note(f"llm {command} takes {table[KEY]} all the same: [{command}] of that file says so")
    if (first := from_environment()) and first != name:
        terminal.note(f"{VARIABLE}={first} in the environment goes before it")
