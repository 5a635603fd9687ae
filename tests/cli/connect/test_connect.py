"""`llm chat --connect` and `llm ps`: a server as the command line sees it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer

from kukri.cli.connect.client import ServerClient, ServerError
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.http.options import ServeOptions

from ...running import Run, failed
from ...runtime.serve.conftest import Served, serving


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Served]:
    load = LoadOptions(device="cpu", context=512)
    with serving({"tiny": tiny}, ServeOptions(api_keys=("secret",)), load) as running:
        yield running


def test_one_answer(llm_inside: Run, server: Served) -> None:
    model = server.pool.entries["tiny"].model
    wanted = model.answer("Hi there", temperature=0, max_tokens=12).complete().text
    flags = ("--connect", server.url, "--api-key", "secret", "-t", 0, "-n", 12, "--stats")
    done = llm_inside("chat", *flags, input=b"Hi there")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == wanted + "\n"
    assert "answer: 12 tokens" in done.stderr.decode()
    elsewhere = llm_inside("chat", *flags, input=b"Hi there", env={"LLM_MODEL": "qwen3:4b"})
    assert elsewhere.stdout == done.stdout, "the default model of this machine is none of the server's"
    biased = llm_inside("chat", *flags, "--logit-bias", "65=1000", "--stop", "no", input=b"Hi")
    assert len(set(biased.stdout.decode().strip())) == 1


def test_what_is_in_memory(llm_inside: Run, server: Served) -> None:
    done = llm_inside("ps", "--connect", server.url, "--api-key", "secret", "-o", "json")
    (model,) = json.loads(done.stdout)
    assert model == {"name": "tiny", "size": model["size"], "context": 512, "requests": 0}
    done = llm_inside("ps", "--connect", server.url + "/", env={"LLM_API_KEY": "secret"})
    assert done.stdout.decode().splitlines()[1].split()[0] == "tiny"


def test_errors(llm_inside: Run, server: Served) -> None:
    assert "no valid API key" in failed(llm_inside("ps", "--connect", server.url), 1)
    flags = ("--connect", server.url, "--api-key", "secret")
    assert "there is no model" in failed(llm_inside("chat", *flags, "-m", "other", input=b"x"), 1)
    assert "does not answer" in failed(llm_inside("ps", "--connect", "http://127.0.0.1:9"), 1)
    for url in ("ftp://x", "http://", "http://x:port"):
        failed(llm_inside("ps", "--connect", url), 2)
    failed(llm_inside("chat", *flags, "--raw", input=b"x"), 2)


def answering(body: bytes) -> HTTPServer:
    """A server that answers everything with `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    found = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    return found


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[" * 5000, b"\xff", b"{}"])
def test_strange_answers(llm_inside: Run, body: bytes) -> None:
    found = answering(body)
    try:
        url = f"http://127.0.0.1:{found.server_address[1]}"
        failed(llm_inside("ps", "--connect", url), 1)
        failed(llm_inside("chat", "--connect", url, input=b"x"), 1)
        events = list(ServerClient(url).events("/x", {})) if b"data" in body else []
        assert events == []
    finally:
        found.shutdown()
        found.server_close()


def test_events() -> None:
    found = answering(b': ping\n\ndata: {"a": 1}\n\ndata:{"a": 2}\n\ndata: [DONE]\n\ndata: {"a": 3}\n\n')
    broken = answering(b'data: {"a": 1}\n\ndata: {"error": {"message": "it broke"}}\n\n')
    try:
        client = ServerClient(f"127.0.0.1:{found.server_address[1]}/v1/")
        assert list(client.events("/x", {})) == [{"a": 1}, {"a": 2}]
        with pytest.raises(ServerError, match="it broke"):
            list(ServerClient(f"http://127.0.0.1:{broken.server_address[1]}").events("/x", {}))
    finally:
        for each in (found, broken):
            each.shutdown()
            each.server_close()
    with pytest.raises(typer.BadParameter):
        ServerClient("file:///etc/passwd")
