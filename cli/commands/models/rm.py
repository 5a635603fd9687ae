"""`llm rm`: delete a downloaded model."""

from __future__ import annotations

from ....quant.units import human_bytes
from ....runtime.hub.installed import remove
from ...console import terminal
from ...settings.model import ModelArgument, ModelBeside, one_model


def rm(model: ModelArgument = None, named: ModelBeside = None) -> None:
    """Delete a downloaded model.

    What interrupted downloads of it left goes too. org/repo deletes all that was fetched from there.
    """
    name = one_model(model, named)
    freed = remove(name)
    terminal.note(f"removed {name}, {human_bytes(freed)} freed")
