"""The flags of thinking, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ..console.options import flag


@dataclass(frozen=True)
class ThinkingOptions:
    """One field for each flag."""

    thinking: Annotated[
        bool, flag("--thinking", help="Have the model think first, where its template has a switch.")
    ] = False
    no_thinking: Annotated[bool, flag("--no-thinking", help="Have it answer without thinking.")] = False
    hide_thinking: Annotated[bool, flag("--hide-thinking", help="Do not show what it thinks.")] = False
    thinking_budget: Annotated[
        int | None,
        flag("--thinking-budget", metavar="N", min=0, help="End thinking after so many tokens."),
    ] = None

    @property
    def wants_thinking(self) -> bool | None:
        """Whether the model should think; None leaves that to it. A usage error if the flags contradict."""
        if self.thinking and self.no_thinking:
            raise typer.BadParameter("--thinking and --no-thinking exclude each other")
        return True if self.thinking else False if self.no_thinking else None
