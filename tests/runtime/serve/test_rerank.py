"""/v1/rerank, and vectors of a model that was made for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.model.options import LoadOptions

from .conftest import Served, serving

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def encoders(embedding_model: Callable[[str], Path]) -> Iterator[Served]:
    """A server with a reranker and a model for vectors, neither of which writes text."""
    models = {name: embedding_model(name) for name in ("bert-reranker", "bert")}
    with serving(models, load=LoadOptions(device="reference")) as running:
        yield running


def test_documents_are_ordered(encoders: Served, embedding_model: Callable[[str], Path]) -> None:
    cases = np.load(embedding_model("bert-reranker") / "cases.npz")
    query = str(cases["pairs"][0][0])
    documents = [str(document) for first, document in cases["pairs"] if first == query]
    body = {"model": "bert-reranker", "query": query, "documents": documents}
    found = encoders.post("/v1/rerank", body).json()
    order = [result["index"] for result in found["results"]]
    assert order == np.argsort(-cases["scores"][: len(documents)], kind="stable").tolist()
    got = [result["relevance_score"] for result in found["results"]]
    assert np.allclose(got, cases["scores"][order], atol=2e-5)
    assert found["usage"]["prompt_tokens"] > 0
    body |= {"documents": [{"text": text} for text in documents], "top_n": 1, "return_documents": True}
    (best,) = encoders.post("/v1/rerank", body).json()["results"]
    assert best["document"]["text"] == documents[order[0]]


def test_vectors(encoders: Served, embedding_model: Callable[[str], Path]) -> None:
    cases = np.load(embedding_model("bert") / "cases.npz")
    texts = [str(text) for text in cases["texts"] if str(text)]
    found = encoders.post("/v1/embeddings", {"model": "bert", "input": texts}).json()["data"]
    wanted = cases["vectors"][[bool(str(text)) for text in cases["texts"]]]
    assert np.allclose([each["embedding"] for each in found], wanted, atol=2e-4)
    assert encoders.post("/api/show", {"model": "bert"}).json()["capabilities"] == ["embedding"]


@pytest.mark.parametrize("name", ["bert", "bert-reranker"])
def test_they_write_no_text(encoders: Served, name: str) -> None:
    done = encoders.post("/v1/chat/completions", {"model": name, "messages": HI})
    assert done.status_code == 400
    assert done.json()["error"]["message"]


@pytest.mark.parametrize(
    "changes", [{"documents": []}, {"documents": [{"title": "x"}]}, {"query": None}, {"top_n": 0}]
)
def test_wrong_requests(served: Served, changes: dict[str, object]) -> None:
    done = served.post("/v1/rerank", {"query": "x", "documents": ["y"], **changes})
    assert done.status_code == 400


def test_a_model_that_is_no_reranker(served: Served) -> None:
    done = served.post("/v1/rerank", {"query": "x", "documents": ["y"]})
    assert done.status_code == 400
    assert "no reranker" in done.json()["error"]["message"]
