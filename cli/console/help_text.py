"""Help texts that fit narrow terminals too."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

WIDEST, NARROW = 80, 60  # columns


def fit_help(group: Any) -> None:
    """Have the help of a group of commands, and of each of them, written for the terminal's width.

    click's own never goes below 50 columns, and leaves the explanation of a flag a third of the line. In a
    terminal of fewer than NARROW columns it gets nearly all of it, below long flags. `group` is a
    click.Group, which may be of the copy of click that typer brings.
    """
    for command in (group, *group.commands.values()):
        context = command.context_class

        class Formatter(context.formatter_class):  # type: ignore[name-defined]
            def __init__(self, **settings: Any) -> None:
                columns = min(shutil.get_terminal_size().columns, WIDEST)
                super().__init__(**settings | {"width": max(columns - 2, 20)})

            def write_dl(self, rows: Sequence[tuple[str, str]], **settings: Any) -> None:
                narrow = {"col_max": 9} if self.width < NARROW else {}
                super().write_dl(rows, **settings | narrow)

        command.context_class = type(context.__name__, (context,), {"formatter_class": Formatter})
