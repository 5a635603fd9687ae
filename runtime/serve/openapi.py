"""/openapi.json and /docs: what the server's paths take, made of the structs that check it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from ... import __version__

if TYPE_CHECKING:
    from .routes import Path

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_JSON = {"application/json": {"schema": {"type": "object"}}}
_STATUSES = {
    "400": "The request is wrong; the message says where.",
    "401": "There is no valid API key.",
    "403": "The Host or Origin header is not one of this server.",
    "404": "There is no such model or path.",
    "413": "The request is too large.",
    "503": "The model is being loaded, or too many requests wait; ask again after Retry-After.",
}

_HEAD = """<!doctype html><html lang=en><meta charset=utf-8><title>kukri: HTTP API</title>
<meta name=viewport content='width=device-width'><style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
td, th { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top }
code { font-size: .9em } details { margin: .3rem 0 } summary { cursor: pointer }
</style><h1>HTTP API</h1><p>The same for programs: <a href=openapi.json>openapi.json</a></p>
"""


def description(paths: Sequence[Path]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the paths."""
    structs = list({path.schema: None for path in paths if path.method == "POST"})
    _, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    for schema in components.values():
        schema["description"] = " ".join(str(schema.get("description", "")).split())
    found: dict[str, Any] = {}
    for path in paths:
        name = _PARAMETER.sub(r"{\1}", path.path)
        found.setdefault(name, {})[path.method.lower()] = _operation(path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kukri", "version": __version__},
        "paths": found,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(path: Path) -> dict[str, Any]:
    text = " ".join((inspect.getdoc(path.handler) or "").split())
    found: dict[str, Any] = {
        "summary": text.partition(". ")[0].rstrip("."),
        "tags": [path.group],
        "responses": {
            "200": {"description": "The answer.", "content": _JSON | {path.gives: {"schema": {}}}},
            **{status: {"description": text, "content": _JSON} for status, text in _STATUSES.items()},
        },
    }
    names = _PARAMETER.findall(path.path)
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if path.method == "POST":
        schema = {"$ref": f"#/components/schemas/{path.schema.__name__}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def page(document: dict[str, Any]) -> bytes:
    """The document for people: a page without scripts."""
    parts = [_HEAD]
    group = ""
    for name, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != group:
                group = operation["tags"][0]
                parts.append(f"<h2>{escape(group)}</h2>")
            parts.append(
                f"<details><summary><code>{method.upper()} {escape(name)}</code> "
                f"{escape(operation['summary'])}</summary>{_fields(document, operation)}</details>"
            )
    return "".join(parts).encode()


def _fields(document: dict[str, Any], operation: dict[str, Any]) -> str:
    body = operation.get("requestBody")
    if not body:
        return ""
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][name]
    required = set(schema.get("required", ()))
    rows = [
        f"<tr><td><code>{escape(field)}</code><td>{escape(_type(about))}"
        f"<td>{'required' if field in required else ''}"
        for field, about in schema.get("properties", {}).items()
    ]
    return f"<p>{escape(schema['description'])}</p><table>{''.join(rows)}</table>"


def _type(about: dict[str, Any]) -> str:
    """A field's type in a few words."""
    kinds = [
        str(each.get("type") or each.get("$ref", "").rpartition("/")[2])
        for each in about.get("anyOf", [about])
    ]
    limits = [
        f"{word} {each[key]:g}"
        for each in about.get("anyOf", [about])
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if key in each
    ]
    return " or ".join(kind for kind in kinds if kind != "null") + (f", {' '.join(limits)}" if limits else "")
