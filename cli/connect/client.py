"""Requests to a server of this package, or another one that speaks OpenAI's API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import typer

from ... import KukriError
from ...untrusted import parse_json

DEFAULT_URL = "http://127.0.0.1:8080"
SECONDS = 600  # without any part of an answer
MOST_BYTES = 32 << 20  # of an answer that is not streamed
MOST_LINE = 4 << 20  # bytes of an event
MOST_MARKS = 1 << 20


class ServerError(KukriError, RuntimeError):
    """The server does not answer, or says why it does not."""


class ServerClient:
    """The server at `url`. A usage error for what is no address."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        address = urlsplit(url if "://" in url else f"http://{url}")
        try:
            self._host, self._port = address.hostname or "", address.port
        except ValueError:
            self._host = ""
        if address.scheme not in ("http", "https") or not self._host:
            raise typer.BadParameter(f"{url!r} is no address such as {DEFAULT_URL}", param_hint="--connect")
        self._secure = address.scheme == "https"
        self._path = address.path.rstrip("/").removesuffix("/v1")
        self._api_key = api_key

    def get(self, path: str) -> Any:
        """The JSON value of a path. Raises ServerError."""
        connection, answer = self._ask("GET", path, None)
        try:
            return _value(answer.read(MOST_BYTES))
        except (OSError, http.client.HTTPException) as problem:
            raise self._broken(problem) from None
        finally:
            connection.close()

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The data of the server-sent events that a request gives, until "[DONE]". Raises ServerError."""
        connection, answer = self._ask("POST", path, body)
        try:
            while line := answer.readline(MOST_LINE):
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or not data:
                    continue
                if data == b"[DONE]":
                    return
                value = _value(data)
                if isinstance(value, dict) and "error" in value:
                    raise ServerError(_message(value, "the answer broke off"))
                yield value
        except (OSError, http.client.HTTPException) as problem:
            raise self._broken(problem) from None
        finally:
            connection.close()

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=SECONDS)
        headers = {"content-type": "application/json"}
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        try:
            connection.request(method, self._path + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status == 200:
                return connection, answer
            text = answer.read(MOST_BYTES)
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            raise self._broken(problem) from None
        connection.close()
        try:
            value = _value(text)
        except ServerError:
            value = None
        raise ServerError(f"{self.url}: {_message(value, f'HTTP status {answer.status}')}")

    def _broken(self, problem: Exception) -> ServerError:
        why = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        return ServerError(f"{self.url} does not answer: {why} (llm serve starts a server)")


def _value(raw: bytes) -> Any:
    return parse_json(raw, "the server's answer", MOST_MARKS, ServerError)


def _message(value: Any, otherwise: str) -> str:
    """The message of an error in any of the shapes that servers have."""
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else otherwise
