"""`llm pull`: fetch a model, or what is missing of it."""

from __future__ import annotations

from ...runtime.hub.resolve import download
from ..console import terminal
from ..console.options import ModelArgument
from ..console.progress import Progress
from ..console.safe_text import one_line


def pull(model: ModelArgument) -> None:
    """Download a model.

    The path of its file or folder goes to stdout.
    """
    path = download(model, Progress)
    terminal.write(one_line(str(path)) + "\n")
