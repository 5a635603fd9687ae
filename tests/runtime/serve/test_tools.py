"""Tool calls and thinking in the shapes of all APIs; what the model writes is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import ollama
import openai
import pytest

from kukri.tests.runtime.model.scripted import scripted

from .conftest import Served, serving

# What Qwen's template says of thinking and tools, in a few words.
TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    '<tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
SAID = f"<think>\nHm, weather.\n</think>\n\nLet me look.\n{CALL}\n{CALL}"
ARGUMENTS = {"city": "Köln", "days": 2}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "?", "parameters": SCHEMA}}
HI: Any = [{"role": "user", "content": "Weather?"}]


@contextmanager
def says(text: str) -> Iterator[Served]:
    """A server whose model answers the first request with `text`."""
    more = {"tokenizer.chat_template": TEMPLATE}
    with serving({"m": scripted(text, context=2048, **more)}) as served:
        yield served


def prompt_of(served: Served) -> str:
    """What the model was fed, with its special tokens."""
    model = served.pool.entries["m"].model
    tokenizer = model.tokenizer
    spelled = (
        tokenizer.token_text(id_).encode() if tokenizer.is_special(id_) else tokenizer.token_bytes(id_)
        for id_ in model._machine.fed
    )
    return b"".join(spelled).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions(stream: bool) -> None:
    with says(SAID) as served:
        client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
        asked: Any = {"model": "m", "messages": HI, "tools": [TOOL], "temperature": 0}
        if not stream:
            message = client.chat.completions.create(**asked).choices[0]
            text, thinking = message.message.content, message.message.reasoning_content
            calls = [(c.id, c.function.name, c.function.arguments) for c in message.message.tool_calls]
            reason = message.finish_reason
        else:
            text = thinking = ""
            parts: dict[int, list[str]] = {}
            for chunk in client.chat.completions.create(**asked, stream=True):
                delta = chunk.choices[0].delta
                text += delta.content or ""
                thinking += getattr(delta, "reasoning_content", None) or ""
                for call in delta.tool_calls or []:
                    if call.id:
                        parts[call.index] = [call.id, call.function.name, ""]
                    parts[call.index][2] += call.function.arguments
                reason = chunk.choices[0].finish_reason
            calls = [tuple(part) for part in parts.values()]
    assert text.strip() == "Let me look."
    assert thinking.strip() == "Hm, weather."
    assert reason == "tool_calls"
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [("weather", ARGUMENTS)] * 2
    assert len({id_ for id_, _, _ in calls}) == 2


def test_only_one_call() -> None:
    with says(SAID) as served:
        body = {"messages": HI, "tools": [TOOL], "temperature": 0, "parallel_tool_calls": False}
        (choice,) = served.post("/v1/chat/completions", body).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"


def test_the_results_of_tools_are_read() -> None:
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rom"}'},
    }
    turns = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    with says("It is sunny.") as served:
        done = served.post("/v1/chat/completions", {"messages": turns, "tools": [TOOL], "temperature": 0})
        assert done.json()["choices"][0]["message"]["content"] == "It is sunny."
        fed = prompt_of(served)
        assert "sunny" in fed
        assert '"city": "Rom"' in fed


@pytest.mark.parametrize("stream", [False, True])
def test_responses(stream: bool) -> None:
    with says(SAID) as served:
        client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
        asked: Any = {"model": "m", "input": "Weather?", "temperature": 0}
        asked["tools"] = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
        if stream:
            with client.responses.stream(**asked) as events:
                found = events.get_final_response()
        else:
            found = client.responses.create(**asked)
    kinds = [item.type for item in found.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert found.output_text.strip() == "Let me look."
    assert json.loads(found.output[2].arguments) == ARGUMENTS
    assert found.status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(stream: bool) -> None:
    with says(SAID) as served:
        client = anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)
        asked: Any = {"model": "m", "messages": HI, "max_tokens": 400, "extra_body": {"temperature": 0}}
        asked["tools"] = [{"name": "weather", "description": "?", "input_schema": SCHEMA}]
        if stream:
            with client.messages.stream(**asked) as events:
                found = events.get_final_message()
        else:
            found = client.messages.create(**asked)
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert found.content[0].thinking.strip() == "Hm, weather."
    assert found.content[1].text.strip() == "Let me look."
    assert found.content[2].input == ARGUMENTS
    assert found.stop_reason == "tool_use"


def test_anthropic_results() -> None:
    turns: Any = [
        *HI,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": ARGUMENTS}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
    ]
    with says("Rain.") as served:
        client = anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)
        found = client.messages.create(
            model="m",
            messages=turns,
            max_tokens=50,
            thinking={"type": "disabled"},
            extra_body={"temperature": 0},
        )
        fed = prompt_of(served)
    assert found.content[0].text == "Rain."
    assert "Köln" in fed
    assert "<|im_start|>tool\nrain" in fed
    assert "<think>\n\n</think>" in fed


@pytest.mark.parametrize("stream", [False, True])
def test_ollama(stream: bool) -> None:
    with says(SAID) as served:
        client = ollama.Client(host=served.url, trust_env=False)
        done: Any = client.chat("m", HI, tools=[TOOL], options={"temperature": 0}, stream=stream)
        messages = [part.message for part in done] if stream else [done.message]
    assert "".join(message.content or "" for message in messages).strip() == "Let me look."
    assert "".join(message.thinking or "" for message in messages).strip() == "Hm, weather."
    calls = [call.function for message in messages for call in message.tool_calls or []]
    assert [(call.name, dict(call.arguments)) for call in calls] == [("weather", ARGUMENTS)] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "function": {"name": "no spaces, please"}}]},
        {"tools": [{"type": "function", "function": {}}]},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tools": [TOOL], "tool_choice": "sometimes"},
        {"reasoning_effort": "extreme"},
    ],
)
def test_wrong_requests(served: Served, changes: dict[str, Any]) -> None:
    done = served.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1, **changes})
    assert done.status_code == 400
    assert done.json()["error"]["message"]
