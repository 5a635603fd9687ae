"""Vectors of texts, through the clients of OpenAI and Ollama."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import ollama
import openai
import pytest

import kukri

from .conftest import Served

TEXTS = ["the sun", "a moon", "x" * 60]


@pytest.fixture(scope="module")
def vectors(served: Served) -> Iterator[np.ndarray]:
    """What the library gives for TEXTS."""
    with kukri.load(served.pool.entries["tiny"].path, device="cpu", task="embed") as model:
        yield model.embed(TEXTS)


def test_openai(served: Served, vectors: np.ndarray) -> None:
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
    for form in ({}, {"encoding_format": "float"}):  # the client asks for base64 by itself
        found = client.embeddings.create(model="tiny", input=TEXTS, **form)
        assert np.allclose([each.embedding for each in found.data], vectors, atol=1e-6)
        assert found.usage.prompt_tokens > 60
    one = client.embeddings.create(model="tiny", input="the sun", dimensions=8)
    assert len(one.data[0].embedding) == 8
    assert np.linalg.norm(one.data[0].embedding) == pytest.approx(1, abs=1e-5)
    ids = served.post("/tokenize", {"content": "the sun"}).json()["tokens"]
    for given in (ids, [ids]):
        found = client.embeddings.create(model="tiny", input=given)
        assert np.allclose(found.data[0].embedding, vectors[0], atol=1e-6)
    assert served.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


def test_ollama(served: Served, vectors: np.ndarray) -> None:
    client = ollama.Client(host=served.url, trust_env=False)
    assert np.allclose(client.embed("tiny", TEXTS).embeddings, vectors, atol=1e-6)
    assert np.allclose(client.embeddings("tiny", "the sun").embedding, vectors[0], atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"input": ""},
        {"input": []},
        {"input": ["a", ""]},
        {"input": [1, "a"]},
        {"input": [10**9]},
        {"input": "x" * 5000},
        {"dimensions": 10**6},
        {"encoding_format": "int8"},
    ],
)
def test_wrong_requests(served: Served, changes: dict[str, object]) -> None:
    done = served.post("/v1/embeddings", {"model": "tiny", "input": "x", **changes})
    assert done.status_code == 400
    assert done.json()["error"]["message"]
