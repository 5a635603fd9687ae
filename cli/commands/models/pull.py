"""`llm pull`: fetch a model, or what is missing of it."""

from __future__ import annotations

from ....runtime.hub.resolve import download
from ...console import terminal
from ...console.progress import Progress
from ...console.safe_text import one_line
from ...settings.model import ModelArgument, ModelBeside, one_model


def pull(model: ModelArgument = None, named: ModelBeside = None) -> None:
    """Download a model.

    The path of its file or folder goes to stdout.
    """
    path = download(one_model(model, named), Progress)
    terminal.write(one_line(str(path)) + "\n")
