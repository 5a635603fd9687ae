"""What reads a file or folder of each kind, for the corpus of bad ones in tests/data/bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kukri.runtime.model.source import open_source
from kukri.tokenizer import load_tokenizer, render_chat

MESSAGES = [{"role": "user", "content": "hi"}]


def _render(path: Path) -> None:
    render_chat(path.read_text(encoding="utf-8"), MESSAGES)


# by the first part of a path in the corpus
READERS: dict[str, Callable[[Path], object]] = {
    "gguf": open_source,
    "folders": open_source,
    "tokenizers": load_tokenizer,
    "templates": _render,
}
