"""The description of the server, and that nothing it allows makes the server fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.http.options import ServeOptions
from kukri.runtime.serve.routes import PATHS
from kukri.tests.tiny_model import write_tiny_model

from .conftest import Served, serving

POSTS = [path.path for path in PATHS if path.method == "POST"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose answers are short: the model says nothing, or has a context of 128 tokens."""
    path = write_tiny_model(tmp_path_factory.mktemp("small") / "silent.gguf", silent=True)
    load = LoadOptions(device="cpu", context=128, parallel=4)
    with serving({"silent": path}, ServeOptions(max_answers=4, request_seconds=20), load) as running:
        yield running


@pytest.fixture(scope="module")
def document(small: Served) -> dict[str, Any]:
    return dict(small.get("/openapi.json").json())


def test_it_describes_every_path(document: dict[str, Any], small: Served) -> None:
    assert document["openapi"].startswith("3.1")
    for path in PATHS:
        name = path.path.replace(":path", "")
        operation = document["paths"][name][path.method.lower()]
        assert operation["summary"]
        if path.method == "POST":
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert reference.rpartition("/")[2] in document["components"]["schemas"]
    page = small.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/chat/completions" in page.text
    assert "<script" not in page.text


def values(schema: dict[str, Any], components: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """What a schema of the description allows."""
    if "$ref" in schema:
        return values(components[schema["$ref"].rpartition("/")[2]], components, depth)
    if "anyOf" in schema:
        return st.one_of([values(each, components, depth) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            least, most = schema.get("minimum", -10), schema.get("maximum", 300)
            return st.integers(least, max(least, most)) | st.integers(least, max(least, 1 << 70))
        case "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", -10))
            return st.floats(least, max(least, schema.get("maximum", 1e30)), allow_nan=False)
        case "string":
            return st.text(max_size=20) | st.sampled_from(["silent", "auto", "json", "none", "user", ""])
        case "array":
            return st.lists(values(schema.get("items", {}), components, depth + 1), max_size=3)
        case "object":
            known = schema.get("properties")
            if known is not None:
                required = set(schema.get("required", ()))
                fields = {name: values(each, components, depth + 1) for name, each in known.items()}
                return st.fixed_dictionaries(
                    {name: fields[name] for name in required},
                    optional={name: each for name, each in fields.items() if name not in required},
                )
            return LIKELY if depth < 3 else st.just({})
    return ANYTHING if depth < 3 else st.none()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
LIKELY = st.fixed_dictionaries(  # objects without a description of their own: messages, tools, formats
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool", "robot"]),
        "content": st.text(max_size=20) | ANYTHING,
        "type": st.sampled_from(["text", "function", "json_object", "json_schema", "message", "image"]),
        "text": ANYTHING,
        "function": st.fixed_dictionaries({}, optional={"name": st.text(max_size=5), "parameters": ANYTHING}),
        "name": st.text(max_size=5),
        "tool_calls": ANYTHING,
        "schema": ANYTHING,
        "json_schema": ANYTHING,
        "input_schema": ANYTHING,
        "65": st.floats(-5, 5),
    },
)


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTS)
def test_nothing_it_allows_makes_it_fail(small: Served, document: dict[str, Any], path: str) -> None:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    client = httpx.Client(base_url=small.url, timeout=60, trust_env=False)

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values(body, document["components"]["schemas"]))
    def ask(fields: dict[str, Any]) -> None:
        # Models with other names are not there, and most examples should come further than that.
        fields = {key: value for key, value in fields.items() if key not in ("model", "name")}
        done = client.post(path, content=json.dumps(fields).encode())
        assert done.status_code in (200, 400), done.text
        if done.headers["content-type"].startswith("application/json"):
            found = done.json()
            assert isinstance(found, dict)
        else:
            assert '"internal_error"' not in done.text
            assert "an internal error" not in done.text
        if done.status_code == 400:
            error = done.json()["error"]
            assert error if isinstance(error, str) else error["message"]

    with client:
        ask()
    small.until_idle()
