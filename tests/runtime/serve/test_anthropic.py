"""/v1/messages, through the official client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from .conftest import Served

GREEDY = {"temperature": 0}
HI: Any = [{"role": "user", "content": "Hi there"}]


@pytest.fixture
def client(served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)


def test_a_message(client: anthropic.Anthropic, greedy: Callable[[str, int], str]) -> None:
    found = client.messages.create(model="tiny", max_tokens=10, messages=HI, extra_body=GREEDY)
    assert found.content[0].text == greedy("Hi there", 10)
    assert found.stop_reason == "max_tokens"
    assert found.usage.output_tokens == 10
    again = client.messages.create(model="tiny", max_tokens=10, messages=HI, extra_body=GREEDY)
    assert again.usage.cache_read_input_tokens > 0
    counted = client.messages.count_tokens(model="tiny", messages=HI)
    assert counted.input_tokens == again.usage.input_tokens + again.usage.cache_read_input_tokens
    silent = client.messages.create(model="silent", max_tokens=10, messages=HI, extra_body=GREEDY)
    assert (silent.stop_reason, silent.content[0].text) == ("end_turn", "")


def test_a_stream(client: anthropic.Anthropic, greedy: Callable[[str, int], str]) -> None:
    with client.messages.stream(model="tiny", max_tokens=30, messages=HI, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == greedy("Hi there", 30) == final.content[0].text
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 30
    kinds = [
        event.type
        for event in client.messages.create(
            model="tiny", max_tokens=2, messages=HI, extra_body=GREEDY, stream=True
        )
    ]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stop_sequences(client: anthropic.Anthropic, greedy: Callable[[str, int], str]) -> None:
    whole = greedy("Hi there", 40)
    stop = whole[10:12]
    found = client.messages.create(
        model="tiny", max_tokens=40, messages=HI, extra_body=GREEDY, stop_sequences=[stop]
    )
    assert found.content[0].text == whole[: whole.index(stop)]
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", stop)


def test_an_answer_that_is_begun(client: anthropic.Anthropic, greedy: Callable[[str, int], str]) -> None:
    whole = greedy("Hi there", 12)
    found = client.messages.create(
        model="tiny",
        max_tokens=4,
        extra_body=GREEDY,
        messages=[*HI, {"role": "assistant", "content": whole[:8]}],
    )
    assert found.content[0].text[:1] == whole[8]


def test_a_system_prompt_and_turns(client: anthropic.Anthropic) -> None:
    turns = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]}, *HI]
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    short = client.messages.count_tokens(model="tiny", messages=HI).input_tokens
    assert client.messages.count_tokens(model="tiny", messages=turns, system=system).input_tokens > short
    client.messages.create(
        model="tiny", max_tokens=1, messages=turns, system=system, metadata={"user_id": "x"}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 0},
        {"max_tokens": None},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1"}}]}]},
        {"temperature": -1},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"mcp_servers": [{"type": "url", "url": "http://127.0.0.1", "name": "x"}]},
    ],
)  # fmt: skip
def test_wrong_requests(served: Served, changes: dict[str, Any]) -> None:
    done = served.post("/v1/messages", {"model": "tiny", "max_tokens": 1, "messages": HI, **changes})
    assert done.status_code == 400
    assert done.json()["type"] == "error"
    assert done.json()["error"]["type"] == "invalid_request_error"


def test_errors_have_the_clients_types(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", max_tokens=1, messages=HI)
