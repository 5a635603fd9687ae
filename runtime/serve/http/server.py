"""The process that serves: uvicorn with limits on connections, and an end that lets answers be finished."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from .options import ServeOptions

_log = logging.getLogger(__name__)

MOST_HEADERS = 32 << 10  # bytes of the head of a request
SEND_BUFFER = 64 << 10  # bytes of an answer that the system keeps for a client that does not read


class Server(uvicorn.Server):
    """Serves an application until a signal. The first one ends it when the answers that are being written
    are complete, while no connection is accepted any more; the second one at once.

    `signal` is the first one afterwards; `on_drain` is called with the number of open connections.
    """

    def __init__(
        self, application: Starlette, options: ServeOptions, on_drain: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=_protocol(options),
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="critical",  # the guard logs requests, and endpoints their errors
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                h11_max_incomplete_event_size=MOST_HEADERS,
                backlog=1024,
            )
        )
        self.signal: int | None = None
        self._on_drain = on_drain

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while the block runs, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.signal = self.signal or sig
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_drain is not None:
            self._on_drain(len(self.server_state.tasks))
        await super().shutdown(sockets)
        if self.force_exit:  # tasks are cancelled, and models closed
            for task in list(self.server_state.tasks):
                task.cancel()
            await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
            await self.lifespan.shutdown()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address; port 0 takes a free one. Raises OSError."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, family=_family(host))
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as problem:
        listening.close()
        raise OSError(problem.errno, problem.strerror, f"{host}:{port}") from None
    return listening


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_UNSPEC


def _protocol(options: ServeOptions) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with a limit on open connections, and on the time until the first head is
    complete, which uvicorn does not have."""

    class Protocol(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.conn = _Connection(h11.SERVER, MOST_HEADERS)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if (connection := transport.get_extra_info("socket")) is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            if len(self.connections) > options.max_connections:
                transport.write(_TOO_MANY)
                transport.close()
                return
            self._waiting = self.loop.call_later(options.head_seconds, self._too_slow)

        def _too_slow(self) -> None:
            if self.cycle is None:
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
            super().connection_lost(exc)

    return Protocol


class _Connection(h11.Connection):
    """h11's, in which a part of a streamed answer takes a tenth of the time: it changes no state."""

    _chunked = False

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # it is what all of them are
        if type(event) is h11.Data and self._chunked and event.data and self.our_state is h11.SEND_BODY:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data)  # RFC 9112, section 7.1
        sent = super().send(event)
        if isinstance(event, h11.Response):
            self._chunked = sent is not None and b"\r\ntransfer-encoding: chunked\r\n" in sent.lower()
        return sent


_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: 42\r\n\r\n"
    b'{"error":{"message":"too many clients"}}\r\n'
)
