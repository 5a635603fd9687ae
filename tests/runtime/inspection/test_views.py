"""What is made of inspections and answers: branches, head patterns, sampling, merges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kukri
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.sampler import Sampler
from kukri.runtime.inspection.attention import AttentionWeights
from kukri.runtime.inspection.heads import head_summaries, strongest_links
from kukri.runtime.inspection.sampling_stages import sampling_stages

PROMPT = "the inn and the tin"


@pytest.fixture(scope="module")
def model(tiny: Path):
    with kukri.load(tiny, device="reference") as model:
        yield model


def test_an_answer_and_its_branches(model):
    greedy = model.observe(PROMPT, temperature=0, max_tokens=6, top=4)
    assert list(greedy.ids) == list(model.generate(model.encode(PROMPT), temperature=0, max_tokens=6))
    assert greedy.top.next_rank.tolist() == [0] * 6 + [-1]
    np.testing.assert_array_equal(greedy.top.ids[:6, 0], greedy.ids)
    logits = model.logits([*greedy.prompt, *greedy.ids])[len(greedy.prompt) - 1 :].astype(np.float64)
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    np.testing.assert_allclose(greedy.top.probabilities, -np.sort(-p, axis=-1)[:, :4], rtol=1e-4)
    other = int(greedy.top.ids[2, 1])
    branch = greedy.branch(2, other, max_tokens=3)
    assert branch.ids[:3] == (*greedy.ids[:2], other)
    assert (len(branch.ids), branch.n_begun, branch.finish_reason) == (6, 3, "length")
    begun = [*greedy.prompt, *branch.ids[:3]]
    assert list(branch.ids[3:]) == list(model.generate(begun, temperature=0, max_tokens=3))
    with pytest.raises(ValueError, match="6 tokens, numbered from 0, and no 7"):
        greedy.branch(7, other)
    data = json.loads(json.dumps(branch.data(model.tokenizer), allow_nan=False))
    assert [token["given"] for token in data["tokens"]] == [True] * 3 + [False] * 3
    assert data["tokens"][2]["rank"] == 1
    assert data["tokens"][4]["text"] == model.tokenizer.token_text(branch.ids[4])


def weights(rows, layer=0, heads=1):
    return AttentionWeights(
        layer, np.array(rows, np.float32)[None].repeat(heads, 0), (0,), tuple(range(len(rows))), heads, 1, 0
    )


def test_head_patterns():
    eye = np.eye(6)
    ids = [3, 4, 5, 3, 4, 9]
    previous = weights(np.vstack([eye[0], eye[:5]]))
    (found,) = head_summaries(previous, ids)
    assert (found.kind, found.previous, found.own) == ("previous", 1.0, 0.0)
    assert found.entropy == 0
    (found,) = head_summaries(weights(np.tile(eye[0], (6, 1))), ids)
    assert found.kind == "first"
    (found,) = head_summaries(weights(eye), ids)
    assert found.kind == "own"
    # rows 3 and 4 repeat tokens 3 and 4, behind whose first occurrences positions 1 and 2 are
    (found,) = head_summaries(weights(eye[[0, 0, 0, 1, 2, 0]]), ids)
    assert found.induction == 1
    assert found.kind == "induction"
    (found,) = head_summaries(weights(eye[:3, :3]), [1, 2, 3])
    assert np.isnan(found.induction)
    assert head_summaries(weights(eye[:1, :1]), [1]) == []
    links = strongest_links({0: previous, 1: weights(np.tile(eye[0], (6, 1)), 1)}, 3)
    assert [(link.layer, link.weight, link.row - link.position) for link in links] == [(0, 1.0, 1)] * 3


def test_sampling_stages(model):
    logits = model.logits(model.encode(PROMPT))[-1]
    params = SamplingParams(temperature=0.5, top_k=7, top_p=0.8, min_p=0.02, seed=1)
    stages = {stage.name: stage for stage in sampling_stages(logits, params)}
    p = np.exp(logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64)))
    order = np.argsort(-p, kind="stable")
    np.testing.assert_array_equal(stages["model"].ids, order)
    np.testing.assert_allclose(stages["model"].probabilities, p[order], rtol=1e-4, atol=1e-12)
    assert len(stages["top-k 7"].ids) == 7
    assert len(stages["top-p 0.8"].ids) == 1 + int(np.searchsorted(np.cumsum(p[order]), 0.8))
    assert len(stages["min-p 0.02"].ids) == int((p >= 0.02 * p.max()).sum())
    warm = p**2 / (p**2).sum()
    np.testing.assert_allclose(stages["temperature 0.5"].probabilities, warm[order], rtol=1e-4, atol=1e-12)
    kept = dict(zip(stages["together"].ids.tolist(), stages["together"].probabilities, strict=True))
    sampler = Sampler(params)
    drawn = [sampler.sample(logits) for _ in range(3000)]
    assert set(drawn) <= set(kept)
    for token, probability in kept.items():
        assert abs(drawn.count(token) / 3000 - probability) < 0.05
    (only,) = [s for s in sampling_stages(logits, SamplingParams(temperature=0)) if s.name == "together"]
    assert only.ids.tolist() == [int(logits.argmax())]


def test_merge_steps(model):
    tokenizer = model.tokenizer
    steps = tokenizer.merge_steps("the inn")
    assert tokenizer.merge_steps("the in" + "n" * 9, 5) == steps[:1]
    assert steps[0] == [["t", "h", "e"], ["th", "e"], ["the"]]
    assert steps[1][0] == [" ", "i", "n", "n"]
    for text in ("the tin", "über €", "  the\n\nthe"):
        ids = tokenizer.encode(text)
        last = [piece for word in tokenizer.merge_steps(text) for piece in word[-1]]
        assert last == [tokenizer.token_text(token) for token in ids]
        for word in tokenizer.merge_steps(text):
            assert [len(step) for step in word] == list(range(len(word[0]), len(word[-1]) - 1, -1))


@pytest.mark.slow
def test_a_quantised_model_on_the_cpu(real_model):
    """8-bit activations and an 8-bit cache show what float32 does: distributions by their divergence, streams
    and attention by their correlation."""
    shown = {"attention": True, "residual": True, "logits": True, "lens": (15,)}
    path, found = real_model("smollm2"), []
    for device in ("reference", "cpu"):
        with kukri.load(path, device=device, context=64) as model:
            found.append(model.inspect("The capital of France is Paris, and that of Italy is", **shown))
    expected, got = found
    p, q = (
        rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)
        for rows in (expected.logits.astype(np.float64), got.logits.astype(np.float64))
    )
    assert (np.exp(p) * (p - q)).sum(-1).mean() < 0.01
    for a, b in zip(expected.residual, got.residual, strict=True):
        assert np.corrcoef(a[1:].ravel(), b[1:].ravel())[0, 1] > 0.99
    for layer, each in expected.attention.items():
        seen = got.attention[layer].weights
        np.testing.assert_allclose(seen.sum(-1), 1, rtol=1e-5)
        assert np.corrcoef(each.weights.ravel(), seen.ravel())[0, 1] > 0.99
    assert (expected.lens.top.ids[0, :, 0] == got.lens.top.ids[0, :, 0]).mean() > 0.7
    assert got.top.ids[-1, 0] == expected.top.ids[-1, 0]
