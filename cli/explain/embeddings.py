"""The view "embeddings": tokens near to those of the text, and a map of them."""

from __future__ import annotations

from typing import Any

from .page import BOLD, DIM, Page
from .subject import Subject

MOST_TOKENS, NEAR = 6, 5
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def facts(subject: Subject) -> dict[str, Any]:
    """Of the last different tokens of the text, its longer ones first, the nearest others."""
    from ...runtime.inspection.embeddings import embedding_table, embeddings_data

    tokenizer = subject.tokenizer
    ids = list(dict.fromkeys(reversed(tokenizer.encode(subject.text)))) or subject.ids[-1:]
    ids = sorted(ids, key=lambda id_: -len(tokenizer.token_text(id_).strip()))[:MOST_TOKENS]
    table = embedding_table(subject.model.engine.machine.program)
    return embeddings_data(table, ids, NEAR, subject.spelled, tokenizer.vocab_size)


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading("Embeddings: the nearest tokens, by cosine")
    for token in found["near"]:
        page.flow(
            [
                (page.visible(token["text"], 16), BOLD),
                *((f"{page.visible(t['text'], 16)} {t['cosine']:.2f}", "") for t in token["tokens"]),
            ],
            gap="  ",
        )
    _map(page, found)


def _map(page: Page, found: dict[str, Any]) -> None:
    """The plane of the first two principal components, a letter a token."""
    points = found["points"][: len(LETTERS)]
    if len(points) < 3:
        return
    shares = " and ".join(f"{share:.0%}" for share in found["shares"])
    page.heading(f"On the plane on which they differ the most ({shares} of the variance)")
    width, height = min(page.width, 78), 14
    grid = [[" "] * width for _ in range(height)]
    xs, ys = ([point[axis] for point in points] for axis in ("x", "y"))
    for letter, point in zip(LETTERS, points, strict=False):
        x = _place(point["x"], xs, width)
        y = height - 1 - _place(point["y"], ys, height)
        grid[y][x] = letter
    for row in grid:
        page.line("".join(row))
    names = [
        (f"{letter} {page.visible(point['text'], 16)}", BOLD if point["asked"] else DIM)
        for letter, point in zip(LETTERS, points, strict=False)
    ]
    page.flow(names, gap="  ")


def _place(value: float, values: list[float], n: int) -> int:
    low, high = min(values), max(values)
    return round((value - low) / (high - low) * (n - 1)) if high > low else 0
