"""A client that costs little: one streamed completion over a connection of its own, and when its parts came.

It shares the machine with the server that it measures, so that it does no more than it must.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from urllib.parse import urlsplit

MOST_BYTES = 1 << 28  # of an answer
LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass
class Sample:
    """One request: when it was sent, when each part of its answer came, and how many tokens there were."""

    sent: float
    parts: list[float] = field(default_factory=list)  # on the same clock, in seconds
    prompt_tokens: int = 0
    new_tokens: int = 0
    error: str = ""

    @property
    def first_token(self) -> float:
        """Seconds until the first token."""
        return self.parts[0] - self.sent

    @property
    def seconds(self) -> float:
        """Seconds until the last token."""
        return self.parts[-1] - self.sent

    @property
    def per_token(self) -> float | None:
        """Mean seconds a token behind the first; None for answers of one token."""
        return (self.parts[-1] - self.parts[0]) / (self.new_tokens - 1) if self.new_tokens > 1 else None

    @property
    def between(self) -> list[float]:
        """Seconds between the parts."""
        return [after - before for before, after in zip(self.parts, self.parts[1:], strict=False)]


@dataclass(frozen=True)
class Target:
    """A server that speaks OpenAI's API."""

    url: str
    model: str | None
    api_key: str | None

    async def complete(self, prompt: str, n_new: int, seed: int) -> Sample:
        """Ask for `n_new` tokens behind a prompt. What goes wrong becomes the sample's error."""
        body = {
            "prompt": prompt,
            "max_tokens": n_new,
            "temperature": 0,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        if self.model is not None:
            body["model"] = self.model
        sample = Sample(perf_counter())
        try:
            await self._ask(json.dumps(body).encode(), sample)
        except (OSError, EOFError, ValueError) as problem:
            sample.error = f"{type(problem).__name__}: {problem}"
        if not sample.error and not (sample.parts and sample.new_tokens):
            sample.error = "the answer has no tokens"
        return sample

    async def _ask(self, body: bytes, sample: Sample) -> None:
        address = urlsplit(self.url)
        secure = address.scheme == "https"
        port = address.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        transport, received = await loop.create_connection(
            _Received, address.hostname or "", port, ssl=secure or None
        )
        try:
            key = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
            transport.write(
                f"POST {address.path.rstrip('/')}/v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\n{key}"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
                "".encode()
                + body
            )
            await received.all
        finally:
            transport.close()
        received.read(sample)


class _Received(asyncio.Protocol):
    """What a server sends, and when: it is read when the answer is complete, so that nothing is in the way of
    the server meanwhile."""

    def __init__(self) -> None:
        self.all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []
        self._times: list[float] = []
        self._ends: list[int] = []  # bytes up to the end of each piece

    def data_received(self, data: bytes) -> None:
        self._times.append(perf_counter())
        self._pieces.append(data)
        self._ends.append(len(data) + (self._ends[-1] if self._ends else 0))
        if (data.endswith(LAST_CHUNK) or self._ends[-1] > MOST_BYTES) and not self.all.done():
            self.all.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.all.done():
            self.all.set_result(None)

    def read(self, sample: Sample) -> None:
        """Note what the answer says. Raises ValueError or EOFError for one that is none."""
        content = b"".join(self._pieces)
        head, found, body = content.partition(b"\r\n\r\n")
        if not found:
            raise EOFError("the server ended the connection")
        status = head.split(b" ", 2)
        if len(status) < 2 or status[1] != b"200":
            text = body[:2000].decode("utf-8", "replace")
            sample.error = f"HTTP {b' '.join(status[1:2]).decode()}: {text:.200}"
            return
        start = len(content) - len(body)
        lines = [(start, len(content))]
        if b"chunked" in head.lower():
            lines = list(_chunks(content, start))
        left = b""
        for first, end in lines:
            events, _, left = (left + content[first:end]).rpartition(b"\n\n")
            _take(events, self._times[bisect_left(self._ends, end)], sample)


def _chunks(content: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Where the chunks of a body begin and end (RFC 9112, section 7.1)."""
    while True:
        line = content.find(b"\r\n", start)
        if line < 0:
            raise EOFError("the answer broke off")
        size = int(content[start:line].split(b";")[0], 16)
        if not size:
            return
        start = line + 2 + size
        if start > len(content):
            raise EOFError("the answer broke off")
        yield line + 2, start
        start += 2


def _take(events: bytes, now: float, sample: Sample) -> None:
    """Note server-sent events that came at a time: whether they bring text, and the usage at the end."""
    has_text = False
    for line in events.splitlines():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            sample.error = str(event["error"])[:200]
        usage = event.get("usage") or {}
        sample.prompt_tokens = usage.get("prompt_tokens", sample.prompt_tokens)
        sample.new_tokens = usage.get("completion_tokens", sample.new_tokens)
        has_text = has_text or any(choice.get("text") for choice in event.get("choices", ()))
    if has_text:
        sample.parts.append(now)
