"""A draft model beside a model: loading, memory, vocabularies, and the same answers."""

from __future__ import annotations

from pathlib import Path

import pytest

import kukri
from kukri.runtime.engine.speculation.policy import StepCosts
from kukri.runtime.model.model import Model

from ....tiny_model import write_tiny_model

PROMPTS = ["the", "in an ou", "Once upon a time", "x" * 90]


def drafting_is_free(model: Model) -> Model:
    """Let drafts cost nothing, and rows what is guessed, so that how many there are does not depend on the
    clock."""

    def seconds(n: int, n_sequences: int, step: StepCosts) -> float:
        return 0.0

    def observe(n_rows: int, seconds: float) -> None:
        pass

    model.engine._drafter.seconds = seconds
    model.engine._scheduler.times.costs.observe = observe
    return model


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_model_drafts_for_itself(device, tmp_path: Path):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    with kukri.load(path, device=device, speculate="off") as plain:
        expected = [list(plain.generate(plain.encode(p), temperature=0, max_tokens=40)) for p in PROMPTS]
        sampled = [list(plain.generate(plain.encode(p), seed=4, max_tokens=40)) for p in PROMPTS]
    with kukri.load(path, device=device, speculate="draft", draft=path) as model:
        drafting_is_free(model)
        for prompt, greedy, drawn in zip(PROMPTS, expected, sampled, strict=True):
            assert list(model.generate(model.encode(prompt), temperature=0, max_tokens=40)) == greedy
            assert model.stats.accepted_by_kind == model.stats.drafted_by_kind
            assert model.stats.accepted_tokens > 25
            assert list(model.generate(model.encode(prompt), seed=4, max_tokens=40)) == drawn
            assert model.stats.accepted_tokens > 25


def test_another_model_drafts(tmp_path: Path):
    path, other = (write_tiny_model(tmp_path / f"{seed}.gguf", seed=seed) for seed in range(2))
    with kukri.load(path, device="cpu", speculate="off") as plain:
        expected = [list(plain.generate(plain.encode(p), temperature=0, max_tokens=40)) for p in PROMPTS]
    with kukri.load(path, device="cpu", draft=other) as model:
        drafting_is_free(model)
        generations = [model.submit(model.encode(p), temperature=0, max_tokens=40) for p in PROMPTS]
        assert [[event.id for event in events if event.id is not None] for events in generations] == expected
        assert model.engine._drafter.machine.team is model.engine.machine.team


def test_closing_ends_both(tmp_path: Path):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    model = kukri.load(path, device="cpu", draft=path)
    draft = model._draft
    assert draft is not None
    model.close()
    with pytest.raises(kukri.ModelClosed):
        draft.generate([1])


def test_speculation_that_needs_no_draft_model_does_not_load_it(tmp_path: Path):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    for speculate in ("off", "ngram"):
        with kukri.load(path, device="cpu", speculate=speculate, draft=path) as model:
            assert model._draft is None
    with pytest.raises(ValueError, match="draft model"):
        kukri.load(path, speculate="draft")


def test_memory_counts_both(tmp_path: Path, monkeypatch):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    with kukri.load(path, device="cpu", context=512) as plain:
        n_bytes = plain.n_bytes
    enough = 150_000_000 + n_bytes + 600_000
    monkeypatch.setattr("kukri.runtime.model.placing.available_memory", lambda: enough)
    kukri.load(path, device="cpu", context=512).close()
    with pytest.raises(kukri.NotEnoughMemory, match="tiny with tiny"):
        kukri.load(path, device="cpu", context=512, draft=path)
