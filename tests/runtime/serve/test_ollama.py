"""Ollama's API, through the official client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ollama
import pytest

from .conftest import Served

HI: Any = [{"role": "user", "content": "Hi there"}]
GREEDY = {"temperature": 0, "num_predict": 10, "num_ctx": 2048}


@pytest.fixture
def client(served: Served) -> ollama.Client:
    return ollama.Client(host=served.url, trust_env=False)


def test_chat(client: ollama.Client, greedy: Callable[[str, int], str]) -> None:
    found = client.chat(model="tiny", messages=HI, options=GREEDY)
    assert found.message.content == greedy("Hi there", 10)
    assert found.done_reason == "length"
    assert found.eval_count == 10
    parts = list(client.chat(model="tiny:latest", messages=HI, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == greedy("Hi there", 10)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_generate(served: Served, client: ollama.Client, greedy: Callable[[str, int], str]) -> None:
    found = client.generate(model="tiny", prompt="Hi there", options=GREEDY)
    assert found.response == greedy("Hi there", 10)
    raw = client.generate(model="tiny", prompt="the sun", raw=True, options=GREEDY, stream=True)
    model = served.pool.entries["tiny"].model
    wanted = "".join(model.stream(model.encode("the sun"), temperature=0, max_tokens=10))
    assert "".join(part.response for part in raw) == wanted
    assert client.generate(model="tiny", prompt="").done_reason == "load"


def test_the_models(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["tiny", "silent"]
    about = client.show("tiny")
    assert about.modelinfo["general.architecture"] == "llama"
    assert "im_start" in about.template
    assert "tiny" in [model.model for model in client.ps().models]


def test_errors(served: Served, client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat(model="other", messages=HI)
    assert missing.value.status_code == 404
    assert "there is no model" in missing.value.error
    for body in (
        {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": HI, "options": {"temperature": -1}},
        {"messages": HI, "format": "xml"},
    ):
        done = served.post("/api/chat", {"model": "tiny", **body})
        assert done.status_code == 400
        assert isinstance(done.json()["error"], str)
