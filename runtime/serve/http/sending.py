"""Answers on their way to a client: JSON at once, or a stream of parts with nothing kept back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
encode = msgspec.json.Encoder().encode

PING_SECONDS = 15.0  # without a part of the answer, after which a comment says that the connection lives


@dataclass(frozen=True)
class Stream:
    """A body that comes in parts. `ping` is sent while none comes for a while, so that proxies between do
    not give up; `on_error` makes the last part of an error that comes up when the answer has begun."""

    parts: AsyncIterator[bytes]
    on_error: Callable[[Exception], bytes]
    media_type: str = "text/event-stream; charset=utf-8"
    ping: bytes = b": ping\n\n"


def sse(data: Any, event: str | None = None) -> bytes:
    """A server-sent event with JSON data (HTML standard, section 9.2)."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Sender:
    """Sends one answer, and knows what has left."""

    def __init__(self, send: Send, write_seconds: float) -> None:
        self._send = send
        self._write_seconds = write_seconds
        self.status = 0  # of the answer; 0: none has begun
        self.n_bytes = 0
        self._sending_since: float | None = None  # a part of a stream, on the monotonic clock

    async def start(self, status: int, media_type: str, headers: Mapping[str, str]) -> None:
        self.status = status
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        lines.append((b"content-type", media_type.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": lines})

    async def body(self, part: bytes, more: bool) -> None:
        """Send a part. Raises TimeoutError if the client does not take it."""
        self.n_bytes += len(part)
        async with asyncio.timeout(self._write_seconds):
            await self._send({"type": "http.response.body", "body": part, "more_body": more})

    async def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        await self.raw(encode(value), "application/json", status, headers)

    async def raw(
        self, body: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole answer."""
        await self.start(status, media_type, {**(headers or {}), "content-length": str(len(body))})
        await self.body(body, more=False)

    async def stream(self, stream: Stream, seconds: float) -> None:
        """Send a stream to its end, within so many seconds."""
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        await self.start(200, stream.media_type, headers)
        try:
            async with asyncio.timeout(seconds) as limit, self._watched(stream.ping, limit):
                async for part in stream.parts:
                    self.n_bytes += len(part)
                    self._sending_since = monotonic()
                    await self._send({"type": "http.response.body", "body": part, "more_body": True})
                    self._sending_since = None
        except Exception as error:  # noqa: BLE001 - the answer has begun: its end says what is wrong
            await self.body(stream.on_error(error), more=True)
        await self.body(b"", more=False)

    @asynccontextmanager
    async def _watched(self, ping: bytes, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """While the block sends parts of a stream: pings where there are none, and the end of `limit` if the
        client does not take one. A timer for each part would cost as much as all else that is done for it."""
        watching = asyncio.create_task(self._watch(ping, limit))
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self, ping: bytes, limit: asyncio.Timeout) -> None:
        before, quiet_since = self.n_bytes, monotonic()
        while True:
            await asyncio.sleep(min(PING_SECONDS, self._write_seconds) / 4)
            now = monotonic()
            stuck = self._sending_since is not None and now - self._sending_since > self._write_seconds
            if self.n_bytes != before:
                before, quiet_since = self.n_bytes, now
            elif ping and self._sending_since is None and now - quiet_since >= PING_SECONDS:
                try:
                    await self.body(ping, more=True)
                except TimeoutError:
                    stuck = True
            if stuck:
                limit.reschedule(asyncio.get_running_loop().time())
                return
