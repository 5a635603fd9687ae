"""POST /inspect/timeline."""

from __future__ import annotations

from ..conftest import Served


def test_steps_of_the_batch(served: Served) -> None:
    first = served.post("/inspect/timeline", {"model": "tiny"}).json()
    since = max((step["number"] for step in first["steps"]), default=-1)
    served.post("/v1/completions", {"model": "tiny", "prompt": "zebra", "max_tokens": 6, "temperature": 0})
    told = served.post("/inspect/timeline", {"model": "tiny", "since": since}).json()
    parts = [part for step in told["steps"] for part in step["parts"]]
    assert parts[0]["kind"] == "prefill"
    assert {part["kind"] for part in parts[1:]} == {"decode"}
    assert sum(part["rows"] - part["drafted"] + part["right"] for part in parts[1:]) == 5
    assert told["pages"] >= told["free_pages"]
    assert all(0 < step["start"] < told["now"] for step in told["steps"])
    assert "zebra" not in str(told)


def test_wrong_requests(served: Served) -> None:
    assert served.post("/inspect/timeline", {"model": "none"}).status_code == 404
    assert served.post("/inspect/timeline", {"since": "x"}).status_code == 400
    assert served.get("/inspect/timeline").status_code == 405
