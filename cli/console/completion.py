"""Completion of model names in a shell (`llm --install-completion`)."""

from __future__ import annotations

from pathlib import Path

from ...runtime.hub.catalogue import ENTRIES
from .safe_text import one_line

PATH_STARTS = (".", "/", "~")


def model_names(incomplete: str) -> list[str]:
    """The names of models that begin with `incomplete`: of the catalogue, and of what is on disk; for a path,
    the GGUF files and folders that it may become.

    Names that cannot be shown as they are, see `one_line`, are left out: a shell writes them to its terminal.
    """
    return [name for name in _names(incomplete) if one_line(name) == name]


def _names(incomplete: str) -> list[str]:
    if incomplete.startswith(PATH_STARTS):
        return _paths(incomplete)
    from ...runtime.hub.installed import installed

    names = {entry.name for entry in ENTRIES} | {model.name for model in installed()}
    return sorted(name for name in names if name.startswith(incomplete))


def _paths(incomplete: str) -> list[str]:
    folder, _, begun = incomplete.rpartition("/")
    if not folder and not incomplete.startswith("/"):
        return []  # "." and "~" are no folder yet
    try:
        found = sorted(Path(folder or "/").expanduser().iterdir())
    except OSError:
        return []
    return [
        f"{folder}/{path.name}{'/' if path.is_dir() else ''}"
        for path in found
        if path.name.startswith(begun) and (path.is_dir() or path.suffix == ".gguf")
    ]
