"""`llm pull`: fetch a model, or what is missing of it."""

from __future__ import annotations

from ...runtime.hub.resolve import download
from ..console import terminal
from ..console.options import ModelArgument, ModelBeside, one_model
from ..console.progress import Progress


def pull(model: ModelArgument = None, named: ModelBeside = None) -> None:
    """Download a model.

    The path of its file or folder goes to stdout.
    """
    path = download(one_model(model, named), Progress)
    terminal.write(f"{path}\n")
