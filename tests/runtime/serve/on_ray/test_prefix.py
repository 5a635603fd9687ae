"""Which replica gets a request, by how its prompt begins and by what the replicas have to do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kukri.runtime.serve.on_ray.prefix import beginning, preferred

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"messages": [SYSTEM, USER, {"role": "assistant", "content": "So."}, USER]}, "Be brief.\0Why?"),
        ({"system": "Be brief.", "messages": [USER]}, "Be brief.\0Why?"),  # Anthropic's
        ({"system": [{"type": "text", "text": "Be brief."}], "messages": [USER]}, "Be brief.\0Why?"),
        ({"instructions": "Be brief.", "input": [USER]}, "Be brief.\0Why?"),  # of /v1/responses
        ({"input": "Why?"}, "Why?"),
        ({"input": ["Why?", "How?"]}, "Why?"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]}, "Why?"),
        ({"prompt": "x" * 5000}, "x" * 1024),
        ({"prompt": ["Why?"]}, "Why?"),
        ({"prompt": [1, 2]}, ""),
        ({"messages": ["nonsense", 7, None], "system": 8}, "nonsense"),
        ({}, ""),
    ],
)
def test_beginnings(fields: dict[str, Any], expected: str) -> None:
    assert beginning(fields) == expected


def test_a_prompt_keeps_its_replica() -> None:
    loads = dict.fromkeys("abcdef", 0)
    first = {f"prompt {i}": preferred(f"prompt {i}", loads)[0] for i in range(600)}
    counts = Counter(first.values())
    assert counts.keys() == loads.keys()
    assert min(counts.values()) > 60
    fewer = {replica: 0 for replica in loads if replica != "c"}
    for prompt, replica in first.items():  # when one goes, only its prompts move
        now = preferred(prompt, fewer)[0]
        assert now == replica or replica == "c"


def test_no_replica_gets_too_much() -> None:
    """A prefix that everybody has is spread, and no replica has more than a quarter above the mean."""
    loads = dict.fromkeys("abcdefgh", 0)
    for _ in range(160):
        order = preferred("the same", loads)
        assert sorted(order) == sorted(loads)
        loads[order[0]] += 1
    assert max(loads.values()) <= 1.25 * 160 / 8 + 1
    few = dict.fromkeys("abcdefgh", 0)
    used = set()
    for _ in range(3):  # while there is little to do, it stays where it is
        used.add(preferred("the same", few)[0])
    assert len(used) == 1


def test_without_a_prefix_the_loads_count() -> None:
    assert preferred("", {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]
    assert preferred("x", {}) == []
