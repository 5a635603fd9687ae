"""Who may ask: Host, Origin and API key are checked before anything else of a request is looked at."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from ..metrics import Metrics
from .bodies import Receive, too_large
from .options import ServeOptions
from .problems import Problem, body_of
from .sending import Send, Sender

_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = {
    "/",
    "/inspect",
    "/health",
    "/docs",
    "/openapi.json",
    "/favicon.ico",
}  # say nothing about anybody
_WATCHED = {"/health", "/metrics"}  # asked for all the time, so that the log leaves them out
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]


class Guard:
    """ASGI middleware around the whole application; it also counts and logs requests, without their texts.

    - A Host header must name this machine's loopback, an address in numbers, or what the options allow: a
      stranger's page whose name resolves to this machine (DNS rebinding) has a name of its own there.
    - A request with an Origin comes from a web page: it must be one of this server's own pages, or of an
      origin that the options allow. No other page may read an answer, or cause one.
    - The API key is compared in constant time.
    """

    def __init__(self, app: App, options: ServeOptions, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app = app
        self._options = options
        self._metrics = metrics
        self._paths = paths  # that are named in metrics; others are "other"
        self._keys = [hashlib.sha256(key.encode()).digest() for key in options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return
        started = monotonic()
        headers = _headers(scope)
        origin = headers.get("origin")
        extra = list(_HEADERS)
        status = 0

        async def send_on(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            problem = self._problem(scope, headers, origin)
            if problem is None and origin is not None and self._foreign(headers, origin):
                extra += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
                if scope["method"] == "OPTIONS":
                    await _preflight(send_on)
                    return
            if problem is not None:
                sender = Sender(send_on, self._options.write_seconds)
                await sender.json(body_of(problem, scope["path"]), problem.status, problem.headers)
                return
            await self._app(scope, receive, send_on)
        finally:
            self._note(scope, status, monotonic() - started)

    def _problem(self, scope: Scope, headers: dict[str, str], origin: str | None) -> Problem | None:
        """Why a request is refused; None if it is not."""
        host = host_name(headers.get("host", ""))
        if not self._is_allowed_host(host):
            return Problem(
                403, f"this server is not called {host!r:.80} (see --allow-host)", code="wrong_host"
            )
        if origin is not None and self._foreign(headers, origin):
            if "*" not in self._options.origins and origin not in self._options.origins:
                return Problem(403, f"pages of {origin:.80} may not ask this server", code="wrong_origin")
            if scope["method"] == "OPTIONS":
                return None
        if self._keys and scope["path"] not in OPEN_PATHS and not self._has_key(headers):
            return Problem(
                401, "the request has no valid API key", code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._options.max_body:
            return too_large(self._options)
        return None

    def _is_allowed_host(self, host: str) -> bool:
        allowed = self._options.allowed_hosts
        return host in allowed or "*" in allowed or _is_address(host)

    @staticmethod
    def _foreign(headers: dict[str, str], origin: str) -> bool:
        """Whether a page is not one of this server's own."""
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()

    def _has_key(self, headers: dict[str, str]) -> bool:
        given = headers.get("x-api-key", "")
        kind, _, key = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            given = key.strip()
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._keys) > 0  # all are compared

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        call = scope.get("kukri.call")
        gone = call is not None and call.gone
        self._metrics.requests.labels(path, "gone" if gone else str(status)).inc()
        self._metrics.request_seconds.labels(path).observe(seconds)
        tokens = f", {call.n_prompt} + {call.n_new} tokens" if call is not None and call.n_prompt else ""
        left = ", the client left" if gone else ""
        level = logging.DEBUG if path in _WATCHED else logging.INFO
        _log.log(level, "%s %s %s, %.3f s%s%s", scope["method"], path, status or "-", seconds, tokens, left)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def host_name(host: str) -> str:
    """The name of a Host header, without the port, in small letters."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


async def _preflight(send: Send) -> None:
    """The answer to a browser that asks whether a page may ask (Fetch standard, CORS-preflight)."""
    headers = [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", b"*, authorization"),
        (b"access-control-max-age", b"600"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
