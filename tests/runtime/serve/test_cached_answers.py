"""A server with a cache of answers: the same answers in every API, and a word about it in their usage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kukri.runtime.response_cache.cache import ResponseCache

from .conftest import Served, serving

HI = [{"role": "user", "content": "Hi there"}]


@pytest.fixture(scope="module")
def cached(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    cache = ResponseCache(tmp_path_factory.mktemp("answers"), warn=pytest.fail)
    with serving({"tiny": tiny}, answers=cache) as served:
        yield served
    cache.close()


def of_usage(found: dict[str, Any]) -> int:
    return int((found.get("usage") or found).get("cached_answers", 0))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 5}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 6}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 7}),
        ("/v1/messages", {"messages": HI, "max_tokens": 8, "model": "tiny"}),
        ("/api/chat", {"messages": HI, "model": "tiny", "stream": False, "options": {"num_predict": 9}}),
    ],
)
def test_every_api(cached: Served, path: str, body: dict[str, Any]) -> None:
    if path == "/api/chat":
        body["options"]["temperature"] = 0
    else:
        body["temperature"] = 0
    first, second = (cached.post(path, body).json() for _ in range(2))
    assert (of_usage(first), of_usage(second)) == (0, 1)
    for name in ("choices", "content", "message"):
        assert first.get(name) == second.get(name)


def test_streams_and_several_answers(cached: Served) -> None:
    before = cached.metric("kukri_kept_answers_total")
    body: dict[str, Any] = {"prompt": ["a", "b"], "max_tokens": 4, "temperature": 0, "n": 2}
    first = cached.post("/v1/completions", body).json()
    found = cached.post("/v1/completions", body | {"prompt": ["b", "c"]}).json()
    assert found["usage"]["cached_answers"] == 2
    assert found["choices"][0]["text"] == first["choices"][2]["text"]
    chat = {"messages": HI, "max_tokens": 6, "seed": 5, "logprobs": True, "top_logprobs": 2}
    whole = cached.post("/v1/chat/completions", chat).json()
    streamed = cached.post(
        "/v1/chat/completions", chat | {"stream": True, "stream_options": {"include_usage": True}}
    ).text
    parts = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    text = "".join(p["choices"][0]["delta"].get("content") or "" for p in parts if p["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    tokens = [
        t for p in parts if p["choices"] for t in (p["choices"][0]["logprobs"] or {}).get("content", ())
    ]
    assert tokens == whole["choices"][0]["logprobs"]["content"]
    assert parts[-1]["usage"]["cached_answers"] == 1
    assert cached.metric("kukri_kept_answers_total") - before >= 3
