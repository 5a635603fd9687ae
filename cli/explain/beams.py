"""The view "beams": the tree that a beam search follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .page import BOLD, DIM, Page, level, percent
from .subject import Subject

MOST_TOKENS = 12


def facts(subject: Subject) -> dict[str, Any]:
    from ...runtime.engine.sampling.beam_search import BeamParams
    from ...runtime.inspection.beams import beams_data, search_beams

    beams = BeamParams(subject.choices.beams)
    n = min(MOST_TOKENS, subject.choices.max_tokens)
    plain = replace(subject.params, max_tokens=n, dry_multiplier=0.0, mirostat=0, logprobs=None)
    tree = search_beams(subject.model.engine, subject.ids, beams, subject.model.with_ids(plain))
    return beams_data(tree, beams, subject.spelled)


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading(f"Beam search with {found['k']} beams")
    page.text("Each token with its own probability and the log probability of the beam up to it.", DIM)
    page.line()
    children: dict[int, list[int]] = {}
    for i, node in enumerate(found["nodes"]):
        children.setdefault(node["parent"], []).append(i)
    ends = {end["node"]: rank for rank, end in enumerate(found["ends"], 1)}
    _branch(page, found["nodes"], children, ends, -1, "")
    page.line()
    for rank, end in enumerate(found["ends"], 1):
        text = "".join(token["text"] for token in end["tokens"])
        page.line(
            (f"{rank}. {end['score']:.3f} ", BOLD), page.visible(text), (f"  ({end['finish_reason']})", DIM)
        )


def _branch(
    page: Page,
    nodes: list[dict[str, Any]],
    children: dict[int, list[int]],
    ends: dict[int, int],
    at: int,
    indent: str,
) -> None:
    """The nodes below one. A token that is the only one goes on in the line of the one before."""
    below = children.get(at, [])
    tee, corner, bar = ("|- ", "`- ", "|  ") if page.plain else ("├─ ", "└─ ", "│  ")
    for k, first in enumerate(below):
        chain = [first]
        while len(more := children.get(chain[-1], [])) == 1 and chain[-1] not in ends:
            chain.append(more[0])
        pieces: list[tuple[str, str]] = [(indent + (corner if k == len(below) - 1 else tee), DIM)]
        for i in chain:
            node = nodes[i]
            pieces += [
                (page.visible(node["text"], 14), level(node["probability"])),
                (f" {percent(node['probability'])} ", DIM),
            ]
        pieces.append((f" {nodes[chain[-1]]['logprob']:.2f}", ""))
        if chain[-1] in ends:
            pieces.append((f" = {ends[chain[-1]]}.", BOLD))
        page.line(*pieces)
        deeper = indent + ("   " if k == len(below) - 1 else bar)
        _branch(page, nodes, children, ends, chain[-1], deeper)
