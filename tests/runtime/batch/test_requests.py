"""From rows to requests."""

from __future__ import annotations

from typing import Any

import pytest

from kukri.runtime.batch.requests import CHAT, COMPLETION, EMBEDDING, Asking, Template
from kukri.runtime.batch.rows import BadRow, Row


def test_template() -> None:
    template = Template("{{literally}} {a} and {b c}: {a}")
    assert template.columns == ["a", "b c", "a"]
    assert template.fill({"a": "{x}", "b c": [1, "é"]}) == '{literally} {x} and [1, "é"]: {x}'
    with pytest.raises(BadRow, match="there is no column 'b c'; there are a"):
        template.fill({"a": 1})


@pytest.mark.parametrize("text", ["{", "a}", "{}", "{a{b}}"])
def test_lone_braces(text: str) -> None:
    with pytest.raises(ValueError, match="lone brace"):
        Template(text)


def test_plain_rows() -> None:
    row = Row(3, {"prompt": "Hi", "n": 1})
    request = Asking(system="Be kind.", parameters={"temperature": 0}).request(row)
    assert (request.url, request.custom_id) == (CHAT, None)
    assert request.body == {
        "temperature": 0,
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    }
    assert Asking(raw=True).request(row).body == {"prompt": "Hi"}
    assert Asking(raw=True).request(row).url == COMPLETION
    assert Asking(embed=True).request(row).url == EMBEDDING
    assert Asking(Template("<{n}>")).request(row).body["messages"][0]["content"] == "<1>"
    messages = [{"role": "user", "content": "x"}]
    assert Asking().request(Row(1, {"messages": messages})).body == {"messages": messages}
    assert (
        Asking().request(Row(1, {"messages": '[{"role": "user", "content": "x"}]'})).body["messages"]
        == messages
    )


def test_lines_of_openai() -> None:
    fields: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"temperature": 1}}
    request = Asking(parameters={"temperature": 0, "seed": 1}).request(Row(1, fields))
    assert (request.custom_id, request.body) == ("a", {"temperature": 1, "seed": 1})  # a row's own go first
    for wrong, reason in (
        ({"custom_id": None}, "needs a `custom_id`"),
        ({"body": []}, "no JSON object"),
        ({"method": "GET"}, "GET"),
        ({"url": "/v1/files"}, "/v1/files"),
        ({"body": {"stream": True}}, "stream"),
    ):
        with pytest.raises(BadRow, match=reason):
            Asking().request(Row(1, fields | wrong))


def test_rows_that_are_no_requests() -> None:
    with pytest.raises(BadRow, match="its columns are question, id"):
        Asking().request(Row(1, {"question": "x", "id": 2}))
    with pytest.raises(BadRow, match="damaged"):
        Asking().request(Row(1, {}, "damaged"))
