"""/v1/chat/completions, through the official client and with bodies of our own."""

from __future__ import annotations

import json
from collections.abc import Callable

import openai
import pytest

from .conftest import Served

HI = [{"role": "user", "content": "Hi there"}]


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "silent"]
    assert client.models.retrieve("silent").owned_by == "kukri"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("other")
    assert missing.value.code == "model_not_found"


def test_an_answer_is_that_of_the_library(client: openai.OpenAI, greedy: Callable[[str, int], str]) -> None:
    found = client.chat.completions.create(model="tiny", messages=HI, max_tokens=20, temperature=0)
    assert found.choices[0].message.content == greedy("Hi there", 20)
    assert found.choices[0].finish_reason == "length"
    assert found.model == "tiny"
    assert found.usage.completion_tokens == 20
    assert found.usage.total_tokens == found.usage.prompt_tokens + 20


def test_a_stream_has_the_same_text(client: openai.OpenAI, greedy: Callable[[str, int], str]) -> None:
    wanted = greedy("Hi there", 30)  # from here on the prompt is in the cache
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=HI,
            max_completion_tokens=30,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(texts) == wanted
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 30
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_answers(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "messages": HI, "max_tokens": 12, "n": 3, "seed": 5, "temperature": 1.5}
    found = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in found.choices]
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert found.usage.completion_tokens == 36
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_stop_strings(client: openai.OpenAI, greedy: Callable[[str, int], str]) -> None:
    whole = greedy("Hi there", 40)
    stop = whole[10:12]
    found = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=40, temperature=0, stop=[stop, "never"]
    )
    assert found.choices[0].message.content == whole[: whole.index(stop)]
    assert found.choices[0].finish_reason == "stop"


def test_an_end_token(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="silent", messages=HI, temperature=0)
    assert found.choices[0].message.content == ""
    assert found.choices[0].finish_reason == "stop"


def test_log_probabilities(client: openai.OpenAI, greedy: Callable[[str, int], str]) -> None:
    asked = {"model": "tiny", "messages": HI, "max_tokens": 6, "temperature": 0, "logprobs": True}
    found = client.chat.completions.create(**asked, top_logprobs=3)
    content = found.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == greedy("Hi there", 6)
    for entry in content:
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
        assert bytes(entry.bytes) == entry.token.encode()
        assert len(entry.top_logprobs) == 3
    streamed = []
    for chunk in client.chat.completions.create(**asked, top_logprobs=3, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    assert [entry.token for entry in streamed] == [entry.token for entry in content]


def test_a_bias(served: Served, client: openai.OpenAI) -> None:
    (token,) = served.post("/tokenize", {"content": "Q"}).json()["tokens"]
    found = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=4, temperature=0, logit_bias={str(token): 1000}
    )
    assert found.choices[0].message.content == "QQQQ"


def test_parts_of_text_and_other_roles(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    texts = [
        client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=8, temperature=0, user="me", metadata={"a": "b"}
        )
        .choices[0]
        .message.content
        for messages in (HI, [{"role": "user", "content": parts}])
    ]
    assert texts[0] == texts[1]
    client.chat.completions.create(
        model="tiny", messages=[{"role": "developer", "content": "Be brief."}, *HI], max_tokens=1
    )


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": "hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10_000}, "n"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"99999999": 1}}, None),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ],
)
def test_wrong_requests(served: Served, changes: dict[str, object], param: str | None) -> None:
    done = served.post("/v1/chat/completions", {"model": "tiny", "messages": HI, "max_tokens": 1, **changes})
    assert done.status_code == 400
    error = done.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]
    assert error["param"] == param


def test_images_are_refused_by_name(served: Served) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
    done = served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]})
    assert done.status_code == 400
    assert "images are not supported" in done.json()["error"]["message"]


def test_a_prompt_beyond_the_context(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="silent", messages=[{"role": "user", "content": "x" * 2000}])
    assert refused.value.code == "context_length_exceeded"


def test_an_unknown_model_and_a_path(client: openai.OpenAI) -> None:
    for name in ("gpt-4o", "/etc/passwd", "../tiny.gguf/x"):
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model=name, messages=HI)


def test_what_is_no_request(served: Served) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b'{"messages": "\xed\xa0\x80"}', b"[" * 100_000, b"null"):
        done = served.post("/v1/chat/completions", content=body)
        assert done.status_code == 400, body[:20]
        assert "error" in json.loads(done.content)
    assert served.get("/v1/chat/completions").status_code == 405
    assert served.post("/v1/nothing", {}).status_code == 404
