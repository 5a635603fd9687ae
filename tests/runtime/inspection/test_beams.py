"""The tree of a beam search has what the search followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kukri
from kukri.runtime.engine.sampling.beam_search import BeamParams
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.inspection.beams import beams_data, search_beams
from kukri.runtime.inspection.data import Spelled

from ...tiny_model import write_tiny_model


@pytest.mark.parametrize("silent", [False, True])
def test_the_tree_leads_to_the_answers(tmp_path: Path, silent: bool) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", silent=silent)
    with kukri.load(path, device="reference", parallel=3) as model:
        prompt = model.encode("Hi the")
        params = SamplingParams(max_tokens=4)
        tree = search_beams(model.engine, prompt, BeamParams(3), params)
        answers = model.engine.beams(prompt, 3, params)
        assert [end.beam.ids for end in tree.ends] == [answer.ids for answer in answers]
        scores = [answer.score for answer in answers]
        assert [end.beam.score for end in tree.ends] == pytest.approx(scores, rel=1e-4)
        for end in tree.ends:
            ids, place = [], end.node
            while place >= 0:
                ids.append(tree.nodes[place].id)
                place = tree.nodes[place].parent
            assert ids[::-1] == end.beam.ids
        assert max(node.step for node in tree.nodes) <= 4
        assert all(sum(n.step == step for n in tree.nodes) <= 3 for step in (1, 2, 3))
        told = beams_data(tree, BeamParams(3), Spelled(model.tokenizer))
        assert [len(end["tokens"]) for end in told["ends"]] == [len(answer.ids) for answer in answers]
        assert [node["id"] for node in told["nodes"]] == [node.id for node in tree.nodes]
        first = model.logits(prompt)[-1].astype(float)
        first -= np.log(np.exp(first).sum())
        for node in tree.nodes:
            if node.step == 1:
                assert node.own == pytest.approx(first[node.id], abs=1e-4)
            else:
                assert node.own == pytest.approx(node.logprob - tree.nodes[node.parent].logprob)
