"""`llm pull`: fetch a model, or what is missing of it."""

from __future__ import annotations

from ...runtime.hub import resolve as store
from ..console import terminal
from ..console.options import ModelArgument


def pull(model: ModelArgument) -> None:
    """Download a model.

    The path of its file or folder goes to stdout.
    """
    path = store.pull(model)
    terminal.write(f"{path}\n")
