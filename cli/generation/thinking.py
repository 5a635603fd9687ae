"""The flags of thinking, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console.options import flag

if TYPE_CHECKING:
    from ...runtime.model.model import Model


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

    def asked_of_thinking(self, model: Model) -> dict[str, Any]:
        """The fields of a GenerationRequest. A usage error for what the model cannot do."""
        wanted = self.wants_thinking
        try:
            model.chat_format.check_thinking(wanted, self.thinking_budget)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None
        return {"thinking": wanted, "thinking_budget": self.thinking_budget}
