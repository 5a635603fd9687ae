"""Greedy answers with and without speculation are the same ids, on kernels as they are used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import kukri
from kukri.runtime.model.model import Model

from ....tiny_model import write_tiny_model

WORDS = ("file", "name", "self", "return", "value", "index", "def", "for", "in", "range", "print", "the")


def prompts(n: int) -> list[str]:
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=6)) for _ in range(5)]
    return [f"Give this back: {' / '.join(draw.choices(lines, k=4))} {i}" for i in range(n)]


def eager(model: Model) -> Model:
    """Draft as if further rows cost nothing."""
    costs = model.engine._scheduler.times.costs
    costs.observe = lambda n_rows, seconds: None
    costs._seconds.update(dict.fromkeys(range(1, 80), 1.0))
    return model


def answers(model: Model, texts: list[str], n: int) -> list[list[int]]:
    return [list(model.generate(model.encode(t), temperature=0, max_tokens=n)) for t in texts]


@pytest.mark.slow
def test_200_prompts_of_a_small_model(tmp_path: Path):
    path, texts = write_tiny_model(tmp_path / "tiny.gguf"), prompts(200)
    with kukri.load(path, device="cpu", speculate="off") as plain:
        expected = answers(plain, texts, 16)
    with kukri.load(path, device="cpu") as model:
        assert answers(eager(model), texts, 16) == expected


@pytest.mark.parametrize("name", ["smollm2", "qwen2.5-coder:0.5b"])
def test_prompts_of_real_models(real_model, name):
    texts = prompts(12)
    with kukri.load(real_model(name), device="cpu", speculate="off") as plain:
        expected = answers(plain, texts, 24)
    drafted = accepted = 0
    with kukri.load(real_model(name), device="cpu") as model:
        for text, answer in zip(texts, expected, strict=True):
            assert answers(eager(model), [text], 24) == [answer]
            drafted, accepted = drafted + model.stats.drafted_tokens, accepted + model.stats.accepted_tokens
    assert 0 < accepted < drafted
