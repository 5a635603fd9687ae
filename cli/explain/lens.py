"""The view "lens": which token each layer would choose, if it were the last (the logit lens)."""

from __future__ import annotations

from typing import Any

from .page import DIM, Page, level, percent
from .subject import Subject


def facts(subject: Subject) -> dict[str, Any]:
    data = subject.seen.data(subject.tokenizer)
    return {"tokens": data["tokens"], **data["lens"]}


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading("Logit lens: the likeliest next token, if each layer were the last")
    tokens, layers, cells = found["tokens"], found["layers"], found["cells"]
    size = 9
    n = max(1, min(len(tokens), (page.width - 6) // (size + 1)))
    shown = range(len(tokens) - n, len(tokens))
    last = layers[-1]
    page.text(
        f"The last {n} of {len(tokens)} positions. Layer {last} is the model's answer; "
        "a * marks where a layer agrees with it.",
        DIM,
    )
    page.line()
    page.line(
        ("   in ", DIM), *((page.visible(tokens[p]["text"], size - 1).ljust(size + 1), DIM) for p in shown)
    )
    for i, layer in enumerate(layers):
        row = []
        for p in shown:
            best: dict[str, Any] = {"text": "", "id": -1, "probability": 0.0}
            best = cells[i][p][0] if cells[i][p] else best
            agrees = cells[-1][p] and best["id"] == cells[-1][p][0]["id"]
            text = page.visible(best["text"], size - 1) + ("*" if agrees else "")
            row += [(text.ljust(size), level(best["probability"])), (" ", "")]
        page.line((f"{layer:>5} ", DIM), *row)
    page.line(
        ("   at ", DIM),
        *(
            (percent(cells[-1][p][0]["probability"] if cells[-1][p] else None).ljust(size + 1), DIM)
            for p in shown
        ),
    )
