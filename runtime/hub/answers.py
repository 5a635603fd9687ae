"""Answers of a server that is not trusted: whatever it sends, an answer ends in bounded time and memory, and
the token for the Hub goes to the Hub only.

Requests go through huggingface-hub's HTTP client (httpx), which knows proxies and certificates. Its time-outs
are for a single read, so that a byte now and then keeps an answer alive for ever; and it would read the body
of an error or of a redirect to its end, however long that is. Hence the limits here.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from .errors import StoreError, Unreachable

MOST_REDIRECTS = 8  # one after another
_TICK = 0.25  # seconds between two looks at a body's progress


class Refused(Unreachable):
    """The server answers with an HTTP error. `code` is the Hub's name of it ("GatedRepo"), or ""."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.code = headers.get("X-Error-Code", "")
        wrong_token = headers.get("X-Error-Message") == "Invalid credentials in Authorization header"
        if status == 401 and not self.code and not wrong_token:
            self.code = "RepoNotFound"  # the Hub does not tell strangers whether there is such a repository


class TooSlow(Unreachable):
    """An answer was not there in time."""


@contextmanager
def ask(
    method: str, url: str, headers: Mapping[str, str], timeout: float, seconds: float, enough: str = ""
) -> Iterator[Any]:
    """Send a request, follow redirects, and give the answer (an httpx.Response) with its body still unread.

    `timeout` is for connecting and for a single read, `seconds` for all until the body begins. A redirect
    to another origin is followed without `Authorization`; one that has the header `enough` is the answer
    itself, since the Hub states there what it knows about a file that another host has. Raises Refused for
    an HTTP error, Unreachable for a redirect that is not followed, TooSlow, or huggingface-hub's HTTPError.
    """
    from huggingface_hub.utils import get_session

    client = get_session()
    end = time.monotonic() + seconds
    request = client.build_request(method, url, headers=headers, timeout=timeout)
    for _ in range(MOST_REDIRECTS + 1):
        response = _begin(client, request, end - time.monotonic())
        try:
            if 200 <= response.status_code < 300:
                yield response
                return
            if not response.has_redirect_location:
                raise Refused(response.status_code, response.headers)
            target = _target(response)
            if _origin(target) != _origin(request.url):
                if enough and enough in response.headers:
                    yield response
                    return
                headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        finally:
            response.close()
        request = client.build_request(method, target, headers=headers, timeout=timeout)
    raise Unreachable(f"the Hub redirects more than {MOST_REDIRECTS} times")


def _begin(client: Any, request: Any, seconds: float) -> Any:
    """The answer to `request`, without its body; TooSlow if it has not begun after `seconds`.

    A thread waits for it, because nothing else ends the reading of a header that comes byte by byte.
    """
    outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()
    late = threading.Event()

    def send() -> None:
        try:
            response = client.send(request, stream=True, follow_redirects=False)
            if request.method == "HEAD":
                response.read()  # nothing, but then the connection can be used again
        except BaseException as problem:  # noqa: BLE001 - raised in the thread that waits for it
            outcome.put(problem)
            return
        outcome.put(response)
        if late.is_set():
            response.close()

    threading.Thread(target=send, daemon=True).start()
    try:
        result = outcome.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        late.set()
        raise TooSlow("no answer in time") from None
    if isinstance(result, ValueError):  # of Python's own, for names of hosts that there cannot be
        raise Unreachable("the Hub redirects to what is no address")
    if isinstance(result, BaseException):
        raise result
    return result


def _target(response: Any) -> Any:
    """Where a redirect leads, as an httpx.URL. Raises Unreachable if that is no web address, or none that is
    as safe as the one before."""
    following = response.next_request
    if following is None:
        raise Unreachable("the Hub redirects to what is no address")
    url = following.url
    if url.scheme not in ("http", "https") or (response.url.scheme == "https" and url.scheme == "http"):
        raise Unreachable(
            f"the Hub redirects from {response.url.scheme} to {url.scheme[:20]!r}, which is refused"
        )
    if url.userinfo:
        raise Unreachable("the Hub redirects to an address with a password, which is refused")
    return url


def _origin(url: Any) -> tuple[str, str, int]:
    """Scheme, host and port of an httpx.URL."""
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme, 0)


@contextmanager
def hurried(response: Any, is_late: Callable[[], bool]) -> Iterator[None]:
    """While the body of `response` is read: break the connection once `is_late()`, which another thread asks
    every _TICK seconds, and raise TooSlow then."""
    from huggingface_hub.errors import HTTPError

    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_TICK):
            if is_late():
                late.set()
                _hang_up(response)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except HTTPError:
        if not late.is_set():
            raise
    finally:
        done.set()
    if late.is_set():
        raise TooSlow("too slow")


def _hang_up(response: Any) -> None:
    """Break the connection of `response`, which ends a read of another thread."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if isinstance(connection, socket.socket):
        with suppress(OSError):  # it is broken already
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # not SSLSocket's, which ends its encryption


def read_body(response: Any, most_bytes: int, seconds: float) -> bytes:
    """The body of an answer that must be plain bytes. Raises StoreError if it is compressed or longer than
    `most_bytes`, TooSlow if it takes longer than `seconds`, or huggingface-hub's HTTPError."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise StoreError("the Hub's answer is compressed, which it was not asked for")
    end = time.monotonic() + seconds
    body = bytearray()
    with hurried(response, lambda: time.monotonic() > end):
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > most_bytes:
                raise StoreError(f"the Hub's answer is longer than {most_bytes} bytes")
    return bytes(body)
