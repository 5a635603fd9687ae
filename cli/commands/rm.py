"""`llm rm`: delete a downloaded model."""

from __future__ import annotations

from ...runtime.hub import resolve as store
from ..console import terminal
from ..console.options import ModelArgument


def rm(model: ModelArgument) -> None:
    """Delete a downloaded model.

    What interrupted downloads of it left goes too. org/repo deletes all that was fetched from there.
    """
    freed = store.remove(model)
    terminal.note(f"removed {model}, {terminal.human_bytes(freed)} freed")
