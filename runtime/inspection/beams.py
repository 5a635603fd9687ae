"""A beam search as a tree: what each step continued, what it dropped, and where answers ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.engine import Engine
from ..engine.sampling.beam_search import Beam, BeamParams, BeamState
from ..engine.sampling.params import SamplingParams
from .data import Spelled


@dataclass(frozen=True)
class BeamNode:
    """A token of a beam. `parent` is the place of the node that it continues, -1 for the prompt; `step`
    counts from 1. `logprob` is the sum of the log probabilities from the prompt to here, `own` that of this
    token."""

    parent: int
    step: int
    id: int
    logprob: float
    own: float


@dataclass(frozen=True)
class BeamEnd:
    """An answer. `node` is that of its last token; -1: it is empty. Of an answer with an end token, `logprob`
    has that of the end token as well."""

    node: int
    beam: Beam


@dataclass(frozen=True)
class BeamTree:
    """All beams that a search has followed; `ends` are its answers, the best first."""

    nodes: tuple[BeamNode, ...]
    ends: tuple[BeamEnd, ...]


def search_beams(engine: Engine, ids: Sequence[int], beams: BeamParams, params: SamplingParams) -> BeamTree:
    """Run a beam search among the engine's other requests. Raises like `Engine.submit_beams`."""
    trail: list[BeamState] = []
    answers = engine.submit_beams(ids, beams, params, trail=trail).result()
    return beam_tree(len(ids), trail, answers)


def beam_tree(n_prompt: int, trail: Sequence[BeamState], answers: Sequence[Beam]) -> BeamTree:
    """The tree of the states behind each step of a search with a prompt of `n_prompt` ids."""
    nodes: list[BeamNode] = []
    places: dict[tuple[int, ...], int] = {(): -1}  # of a node, by all tokens from the prompt to it

    def add(tokens: tuple[int, ...], logprob: float) -> int:
        if tokens not in places:
            parent = places[tokens[:-1]]
            before = nodes[parent].logprob if parent >= 0 else 0.0
            places[tokens] = len(nodes)
            nodes.append(BeamNode(parent, len(tokens), tokens[-1], logprob, logprob - before))
        return places[tokens]

    for state in trail:
        for beam in state.running:
            add(tuple(beam.ids[n_prompt:]), beam.logprob)
    ends = [BeamEnd(add(tuple(beam.ids), beam.logprob), beam) for beam in answers]
    return BeamTree(tuple(nodes), tuple(ends))


def beams_data(tree: BeamTree, beams: BeamParams, shown: Spelled) -> dict[str, Any]:
    """The tree as plain data: `nodes` with `parent`, `step`, the token and its probabilities, and `ends`."""
    return {
        "k": beams.k,
        "length_penalty": beams.length_penalty,
        "nodes": [
            {
                "parent": node.parent,
                "step": node.step,
                **shown.token(node.id),
                "logprob": round(node.logprob, 4),
                "probability": float(f"{math.exp(node.own):.4g}"),
            }
            for node in tree.nodes
        ],
        "ends": [
            {
                "node": end.node,
                "score": round(end.beam.score, 4),
                "logprob": round(end.beam.logprob, 4),
                "finish_reason": end.beam.finish_reason,
                "tokens": [shown.token(id_) for id_ in end.beam.ids],
            }
            for end in tree.ends
        ],
    }
