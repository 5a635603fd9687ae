"""Clients that leave, read slowly or send nonsense: nothing leaks, and nobody else notices."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.http.options import ServeOptions

from .conftest import Served, serving

HI = [{"role": "user", "content": "Hi there"}]
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def busy(endless: Path) -> Iterator[Served]:
    """A server whose answers take minutes, unless their clients leave."""
    options = ServeOptions(write_seconds=0.5, request_seconds=20)
    load = LoadOptions(device="cpu", parallel=4, context=1 << 15)
    with serving({"endless": endless}, options, load) as running:
        yield running


def send(served: Served, body: object, path: str = PATH) -> socket.socket:
    """A connection on which a request was sent."""
    address = urlsplit(served.url)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = socket.create_connection((address.hostname, address.port), timeout=30)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    client.sendall(head.encode() + raw)
    return client


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves(busy: Served, stream: bool, n: int) -> None:
    body = {"messages": HI, "stream": stream, "n": n}
    with send(busy, body) as client:
        if stream:
            assert b" 200 " in client.recv(100)
        while busy.metric("kukri_requests_running") < n:
            time.sleep(0.01)
        assert busy.metric("kukri_cache_pages_active") > 0
    busy.until_idle()
    gone = [line for line in busy.get("/metrics").text.splitlines() if 'status="gone"' in line]
    assert float(gone[0].split()[-1]) > 0


def test_clients_that_leave_while_they_wait(busy: Served) -> None:
    clients = [send(busy, {"messages": HI}) for _ in range(12)]
    while busy.metric("kukri_requests_waiting") < 8:
        time.sleep(0.01)
    for client in clients:
        client.close()
    busy.until_idle()


def test_a_client_that_does_not_read(busy: Served) -> None:
    """Its answer is given up as soon as the buffers between are full for a while."""
    body = {"messages": HI, "stream": True, "logprobs": True, "top_logprobs": 20}
    with send(busy, body) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        while busy.metric("kukri_requests_running") < 1:
            time.sleep(0.01)
        busy.until_idle()


def test_nobody_else_notices(served: Served, greedy: Callable[[str, int], str]) -> None:
    """Random disconnects, malformed bodies and slow readers, beside requests whose answers are known."""
    rng = random.Random(0)
    wanted = {text: greedy(text, 24) for text in ("Hi there", "the sun", "x" * 70)}

    def well_behaved(text: str) -> str:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 24,
            "temperature": 0,
        }
        return str(served.post(PATH, body).json()["choices"][0]["message"]["content"])

    def leaves(delay: float) -> None:
        with send(served, {"model": "tiny", "messages": HI, "stream": True, "max_tokens": 400}):
            time.sleep(delay)

    def is_wrong(raw: bytes) -> None:
        with send(served, raw) as client:
            assert client.recv(100).startswith(b"HTTP/1.1 4")

    def is_slow(_: object) -> None:
        with send(served, {"model": "tiny", "messages": HI, "stream": True, "max_tokens": 40}) as client:
            while client.recv(300):
                time.sleep(0.001)

    jobs: list[tuple[Callable[..., object], object]] = []
    for i in range(40):
        jobs.append((leaves, rng.random() * 0.05))
        jobs.append((is_wrong, rng.randbytes(rng.randrange(200))))
        if i % 6 == 0:
            jobs.append((is_slow, None))
        if i % 2 == 0:
            jobs.append((well_behaved, rng.choice(list(wanted))))
    rng.shuffle(jobs)
    with ThreadPoolExecutor(12) as pool:
        done = [(job, argument, pool.submit(job, argument)) for job, argument in jobs]
    for job, argument, future in done:
        found = future.result()
        if job is well_behaved:
            assert found == wanted[str(argument)]
    served.until_idle()


def test_an_answer_that_takes_too_long(endless: Path) -> None:
    options = ServeOptions(request_seconds=0.1)
    with serving({"endless": endless}, options, LoadOptions(device="cpu", context=4096)) as running:
        done = running.post(PATH, {"messages": HI})
        assert done.status_code == 504
        assert done.json()["error"]["code"] == "timeout"
        with httpx.stream("POST", running.url + PATH, json={"messages": HI, "stream": True}) as answer:
            events = [line for line in answer.iter_lines() if line]
        assert '"timeout"' in events[-1]
        running.until_idle()
