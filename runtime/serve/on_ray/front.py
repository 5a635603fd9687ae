"""What clients of the cluster reach: it reads a request, and hands it to a replica that suits its prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..http.bodies import read_body
from ..http.options import ServeOptions
from ..http.problems import as_problem, body_of
from ..http.sending import encode
from .prefix import beginning

_SCOPE = (
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
)


class Front:
    """Forwards requests to the deployment `replicas`; `length` characters of a prompt's beginning count."""

    def __init__(self, replicas: Any, options: ServeOptions, length: int) -> None:
        self._answer = replicas.options(stream=True).answer
        self._options = options
        self._length = length

    async def __call__(self, request: Request) -> Response:
        scope = {name: request.scope[name] for name in _SCOPE if name in request.scope}
        try:
            body = await read_body(request.receive, self._options) if request.method == "POST" else b""
        except Exception as error:  # noqa: BLE001 - the boundary, as in an endpoint
            problem = as_problem(error)
            content = encode(body_of(problem, request.url.path))
            return Response(content, problem.status, problem.headers, media_type="application/json")
        parts = self._answer.remote(scope, body, prefix=_prefix(body, self._length))
        status, headers = await anext(parts)
        response = StreamingResponse(_until_end(parts), status)
        response.raw_headers = list(headers)
        return response


async def _until_end(parts: Any) -> AsyncIterator[bytes]:
    """The rest of an answer; the replica is told when nobody reads it any more."""
    try:
        async for part in parts:
            yield part
    finally:
        parts.cancel()


def _prefix(body: bytes, length: int) -> str:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""  # the replica says what is wrong
    return beginning(fields, length) if isinstance(fields, dict) else ""
