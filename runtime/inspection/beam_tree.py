"""A beam search as a tree: what it looked at in each step, what it kept, and the answers that it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.engine import Engine
from ..engine.sampling.beam_search import Beam, BeamParams, BeamSearch
from ..engine.sampling.params import SamplingParams


@dataclass(frozen=True)
class BeamNode:
    """A token that continued a beam: the node that it continues (-1: the prompt), how many tokens the beam
    has with it, its own log probability and that of the whole beam. `kept` beams go on in the next step."""

    parent: int
    depth: int
    id: int
    logprob: float
    total: float
    kept: bool
    ended: bool


@dataclass(frozen=True)
class BeamTree:
    """All nodes in the order in which the search came to them, and its answers, the best first."""

    nodes: tuple[BeamNode, ...]
    answers: tuple[Beam, ...]


def beam_tree(
    engine: Engine, prompt: Sequence[int], beams: BeamParams, params: SamplingParams, max_tokens: int
) -> BeamTree:
    """Run a beam search for up to `max_tokens` tokens, each step with the logits of all of its beams.

    Of each beam the `k` likeliest continuations are nodes. It computes beams anew in each step, and is
    meant for short answers. Clears the cache. Raises like `Engine.read`.
    """
    search = BeamSearch(list(prompt), beams, params, engine.end_ids, max_tokens)
    state, nodes = search.start(), list[BeamNode]()
    places = [-1]  # the node of each beam that runs
    while not state.done:
        logits = _last_logits(engine, [beam.ids for beam in state.running])
        found = [search.candidates(row, beam.ids) for row, beam in zip(logits, state.running, strict=True)]
        before, state = state, search.following(state, found)
        kept = {(beam.parent, beam.ids[-1]): None for beam in state.running}
        at: dict[tuple[int, int], int] = {}
        for parent, (beam, each) in enumerate(zip(before.running, found, strict=True)):
            for rank, (token, logprob) in enumerate(zip(each.ids, each.logprobs, strict=True)):
                key = parent, int(token)
                if rank >= beams.k and key not in kept:
                    continue
                at[key] = len(nodes)
                token_, ended = int(token), int(token) in engine.end_ids
                own, total = float(logprob), beam.logprob + float(logprob)
                nodes.append(
                    BeamNode(
                        places[parent], state.n_new, int(token), float(logprob), total, key in kept, ended
                    )
                )
        places = [at[key] for key in kept]
    return BeamTree(tuple(nodes), tuple(search.best(state)))


def _last_logits(engine: Engine, texts: list[list[int]]) -> list[np.ndarray]:
    """The logits behind the last token of each text."""
    rows: dict[int, np.ndarray] = {}

    def take(index: int, _: int, logits: np.ndarray) -> None:
        rows[index] = logits[-1].copy()

    engine.read(texts, "last", take)
    return [rows[i] for i in range(len(texts))]
