"""`llm rm`: delete a downloaded model."""

from __future__ import annotations

from ...quant.units import human_bytes
from ...runtime.hub.installed import remove
from ..console import terminal
from ..console.options import ModelArgument


def rm(model: ModelArgument) -> None:
    """Delete a downloaded model.

    What interrupted downloads of it left goes too. org/repo deletes all that was fetched from there.
    """
    freed = remove(model)
    terminal.note(f"removed {model}, {human_bytes(freed)} freed")
