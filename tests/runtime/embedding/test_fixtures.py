"""Vectors and scores of tiny models against what sentence-transformers and transformers compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import UnsupportedModel
from kukri.runtime.embedding.heads import ScoringHead
from kukri.runtime.embedding.reranker import Reranker
from kukri.runtime.embedding.settings import EmbeddingSettings
from kukri.runtime.embedding.stages import Dense
from kukri.runtime.engine.errors import ContextExceeded
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions

Find = Callable[[str], Path]
EMBEDDERS = ["qwen3-embedding", "embedding-gemma", "bert", "xlm-roberta", "nomic-bert", "modernbert"]
RERANKERS = ["bert-reranker", "bge-reranker", "modernbert-reranker", "qwen3-reranker"]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors(embedding_model: Find, name: str, device: str) -> None:
    folder = embedding_model(name)
    cases = np.load(folder / "cases.npz")
    texts = [str(text) for text in cases["texts"]]
    with load_model(folder, LoadOptions(device, task="auto")) as model:
        for key in (key for key in cases.files if key.startswith("vectors")):
            prompt = key.removeprefix("vectors of ") if " of " in key else None
            got = model.embed(texts, prompt=prompt)
            assert got.dtype == np.float32
            assert cosines(got, cases[key]).min() > 0.9999
            np.testing.assert_allclose(got, cases[key], atol=2e-5, err_msg=key)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", RERANKERS)
def test_scores(embedding_model: Find, name: str, device: str) -> None:
    folder = embedding_model(name)
    cases = np.load(folder / "cases.npz")
    query = str(cases["pairs"][0][0])
    documents = [str(document) for first, document in cases["pairs"] if first == query]
    with load_model(folder, LoadOptions(device, task="auto")) as model:
        got = model.rerank(query, documents)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, cases["scores"][: len(documents)], atol=2e-5)
        other, document = (str(text) for text in cases["pairs"][-1])
        np.testing.assert_allclose(model.rerank(other, [document]), cases["scores"][-1:], atol=2e-5)


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen3-embedding"])
def test_texts_do_not_see_each_other(embedding_model: Find, name: str) -> None:
    """A text has the same vector alone and among others, whatever their lengths, and in any order."""
    texts = [str(text) for text in np.load(embedding_model(name) / "cases.npz")["texts"]] * 12
    with load_model(embedding_model(name), LoadOptions("cpu", task="auto")) as model:
        together = model.embed(texts)
        np.testing.assert_allclose(together[:6], together[-6:], atol=1e-5)
        for text, vector in zip(texts[:6], together, strict=False):
            np.testing.assert_allclose(model.embed([text])[0], vector, atol=1e-5)
        np.testing.assert_allclose(model.embed(texts[::-1])[::-1], together, atol=1e-5)
        assert model.embed([]).shape == (0, together.shape[1])


def test_an_encoder_writes_no_text(embedding_model: Find) -> None:
    with pytest.raises(UnsupportedModel, match="an encoder"):
        load_model(embedding_model("bert"), LoadOptions("reference"))
    with load_model(embedding_model("bert"), LoadOptions("reference", task="auto")) as model:
        with pytest.raises(UnsupportedModel, match="an encoder"):
            model.generate([1, 2])
        with pytest.raises(ContextExceeded, match=r"text 2 \(.*\) has 140 tokens, but the model takes 128"):
            model.embed(["x", "x " * 138])
        cut = model.embed(["x " * 138], truncate=True)
        np.testing.assert_allclose(cut, model.embed(["x " * 126]), atol=1e-5)


def test_a_score_is_the_sum_of_log_softmax(embedding_model: Find) -> None:
    with load_model(embedding_model("qwen3-reranker"), LoadOptions("reference")) as model:
        score = model.score("Where do penguins live?")
        logits = model.logits(score.ids).astype(np.float64)
        each = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = [each[i, id] for i, id in enumerate(score.ids[1:])]
        assert np.isnan(score.log_probabilities[0])
        np.testing.assert_allclose(score.log_probabilities[1:], expected, rtol=1e-4)
        assert score.total == pytest.approx(sum(expected), rel=1e-4)
        assert score.perplexity == pytest.approx(np.exp(-np.mean(expected)), rel=1e-4)


def test_a_head_in_place_of_yes_and_no(embedding_model: Find) -> None:
    """A file may have the rows of the two words as a head, and then reads the same conversation."""
    folder = embedding_model("qwen3-reranker")
    cases = np.load(folder / "cases.npz")
    table = Checkpoint.open(folder).tensors["model.embed_tokens.weight"].dequantize()
    with load_model(folder, LoadOptions("reference", task="embed")) as model:
        words = [model.tokenizer.encode(word)[0] for word in ("yes", "no")]
        settings = EmbeddingSettings(pooling=("lasttoken",), stages=(Dense(table[words]),))
        head = ScoringHead(settings, 2, True, frozenset())
        reranker = Reranker(model.engine, model.tokenizer, head, model.config.hidden, model.embedded)
        got = [reranker.scores(str(query), [str(document)])[0] for query, document in cases["pairs"]]
    np.testing.assert_allclose(got, cases["scores"], atol=2e-5)
