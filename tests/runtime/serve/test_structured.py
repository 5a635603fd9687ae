"""Answers of a given form, in the words of all APIs."""

from __future__ import annotations

import json
import re
from typing import Any

import ollama
import openai
import pytest

from .conftest import Served

HI: Any = [{"role": "user", "content": "Hi there"}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 1, "maximum": 3}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def check(text: str) -> None:
    found = json.loads(text)
    assert found["colour"] in ("red", "blue")
    assert found["n"] in (1, 2, 3)


def test_openai(served: Served) -> None:
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
    found = client.chat.completions.create(
        model="tiny", messages=HI, response_format=FORMAT, temperature=0, max_tokens=120
    )
    check(found.choices[0].message.content)
    assert found.choices[0].finish_reason == "stop"
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    response = client.responses.create(
        model="tiny", input="Hi there", text={"format": form}, temperature=0, max_output_tokens=120
    )
    check(response.output_text)


def test_anthropic(served: Served) -> None:
    body = {"messages": HI, "max_tokens": 120, "temperature": 0}
    for form in (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ):
        check(served.post("/v1/messages", {**body, **form}).json()["content"][0]["text"])


def test_ollama(served: Served) -> None:
    client = ollama.Client(host=served.url, trust_env=False)
    options = {"temperature": 0, "num_predict": 120}
    check(client.chat("tiny", HI, format=SCHEMA, options=options).message.content)
    check(client.generate("tiny", "Hi there", format=SCHEMA, options=options).response)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"guided_regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"response_format": {"type": "regex", "regex": "x+y"}}, "x+y"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_other_forms(served: Served, path: str, form: dict[str, Any], pattern: str) -> None:
    body = {"messages": HI, "prompt": "Hi", "max_tokens": 60, "temperature": 0, **form}
    choice = served.post(path, body).json()["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert re.fullmatch(pattern, text) or choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    "changes",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "colour"}}}},
        {"response_format": {"type": "nonsense"}},
        {"response_format": {"type": "regex", "regex": "("}},
        {"guided_json": SCHEMA, "guided_regex": "x"},
    ],
)
def test_wrong_forms(served: Served, changes: dict[str, Any]) -> None:
    done = served.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1, **changes})
    assert done.status_code == 400
    assert done.json()["error"]["message"]
