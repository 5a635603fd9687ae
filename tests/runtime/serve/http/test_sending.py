"""Streams on their way to a client: their parts, pings, and clients that take none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import h11
import pytest

from kukri.runtime.serve.http import sending
from kukri.runtime.serve.http.sending import Sender, Stream
from kukri.runtime.serve.http.server import _Connection


async def parts(*pauses: float) -> AsyncIterator[bytes]:
    for n, seconds in enumerate(pauses):
        await asyncio.sleep(seconds)
        yield b"%d" % n


def sent(
    stream: Stream, write_seconds: float = 60.0, stuck_at: bytes = b"", seconds: float = 60.0
) -> list[bytes]:
    """The parts that a stream sends to a client that never takes `stuck_at`."""
    found: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            if stuck_at and message["body"] == stuck_at:
                await asyncio.sleep(100)
            found.append(message["body"])

    asyncio.run(Sender(send, write_seconds).stream(stream, seconds))
    return found


def told(error: Exception) -> bytes:
    return type(error).__name__.encode()


def test_parts_and_their_end() -> None:
    assert sent(Stream(parts(0, 0, 0), told)) == [b"0", b"1", b"2", b""]


def test_pings_are_sent_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PING_SECONDS", 0.1)
    quiet = sent(Stream(parts(0, 0.5, 0), told, ping=b"ping"))
    assert quiet[0] == b"0"
    assert quiet[-3:] == [b"1", b"2", b""]
    assert 1 <= quiet.count(b"ping") <= 5
    assert b"ping" not in sent(Stream(parts(*[0.02] * 20), told, ping=b"ping"))
    assert b"ping" not in sent(Stream(parts(0.3), told, ping=b""))


@pytest.mark.parametrize("taken", [b"1", b"ping"])
def test_a_client_that_takes_nothing_ends_the_stream(taken: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PING_SECONDS", 0.1)
    stream = Stream(parts(0, 0 if taken == b"1" else 50), told, ping=b"ping")
    assert sent(stream, 0.2, stuck_at=taken) == [b"0", b"TimeoutError", b""]


def test_a_stream_that_takes_too_long() -> None:
    assert sent(Stream(parts(0, 50), told), seconds=0.1) == [b"0", b"TimeoutError", b""]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_chunks_are_those_of_h11(version: bytes) -> None:
    outputs = []
    for kind in (h11.Connection, _Connection):
        connection = kind(h11.SERVER)
        connection.receive_data(b"GET / HTTP/" + version + b"\r\nhost: x\r\n\r\n")
        assert isinstance(connection.next_event(), h11.Request)
        events = [
            h11.Response(status_code=200, headers=[(b"content-type", b"text/event-stream")]),
            *(h11.Data(data=b"x" * n) for n in (1, 300, 0, 17)),
            h11.EndOfMessage(),
        ]
        outputs.append([connection.send(event) for event in events])
        assert connection.our_state in (h11.DONE, h11.MUST_CLOSE)
    assert outputs[0] == outputs[1]


def test_lengths_are_checked_as_by_h11() -> None:
    connection = _Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    connection.next_event()
    connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"3")]))
    with pytest.raises(h11.LocalProtocolError):
        connection.send(h11.Data(data=b"more"))
