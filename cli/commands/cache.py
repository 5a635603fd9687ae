"""`llm cache`: what is kept on disk to be quicker, or to go on with."""

from __future__ import annotations

import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import terminal
from ..console.options import TextOrJson, flag
from ..console.safe_text import as_json, one_line
from ..console.table import table
from ..console.wording import count

if TYPE_CHECKING:
    from ...quant.cache_folder import CacheFolder


ANSWERS = "answers"  # the kind that has no folder of its own, but that of --cache


class Action(StrEnum):
    stats = "stats"
    clear = "clear"


def cache(
    action: Annotated[
        Action,
        typer.Argument(
            metavar="ACTION", help="stats shows what is kept, clear deletes it.", show_default=False
        ),
    ] = Action.stats,
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND",
            help="prompts, weights, conversations or answers; default: all, but clear leaves conversations.",
            show_default=False,
        ),
    ] = None,
    answers: Annotated[
        Path | None, flag("--cache", metavar="DIR", help="The folder of answers, as other commands have it.")
    ] = None,
    output: Annotated[TextOrJson, flag("-o", "--output", help="What stdout gets.")] = TextOrJson.text,
) -> None:
    """Show or delete what is kept on disk.

    `clear` without a KIND deletes what can be made again.
    """
    from ...quant.cache_folder import FOLDERS

    for kind in kinds or ():
        if kind not in (*FOLDERS, ANSWERS):
            raise typer.BadParameter(
                f"there is no {kind} on disk; there are {', '.join((*FOLDERS, ANSWERS))}"
            )
        if kind == ANSWERS and answers is None:
            raise typer.BadParameter("answers are where --cache says: --cache DIR names the folder")
    folders = [FOLDERS[kind] for kind in dict.fromkeys(kinds or FOLDERS) if kind != ANSWERS]
    if kinds and ANSWERS not in kinds:
        answers = None
    if action is Action.stats:
        facts = [_facts(folder) for folder in folders]
        if answers is not None:
            facts.append(_about_answers(answers))
        terminal.write(as_json(facts) + "\n" if output is TextOrJson.json else _table(facts))
        return
    cleared = []
    for folder in folders:
        if kinds or folder.disposable:
            n, n_bytes = folder.clear()
            cleared.append({"kind": folder.name, "files": n, "bytes": n_bytes})
            terminal.note(f"{folder.name}: {count(n, 'file')}, {_size(n_bytes)} deleted")
    if answers is not None:
        n, n_bytes = _clear_answers(answers)
        cleared.append({"kind": ANSWERS, "files": n, "bytes": n_bytes})
        terminal.note(f"{ANSWERS}: {count(n, 'answer')}, {_size(n_bytes)} deleted")
    if output is TextOrJson.json:
        terminal.write(as_json(cleared) + "\n")


def _facts(folder: CacheFolder) -> dict[str, Any]:
    files = folder.files()
    return {
        "kind": folder.name,
        "what": folder.what,
        "files": len(files),
        "bytes": sum(file.n_bytes for file in files),
        "last_used": round(files[0].used / 1e9, 3) if files else None,
        "folder": str(folder.path),
    }


def _about_answers(folder: Path) -> dict[str, Any]:
    """What there is of answers in the folder of `--cache`; `files` counts answers."""
    from ...runtime.response_cache.store import Contents, Store

    contents = Contents(0, 0, None)
    if Store.is_in(folder):
        with closing(Store(folder)) as store:
            contents = store.contents()
    return {
        "kind": ANSWERS,
        "what": "answers of models (--cache)",
        "files": contents.n,
        "bytes": contents.n_bytes,
        "last_used": round(contents.used / 1e9, 3) if contents.used else None,
        "folder": str(folder),
    }


def _clear_answers(folder: Path) -> tuple[int, int]:
    """Delete the answers in the folder of `--cache`; how many, and their bytes."""
    from ...runtime.response_cache.store import Store

    if not Store.is_in(folder):
        return 0, 0
    with closing(Store(folder)) as store:
        return store.clear()


def _table(facts: list[dict[str, Any]]) -> str:
    rows = [
        [
            each["kind"],
            str(each["files"]),
            _size(each["bytes"]),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each["last_used"])) if each["files"] else "",
            each["what"],
            one_line(each["folder"]),
        ]
        for each in facts
    ]
    return table(["kind", "files", "size", "last used", "what", "folder"], rows, right=(1, 2))


def _size(n_bytes: int) -> str:
    from ...quant.units import human_bytes

    return human_bytes(n_bytes)
