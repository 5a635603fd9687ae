"""A server on a port of its own, with tiny models, as long as the tests of this folder run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.application import app
from kukri.runtime.serve.http.options import ServeOptions
from kukri.runtime.serve.http.server import Server, listen
from kukri.tests.tiny_model import write_tiny_model


@dataclass(frozen=True)
class Served:
    """A running server; `pool` is its models, for a look inside."""

    url: str
    pool: Any

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, trust_env=False, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is not None:
            more["json"] = body
        return httpx.post(self.url + path, timeout=60, trust_env=False, **more)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.partition("{")[0].split()[0] == name)

    def until_idle(self) -> None:
        """Wait until no sequence runs or waits, and none holds pages."""
        names = ("kukri_requests_running", "kukri_requests_waiting", "kukri_cache_pages_active")
        for _ in range(500):
            left = {name: self.metric(name) for name in names}
            if not any(left.values()):
                return
            time.sleep(0.02)
        raise AssertionError(f"still busy: {left}")


@contextmanager
def serving(
    models: Mapping[str, Path],
    options: ServeOptions | None = None,
    load: LoadOptions | None = None,
    **more: Any,
) -> Iterator[Served]:
    """Serve `models` in a thread while the block runs."""
    options = options or ServeOptions()
    listening = listen("127.0.0.1", 0)
    application = app(models, options, load or LoadOptions(device="cpu"), **more)
    server = Server(application, options)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread.start()
    served = Served(url, application.state.pool)
    try:
        for _ in range(600):
            if server.started and served.get("/health").status_code == 200:
                break
            time.sleep(0.05)
        yield served
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a model that never stops by itself ("tiny") and one that says nothing ("silent")."""
    folder = tmp_path_factory.mktemp("serve")
    models = {
        "tiny": write_tiny_model(folder / "tiny.gguf", context=4096),
        "silent": write_tiny_model(folder / "silent.gguf", silent=True, name="silent"),
    }
    with serving(models, load=LoadOptions(device="cpu", parallel=4)) as running:
        yield running


Serve = Callable[..., Any]


@pytest.fixture(scope="session")
def greedy(served: Served) -> Callable[[str, int], str]:
    """greedy(text, n) → the tiny model's greedy answer of n tokens to a user's text, from the library."""

    def answer(text: str, n: int) -> str:
        model = served.pool.entries["tiny"].model
        return model.answer(text, temperature=0, max_tokens=n).complete().text

    return answer
