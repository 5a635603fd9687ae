"""What the server allows, and what it refuses before it looks at a request."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class ServeOptions:
    """Limits and access. Values out of range raise ValueError.

    - `api_keys`: a request must have one of them, as `Authorization: Bearer …` or `x-api-key`; none: open.
    - `hosts`: names that a Host header may have beside those of this machine's loopback; "*" allows all.
      A page of a stranger whose name resolves to this machine (DNS rebinding) has another one.
    - `origins`: origins of web pages beside the server's own that may read answers (CORS); "*" allows all.
    - `max_body`: bytes of a request's body. `max_prompt`: tokens of a prompt (None: the context's).
    - `max_inspect`: tokens of a text that is inspected, which takes the machine for itself; 0: none is.
    - `max_answers`: of one request (`n`), and prompts of one request.
    - `max_connections`: open at a time; more are closed at once.
    - `body_seconds`: from the head of a request to the end of its body; `head_seconds`: for its head;
      `write_seconds`: that a client may take no part of an answer; `request_seconds`: for all of it.
    - `part_seconds`: between two parts of a streamed answer where its tokens come faster than two in that
      time (`Generation.batches`), since each part takes time from the threads that compute; 0: a part has
      what is there.
    - `load_patience`: seconds that a request waits for a model that is being loaded; then it gets 503.
    - `memory`: bytes that loaded models may have together; None: as much as the machine has.
    """

    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_body: int = 8 << 20
    max_prompt: int | None = None
    max_inspect: int = 512
    max_answers: int = 64
    max_connections: int = 1024
    head_seconds: float = 20.0
    body_seconds: float = 60.0
    write_seconds: float = 60.0
    request_seconds: float = 3600.0
    part_seconds: float = 0.03
    load_patience: float = 3.0
    memory: int | None = None
    allowed_hosts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("max_body", "max_answers", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not 0 <= self.part_seconds <= 10:
            raise ValueError(f"part_seconds must be from 0 to 10, not {self.part_seconds}")
        if any(not key or not key.isascii() or key.strip() != key for key in self.api_keys):
            raise ValueError("an API key has ASCII characters without blanks around them, and is not empty")
        object.__setattr__(self, "allowed_hosts", frozenset(map(str.lower, (*LOCAL_NAMES, *self.hosts))))


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
