"""Fast answers come in few parts, and nothing is lost in them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kukri.cli.commands.serve import ServeFlags
from kukri.runtime.answers.answer import Answer
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.call import WHOLE_SECONDS
from kukri.runtime.serve.http.options import ServeOptions

from .conftest import Served, serving

PART = 0.3  # seconds
BODY = {"prompt": "Hi there", "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def patient(endless: Path) -> Iterator[Served]:
    """A server that sends parts with long pauses."""
    load = LoadOptions(device="cpu", parallel=2, context=1 << 10)
    with serving({"endless": endless}, ServeOptions(part_seconds=PART), load) as running:
        yield running


def events(served: Served, **more: Any) -> list[dict[str, Any]]:
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}, **more}
    lines = served.post("/v1/completions", body).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_a_stream_comes_in_parts_of_many_tokens(patient: Served) -> None:
    whole = patient.post("/v1/completions", BODY).json()
    start = time.monotonic()
    found = events(patient)
    most = 5 + (time.monotonic() - start) / PART  # the first two, the last, its end, and the usage
    texts = [event["choices"][0]["text"] for event in found if event["choices"]]
    assert "".join(texts) == whole["choices"][0]["text"]
    assert len(found) <= most
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 300


def test_parts_of_many_tokens_have_the_log_probabilities_of_each(patient: Served) -> None:
    found = events(patient, logprobs=1, max_tokens=50)
    tokens = [t for e in found if e["choices"] for t in e["choices"][0]["logprobs"]["tokens"]]
    assert len(tokens) == 50


def test_a_stop_string_within_a_part_ends_the_answer_there(patient: Served) -> None:
    text = patient.post("/v1/completions", BODY).json()["choices"][0]["text"]
    stop = text[40:44]
    found = events(patient, stop=stop)
    texts = [event["choices"][0]["text"] for event in found if event["choices"]]
    assert "".join(texts) == text[: text.index(stop)]
    patient.until_idle()


def test_an_answer_that_is_not_streamed_is_looked_at_now_and_then(
    patient: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    push_all = Answer._push_all

    def counted(answer: Answer, tokens: list[int]) -> list[Any]:
        looks.append(len(tokens))
        return push_all(answer, tokens)

    monkeypatch.setattr(Answer, "_push_all", counted)
    start = time.monotonic()
    assert patient.post("/v1/completions", BODY).json()["usage"]["completion_tokens"] == 300
    assert sum(looks) == 300
    assert len(looks) <= 3 + (time.monotonic() - start) / WHOLE_SECONDS


def test_the_interval_of_the_command_line_is_that_of_parts() -> None:
    assert ServeFlags().serving().part_seconds == ServeOptions().part_seconds == 0.03
    assert ServeFlags(stream_interval=0).serving().part_seconds == 0
    assert ServeFlags(stream_interval=250).serving().part_seconds == 0.25


def test_part_seconds_out_of_range() -> None:
    with pytest.raises(ValueError, match="part_seconds must be from 0 to 10, not -1"):
        ServeOptions(part_seconds=-1)
