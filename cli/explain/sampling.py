"""The view "sampling": what temperature, top-k, top-p and min-p leave of one distribution, side by side."""

from __future__ import annotations

from typing import Any

from .page import DIM, Page, level, percent
from .subject import Subject


def facts(subject: Subject) -> dict[str, Any]:
    from ...runtime.inspection.sampling_stages import sampling_stages

    at, logits = subject.distribution
    params = subject.model.with_ids(subject.params)
    history = [*subject.ids, *subject.answer.ids[:at]]
    stages = sampling_stages(logits, params, history)
    tokens = stages[0].ids[: subject.choices.top].tolist()
    return {
        "position": at,
        "tokens": [subject.token_of(id_) for id_ in tokens],
        "stages": [
            {
                "name": stage.name,
                "kept": len(stage.ids),
                "probabilities": [_of(stage, id_) for id_ in tokens],
            }
            for stage in stages
        ],
        "chosen": subject.token_of(subject.answer.ids[at]) if at < len(subject.answer.ids) else None,
    }


def _of(stage: Any, id_: int) -> float | None:
    """The probability that a stage gives a token; None if it drops it."""
    place = (stage.ids == id_).nonzero()[0]
    return float(f"{stage.probabilities[place[0]]:.4g}") if len(place) else None


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading(f"Sampling token {found['position']} of the answer")
    page.text(
        "The model's distribution, what each step would leave of it by itself, and what all of them "
        "together leave; - is a token that cannot be drawn."
    )
    names = [page.visible(token["text"], 14) for token in found["tokens"]]
    stages, size = found["stages"], max(map(len, names), default=5)
    width = max(len(stage["name"]) for stage in stages) + 2
    a_row = max(1, (page.width - size) // width)
    for start in range(0, len(stages), a_row):
        page.line()
        some = stages[start : start + a_row]
        page.line((" " * size, ""), *((f"{stage['name']:>{width}}", DIM) for stage in some))
        for i, name in enumerate(names):
            page.line(
                name.ljust(size),
                *(
                    (f"{percent(p):>{width - 2}}".rjust(width), _colour(p))
                    for stage in some
                    for p in (stage["probabilities"][i],)
                ),
            )
        page.line(("kept".ljust(size), DIM), *((f"{stage['kept']:>{width}}", DIM) for stage in some))
    if found["chosen"]:
        page.line()
        page.text(f"Drawn here: {page.visible(found['chosen']['text'])}")


def _colour(probability: float | None) -> str:
    return DIM if probability is None else level(probability) if probability >= 0.05 else ""
