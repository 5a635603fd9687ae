"""/v1/completions: raw text, its echo, and log probabilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from kukri.runtime.model.options import LoadOptions

from .conftest import Served, serving


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)


def continued(served: Served, text: str, n: int) -> str:
    """The tiny model's greedy continuation, from the library."""
    model = served.pool.entries["tiny"].model
    return "".join(model.stream(model.encode(text), temperature=0, max_tokens=n))


def test_a_completion(served: Served, client: openai.OpenAI) -> None:
    found = client.completions.create(model="tiny", prompt="the sun", max_tokens=9, temperature=0)
    assert found.choices[0].text == continued(served, "the sun", 9)
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 9
    parts = client.completions.create(model="tiny", prompt="the sun", temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == continued(served, "the sun", 16)


def test_prompts_of_texts_and_of_ids(served: Served, client: openai.OpenAI) -> None:
    ids = served.post("/tokenize", {"content": "the sun", "model": "tiny"}).json()["tokens"]
    for prompt in (["the sun", "a moon"], [ids, ids], ids):
        found = client.completions.create(model="tiny", prompt=prompt, max_tokens=5, temperature=0)
        assert found.choices[0].text == continued(served, "the sun", 5)
    two = client.completions.create(model="tiny", prompt=["the sun", "a moon"], n=2, max_tokens=5, seed=1)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert two.usage.completion_tokens == 20


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_log_probabilities(served: Served, client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "the sun", "max_tokens": 3, "temperature": 0}
    done = client.completions.create(**asked, echo=True, logprobs=2, stream=stream)
    choices = [part.choices[0] for part in done] if stream else done.choices
    text = "".join(choice.text for choice in choices)
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    scores = [score for choice in choices if choice.logprobs for score in choice.logprobs.token_logprobs]
    offsets = [offset for choice in choices if choice.logprobs for offset in choice.logprobs.text_offset]
    assert text == "the sun" + continued(served, "the sun", 3)
    assert "".join(tokens) == text
    assert scores[0] is None
    assert all(score <= 0 for score in scores[1:])
    assert [text[offset:].startswith(token) for offset, token in zip(offsets, tokens, strict=True)]
    assert len(tokens) == len(scores) == len(offsets)


def test_only_the_prompt_is_scored(client: openai.OpenAI) -> None:
    found = client.completions.create(model="tiny", prompt="the sun", max_tokens=0, echo=True, logprobs=1)
    assert found.choices[0].text == "the sun"
    assert found.choices[0].logprobs.token_logprobs[0] is None


@pytest.mark.parametrize(
    "changes", [{"prompt": []}, {"prompt": [1, "a"]}, {"prompt": [10**9]}, {"best_of": 3}, {"suffix": "x"}]
)
def test_wrong_requests(served: Served, changes: dict[str, Any]) -> None:
    done = served.post("/v1/completions", {"model": "tiny", "prompt": "x", **changes})
    assert done.status_code == 400
    assert done.json()["error"]["message"]


@pytest.mark.slow
def test_filling_in_the_middle(real_model: Callable[[str], Path]) -> None:
    load = LoadOptions(device="cpu", context=512)
    with serving({"coder": real_model("qwen2.5-coder:0.5b")}, load=load) as served:
        body = {"prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
        found = served.post("/v1/completions", {**body, "max_tokens": 8, "temperature": 0}).json()["choices"][
            0
        ]
        assert found["text"].startswith("a + b\n")
        options = {"num_predict": 8, "temperature": 0}
        done = served.post("/api/generate", {**body, "options": options, "stream": False})
        assert "a + b" in done.json()["response"]


def test_tokens_and_back(served: Served) -> None:
    text = "the déjà vu 😀"
    ids = served.post("/tokenize", {"content": text}).json()["tokens"]
    assert served.post("/detokenize", {"tokens": ids}).json() == {"content": text}
    pieces = served.post("/tokenize", {"content": "the sun", "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == served.post("/tokenize", {"content": "the sun"}).json()[
        "tokens"
    ]
    assert served.post("/detokenize", {"tokens": [10**6]}).status_code == 400
    assert served.post("/detokenize", {"tokens": [-1]}).status_code == 400
