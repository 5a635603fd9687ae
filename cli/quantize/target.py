"""Where `llm quantize` writes to: the name of the file, and what may not be replaced."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...runtime.hub import files
from ...runtime.hub.names import HubName, parse_name

if TYPE_CHECKING:
    from ...quant.recipes.recipes import Recipe


def model_name(source: str, path: Path) -> str:
    """What to call a model, without the format it has: a repository's, folder's or file's name."""
    parsed = parse_name(source)
    if isinstance(parsed, HubName):
        return parsed.repo.rpartition("/")[2]
    if path.is_dir():
        return path.resolve().name
    stem, quant = files.stem(path.name), files.quant_of(path.name)
    cut = stem.upper().rfind(quant) if quant else -1
    return (stem[:cut].rstrip("-._") if cut > 0 else stem) or stem


def target_file(target: Path, name: str, recipe: Recipe) -> Path:
    """The file to write: `target`, or one in it if it is a folder. Raises BadParameter."""
    if str(target) == "-":
        raise typer.BadParameter("a model goes into a file or a folder, not to stdout")
    if target.is_dir():
        return target / f"{name}-{recipe.name.upper()}.gguf"
    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent} to write {target.name} to")
    return target


def check_target(target: Path, source: Path, weights: Sequence[Path], force: bool) -> None:
    """A usage error for a target that is there and not to be replaced, or would change the source.

    `weights` are the files that the model is read from; all files of a folder but GGUF files belong to it.
    """
    is_gguf = target.suffix.lower() == ".gguf"
    if source.is_dir() and not is_gguf and source.resolve() in target.resolve().parents:
        raise typer.BadParameter(
            f"{target} is in the source's folder, where only a .gguf file may be written"
        )
    if not target.exists():
        return
    kept = [*weights, *(_files(source) if source.is_dir() and not is_gguf else ())]
    if any(os.path.samefile(target, file) for file in kept):
        raise typer.BadParameter(f"{target} is a file of the source, which is never changed")
    if not force:
        raise typer.BadParameter(f"{target} is there already; --force replaces it")
    if not target.is_file():
        raise typer.BadParameter(f"{target} is no file to replace")


def _files(folder: Path) -> list[Path]:
    """All files in a folder and below it."""
    return [path for path in folder.rglob("*") if path.is_file()]
