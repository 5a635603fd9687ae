"""The views of `llm explain`, in the order in which they are shown."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import typer

from .page import Page
from .subject import Subject

VIEWS = (
    *("tokens", "probabilities", "sampling", "attention", "lens", "embeddings", "beams", "cache", "time"),
)
DEFAULT = ("tokens", "probabilities")


def chosen_views(given: Sequence[str] | None) -> tuple[str, ...]:
    """The views that a user named, with commas between them or one a flag, in their own order; "all" is all
    of them. A usage error for a name that is none."""
    if not given:
        return DEFAULT
    named = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in named:
        if name not in (*VIEWS, "all"):
            raise typer.BadParameter(
                f"there is no view {name}; there are {', '.join(VIEWS)} and all", param_hint="--view"
            )
    return VIEWS if "all" in named else tuple(view for view in VIEWS if view in named)


def facts_of(subject: Subject, views: Sequence[str]) -> dict[str, Any]:
    """What the views show, by their names."""
    return {view: importlib.import_module(f".{view}", __package__).facts(subject) for view in views}


def draw(page: Page, facts: dict[str, Any]) -> None:
    """Draw the views on a page."""
    for view, found in facts.items():
        importlib.import_module(f".{view}", __package__).draw(page, found)
