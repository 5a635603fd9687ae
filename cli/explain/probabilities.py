"""The view "probabilities": what the model expected in the place of each token of its answer."""

from __future__ import annotations

from typing import Any

from .page import BOLD, DIM, RAMP, Page, level, percent
from .subject import Subject


def facts(subject: Subject) -> dict[str, Any]:
    return subject.answer.data(subject.tokenizer)


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading("Probabilities")
    tokens = found["tokens"]
    if tokens:
        page.flow([(page.visible(token["text"]), level(token["probability"])) for token in tokens])
        names = ("under 5%", "5%", "20%", "50%", "90% and more")
        page.flow([(f" {name} ", code) for name, code in zip(names, RAMP, strict=True)], gap=" ")
        page.line()
    _table(page, tokens)
    page.line()
    rest = ", ".join(
        f"{page.visible(t['text'])} {percent(t['probability'])}" for t in found["behind"]["top"][:4]
    )
    page.text(f"Behind it ({found['behind']['entropy']:.2f} bits): {rest}")
    ended = {
        "stop": "The answer ended with an end token.",
        "length": "The answer was cut at -n tokens.",
        "context": "The answer filled the context.",
    }
    if sentence := ended.get(found["finish_reason"] or ""):
        page.text(sentence)


def _table(page: Page, tokens: list[dict[str, Any]]) -> None:
    """A line a token: its probability, the entropy in its place, and what else could have stood there."""
    size = max((len(page.visible(t["text"], 14)) for t in tokens), default=5)
    bar = 6 if page.width < 60 else 10 if page.width < 100 else 20
    page.line((f"{'#':>3} {'token':<{size}}  {'prob':>4} {'':{bar}} bits  instead", DIM))
    for token in tokens:
        others = [t for t in token["top"] if t["id"] != token["id"]]
        pieces: list[tuple[str, str]] = [
            (f"{token['position']:>3} ", DIM),
            (page.visible(token["text"], 14).ljust(size), BOLD),
            (f"  {percent(token['probability']):>4} ", ""),
            (page.bar(token["probability"], bar), ""),
            (f" {token['entropy']:4.1f}  ", ""),
        ]
        left = page.width - sum(len(text) for text, _ in pieces)
        for other in others:
            text = f"{page.visible(other['text'], 14)} {percent(other['probability'])}  "
            if len(text) - 2 > left:
                break
            pieces.append((text, DIM))
            left -= len(text)
        page.line(*pieces)
