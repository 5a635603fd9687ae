"""What is refused before a request is looked at: keys, hosts, origins, sizes, slow clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import anthropic
import httpx
import ollama
import openai
import pytest

from kukri.runtime.serve.http.guard import host_name
from kukri.runtime.serve.http.options import ServeOptions, is_loopback

from ..conftest import Served, serving

HI = [{"role": "user", "content": "Hi there"}]
BODY = {"model": "tiny", "messages": HI, "max_tokens": 1}


@pytest.fixture(scope="module")
def guarded(tiny: Path) -> Iterator[Served]:
    options = ServeOptions(
        api_keys=("first-key", "second-key"),
        hosts=("box.example",),
        origins=("https://page.example",),
        max_body=20_000,
        max_prompt=100,
        max_connections=20,
        head_seconds=0.5,
        body_seconds=0.5,
        request_seconds=30,
    )
    with serving({"tiny": tiny}, options) as running:
        yield running


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def test_a_key_is_needed(guarded: Served) -> None:
    path = "/v1/chat/completions"
    for headers in ({}, key("third-key"), {"authorization": "Basic first-key"}, key("first-key2")):
        done = guarded.post(path, BODY, headers=headers)
        assert done.status_code == 401
        assert done.json()["error"]["code"] == "invalid_api_key"
    for headers in (key("first-key"), key("second-key"), {"x-api-key": "first-key"}):
        assert guarded.post(path, BODY, headers=headers).status_code == 200
    assert guarded.get("/metrics").status_code == 401
    assert guarded.get("/v1/models").status_code == 401
    for open_path in ("/health", "/docs", "/openapi.json"):
        assert guarded.get(open_path).status_code == 200


def test_the_clients_know_a_wrong_key(guarded: Served) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=guarded.url + "/v1", api_key="x").models.list()
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=guarded.url, api_key="x").messages.count_tokens(
            model="tiny", messages=HI
        )
    with pytest.raises(ollama.ResponseError) as refused:
        ollama.Client(host=guarded.url, trust_env=False).chat("tiny", HI)
    assert refused.value.status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:99", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("192.168.0.7:8080", 200),
        ("box.example", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_hosts(guarded: Served, host: str, status: int) -> None:
    assert guarded.get("/v1/models", headers={"host": host, **key("first-key")}).status_code == status


def test_origins(guarded: Served) -> None:
    def ask(origin: str, method: str = "POST") -> httpx.Response:
        headers = {"origin": origin, **key("first-key")}
        return httpx.request(
            method, guarded.url + "/v1/chat/completions", json=BODY, headers=headers, trust_env=False
        )

    for origin in ("https://evil.example", "null", "http://localhost:1"):
        assert ask(origin).status_code == 403
        assert ask(origin, "OPTIONS").status_code == 403
    own = ask(guarded.url)
    assert own.status_code == 200
    assert "access-control-allow-origin" not in own.headers
    assert ask("https://page.example").headers["access-control-allow-origin"] == "https://page.example"
    assert ask("https://page.example", "OPTIONS").status_code == 204


def test_large_bodies(guarded: Served) -> None:
    done = guarded.post("/v1/chat/completions", content=b"x" * 20_001, headers=key("first-key"))
    assert done.status_code == 413
    done = guarded.post(  # in chunks, without a length
        "/v1/chat/completions", content=iter([b"x" * 10_000] * 3), headers=key("first-key")
    )
    assert done.status_code == 413


def test_long_prompts(guarded: Served) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 200}]}
    done = guarded.post("/v1/chat/completions", long, headers=key("first-key"))
    assert done.status_code == 400
    assert done.json()["error"]["code"] == "context_length_exceeded"


def connect(served: Served) -> socket.socket:
    address = urlsplit(served.url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def test_slow_clients(guarded: Served) -> None:
    with connect(guarded) as never_begins, connect(guarded) as never_ends:
        never_ends.sendall(
            b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nx-api-key: first-key\r\n"
            b"content-length: 9\r\n\r\n{"
        )
        assert b" 408 " in never_ends.recv(4096)
        assert never_begins.recv(4096) == b""


def test_too_many_connections(guarded: Served) -> None:
    clients = [connect(guarded) for _ in range(21)]
    try:
        time.sleep(0.1)
        assert b" 503 " in clients[-1].recv(4096)
    finally:
        for client in clients:
            client.close()


def test_a_large_head_and_what_is_no_http(guarded: Served) -> None:
    for sent in (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000, b"\x16\x03\x01" + b"\r\n\r\n"):
        with connect(guarded) as client:
            client.sendall(sent)
            assert b" 400 " in client.recv(4096)


def test_options() -> None:
    assert host_name("Localhost:80") == "localhost"
    assert host_name("[::1]:80") == "[::1]"
    assert is_loopback("127.0.0.5")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")  # noqa: S104
    assert not is_loopback("box.example")
    for wrong in ({"api_keys": ("",)}, {"api_keys": ("a b ",)}, {"max_body": 0}):
        with pytest.raises(ValueError, match=r".+"):
            ServeOptions(**wrong)
