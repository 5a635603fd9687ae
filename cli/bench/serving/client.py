"""A client that costs little: one streamed completion over a connection of its own, and when its parts came.

It shares the machine with the server that it measures, so that it does no more than it must.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from time import perf_counter
from urllib.parse import urlsplit

MOST_LINE = 1 << 20


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
        reader, writer = await asyncio.open_connection(
            address.hostname, port, ssl=secure or None, limit=MOST_LINE
        )
        try:
            key = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
            writer.write(
                f"POST {address.path.rstrip('/')}/v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\n{key}"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
                "".encode()
                + body
            )
            await writer.drain()
            status = (await reader.readline()).split(b" ", 2)
            head = await reader.readuntil(b"\r\n\r\n")
            if len(status) < 2 or status[1] != b"200":
                text = (await reader.read(2000)).decode("utf-8", "replace")
                sample.error = f"HTTP {b' '.join(status[1:2]).decode()}: {text:.200}"
            elif b"chunked" in head.lower():
                await _read_chunks(reader, sample)
            else:
                await _read_lines(reader, sample)
        finally:
            writer.close()


async def _read_chunks(reader: asyncio.StreamReader, sample: Sample) -> None:
    """Read a chunked body (RFC 9112, section 7.1)."""
    left = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        chunk = (await reader.readexactly(size + 2))[:-2]
        events, _, left = (left + chunk).rpartition(b"\n\n")
        _take(events, sample)


async def _read_lines(reader: asyncio.StreamReader, sample: Sample) -> None:
    while line := await reader.readline():
        _take(line, sample)


def _take(events: bytes, sample: Sample) -> None:
    """Note the time of server-sent events that bring text, and the usage at the end."""
    now, has_text = perf_counter(), False
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
