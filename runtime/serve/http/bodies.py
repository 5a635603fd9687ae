"""Bodies of requests: read within limits, parsed, and checked against a schema."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar

import msgspec

from .... import KukriError
from .options import ServeOptions
from .problems import Problem

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
T = TypeVar("T")

_WHERE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")


class ClientGone(KukriError):
    """The client has left before its request was complete."""


async def read_body(receive: Receive, options: ServeOptions) -> bytes:
    """The body of a request. Raises Problem for one that is too large or too slow, and ClientGone."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(options.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > options.max_body:
                    raise too_large(options)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(408, "the request's body did not arrive in time", code="timeout") from None


def too_large(options: ServeOptions) -> Problem:
    return Problem(413, f"the request has more than {options.max_body} bytes", code="request_too_large")


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body; Problem 400 if it is none."""
    try:
        fields = msgspec.json.decode(raw or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise Problem(400, "the body must be a JSON object", code="invalid_json")
    return fields


def checked(schema: type[T], fields: Mapping[str, Any]) -> T:
    """`fields` as the struct `schema`; Problem 400 names the field that is wrong. Others are ignored."""
    try:
        return msgspec.convert(fields, schema)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _WHERE.search(text)
        param = found[1] if found else None
        message = _WHERE.sub("", text)
        raise Problem(400, f"{param}: {message}" if param else message, param, "invalid_value") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", code="invalid_json") from None


def refuse(fields: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]]) -> None:
    """Problem 400 for a field that would change the answer and that this server does not have.

    `refused` has for each such name the values that change nothing; null never does.
    """
    for name, harmless in refused.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            raise Problem(400, f"{name} is not supported by this server", name, "unsupported_parameter")
