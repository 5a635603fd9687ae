"""Models with a cache of answers: what is computed once, and what anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kukri
from kukri.runtime.answers.answer import Answer
from kukri.runtime.answers.events import Finished, TextDelta
from kukri.runtime.model.model import Model
from kukri.runtime.response_cache.cache import ResponseCache
from kukri.runtime.response_cache.store import Store


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Iterator[Model]:
    with kukri.load(tiny, device="cpu") as model:
        yield model


@pytest.fixture
def cache(tmp_path: Path, loaded: Model) -> Iterator[ResponseCache]:
    cache = ResponseCache(tmp_path / "answers", warn=pytest.fail)
    cache.serve(loaded)
    yield cache
    loaded.answer_source = None
    cache.close()


def facts(answer: Answer) -> Any:
    answer.complete()
    stats = answer.stats
    told = (stats.prompt_tokens, stats.new_tokens, stats.finish_reason, stats.complete)
    logprobs = answer.generation.logprobs
    return answer.message(), answer.finish_reason, answer.stop_string, told, logprobs


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "max_tokens": 12},
        {"seed": 3, "max_tokens": 12},
        {"temperature": 0, "max_tokens": 12, "logprobs": 3},
        {"temperature": 0, "max_tokens": 0},
        {"temperature": 0, "response_format": {"type": "choice", "choice": ["yes", "no"]}},
        {"temperature": 0, "max_tokens": 3, "response_format": {"type": "regex", "regex": "[a-z]{9}"}},
    ],
)
def test_the_same_answer(cache: ResponseCache, loaded: Model, fields: dict[str, Any]) -> None:
    first = loaded.answer("What is it?", **fields)
    computed = facts(first)
    second = loaded.answer("What is it?", **fields)
    assert facts(second) == computed
    assert (first.stats.from_cache, second.stats.from_cache) == (False, True)
    other = loaded.answer("What is that?", **fields).complete()
    assert not other.stats.from_cache


def test_a_stop_string(cache: ResponseCache, loaded: Model) -> None:
    text = loaded.answer("Hello", temperature=0, max_tokens=20).complete().text
    stop = text[4:6]
    computed = facts(loaded.answer("Hello", temperature=0, max_tokens=20, stop=[stop]))
    again = loaded.answer("Hello", temperature=0, max_tokens=20, stop=[stop])
    assert facts(again) == computed
    assert again.stats.from_cache
    assert again.text == text[: text.index(stop)]
    assert again.finish_reason == "stop_string"


def test_events_with_and_without_a_loop(cache: ResponseCache, loaded: Model) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 9, "logprobs": 1}

    async def read() -> list[Any]:
        return [event async for event in loaded.answer("events", **fields)]

    first, second, third = list(loaded.answer("events", **fields)), asyncio.run(read()), asyncio.run(read())
    assert isinstance(second[-1], Finished)
    assert second[-1].stats.from_cache
    for other in (second, third):
        assert [event for event in other if isinstance(event, TextDelta)] == [
            event for event in first if isinstance(event, TextDelta)
        ]


def test_what_is_not_kept(cache: ResponseCache, loaded: Model) -> None:
    for fields in ({}, {"temperature": 0, "prompt_logprobs": 0}):
        for _ in range(2):
            answer = loaded.answer("Not this", max_tokens=4, **fields).complete()
            assert not answer.stats.from_cache
    cut = loaded.answer("Cut", temperature=0, max_tokens=50)
    next(cut)
    cut.close()
    list(cut)  # what had come already
    assert not loaded.answer("Cut", temperature=0, max_tokens=50).complete().stats.from_cache
    full = loaded.answer("Full", temperature=0).complete()
    assert full.finish_reason == "context"  # with more room there would be more of it
    assert not loaded.answer("Full", temperature=0).complete().stats.from_cache


def test_a_smaller_context(cache: ResponseCache, loaded: Model, tiny: Path) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    n = loaded.answer("Long", **asked).complete().stats.prompt_tokens
    with kukri.load(tiny, device="cpu", context=n + 10) as small:
        cache.serve(small)
        answer = small.answer("Long", **asked).complete()
        assert (answer.stats.from_cache, answer.finish_reason) == (False, "context")
        assert loaded.answer("Long", **asked).complete().stats.from_cache
    with kukri.load(tiny, device="cpu", kv_type="f16") as other:
        cache.serve(other)
        assert not other.answer("Long", **asked).complete().stats.from_cache


def test_what_somebody_else_wrote(tmp_path: Path, cache: ResponseCache, loaded: Model) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 5}
    text = loaded.answer("Right", **asked).complete().text
    store = Store(tmp_path / "answers")
    for wrong in (
        b"", b"[1]", b"{}", b'{"tokens": "abc", "reason": "stop"}', b'{"tokens": [-1], "reason": "stop"}',
        b'{"tokens": [1], "reason": "because"}', b'{"tokens": [1], "reason": "stop", "logprobs": [[1, 2]]}',
        b'{"tokens": [999999], "reason": "stop"}',
    ):  # fmt: skip
        store._database.execute("UPDATE answers SET value = ?", (wrong,))
        answer = loaded.answer("Right", **asked).complete()
        assert (answer.text, answer.stats.from_cache) == (text, False)
    store.close()


def test_a_file_that_breaks_while_it_is_used(tmp_path: Path, loaded: Model) -> None:
    said: list[str] = []
    cache = ResponseCache(tmp_path, warn=said.append)
    cache.serve(loaded)
    cache._store._database.execute("DROP TABLE answers")
    try:
        for _ in range(2):
            assert not loaded.answer("Broken", temperature=0, max_tokens=3).complete().stats.from_cache
        assert len(said) == 1
        assert said[0].startswith("answers are not kept: ")
    finally:
        loaded.answer_source = None
        cache.close()
