"""Which replica gets a request: one that has seen how its prompt begins, unless that has too much to do."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

LENGTH = 1024  # characters of a text that count
OVER = 1.25  # times the mean number of requests, which no replica shall have more of
ALWAYS = 4  # requests that a replica may have whatever the mean is

R = TypeVar("R", bound=Hashable)


def beginning(fields: Mapping[str, Any], length: int = LENGTH) -> str:
    """How the prompt of a request's body begins, in any of the APIs; "" if it has none.

    That is the beginning of each message up to the first one of the user: a conversation keeps it from turn
    to turn, and questions about one document have it in common, while a system prompt that everybody has does
    not send everybody to one replica.
    """
    found = [_text(fields.get(name)) for name in ("system", "instructions")]
    messages = fields.get("messages", fields.get("input"))
    if isinstance(messages, list):
        for message in messages:
            found.append(_text(message.get("content") if isinstance(message, dict) else message))
            if not isinstance(message, dict) or message.get("role") == "user":
                break
    else:
        found += [_text(messages), _text(fields.get("prompt"))]
    return "\0".join(text[:length] for text in found if text)


def _text(value: Any) -> str:
    """The text in a string, a list of parts, or a list of prompts, of which the first counts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        first = value[0]
        if isinstance(first, dict):
            return next((text for part in value if (text := _part(part))), "")
        return first if isinstance(first, str) else ""
    return ""


def _part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def ranked(prefix: str, replicas: Iterable[R]) -> list[R]:
    """Replicas by hashes of each with the prefix (rendezvous hashing, Thaler and Ravishankar 1998): the order
    is the same for others when one comes or goes."""
    digest = hashlib.blake2b(prefix.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def rank(replica: R) -> bytes:
        return hashlib.blake2b(str(replica).encode(), key=digest, digest_size=8).digest()

    return sorted(replicas, key=rank, reverse=True)


def most_requests(n_requests: int, n_replicas: int) -> float:
    """A replica that has so many requests, of all that there are, is offered others last (consistent hashing
    with bounded loads, Mirrokni et al. 2018)."""
    return max(ALWAYS, OVER * (n_requests + 1) / max(1, n_replicas))


def preferred(prefix: str, loads: Mapping[R, int]) -> list[R]:
    """Replicas in the order in which a request should be offered to them; `loads`: requests that each has.

    First those of `ranked` that have no more to do than they should, then the others, the ones with the least
    first: a prefix that many ask for is spread over as many replicas as it needs. Without a prefix only the
    loads count.
    """
    by_load = sorted(loads, key=lambda replica: loads[replica])
    if not prefix:
        return by_load
    most = most_requests(sum(loads.values()), len(loads))
    return [
        *(replica for replica in ranked(prefix, loads) if loads[replica] < most),
        *(replica for replica in by_load if loads[replica] >= most),
    ]
