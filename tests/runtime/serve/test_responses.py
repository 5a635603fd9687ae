"""/v1/responses, through the official client."""

from __future__ import annotations

from collections.abc import Callable

import openai
import pytest

from .conftest import Served


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)


def test_a_response(client: openai.OpenAI, greedy: Callable[[str, int], str]) -> None:
    found = client.responses.create(model="tiny", input="Hi there", max_output_tokens=10, temperature=0)
    assert found.output_text == greedy("Hi there", 10)
    assert found.status == "incomplete"
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.usage.output_tokens == 10
    said_nothing = client.responses.create(model="silent", input="Hi there", temperature=0)
    assert said_nothing.status == "completed"
    assert said_nothing.output_text == ""


def test_a_stream_of_events(client: openai.OpenAI, greedy: Callable[[str, int], str]) -> None:
    events = list(
        client.responses.create(
            model="tiny", input="Hi there", max_output_tokens=10, temperature=0, stream=True
        )
    )
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == greedy("Hi there", 10) == events[-1].response.output_text


def test_the_stream_helper(client: openai.OpenAI, greedy: Callable[[str, int], str]) -> None:
    with client.responses.stream(model="silent", input="Hi there", temperature=0) as stream:
        assert stream.get_final_response().output_text == ""


def test_a_conversation_of_items(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="Hi", max_output_tokens=4, temperature=0)
    items = [{"role": "user", "content": "Hi"}, *first.output, {"role": "user", "content": "And?"}]
    found = client.responses.create(
        model="tiny", instructions="Be brief.", input=items, max_output_tokens=4, temperature=0
    )
    assert found.usage.input_tokens > first.usage.input_tokens
    assert found.instructions == "Be brief."


@pytest.mark.parametrize(
    "changes",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"input": []},
        {"input": [{"type": "computer_call"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/"}]}]},
        {"tools": [{"type": "web_search"}]},
        {"max_output_tokens": 0},
    ],
)
def test_wrong_requests(served: Served, changes: dict[str, object]) -> None:
    done = served.post("/v1/responses", {"model": "tiny", "input": "x", "max_output_tokens": 1, **changes})
    assert done.status_code == 400
    assert done.json()["error"]["type"] == "invalid_request_error"
