"""`llm serve` in a process of its own: where it listens, who may ask, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from kukri.cli.commands.serve import size
from kukri.tests.running import LLM, failed

pytestmark = pytest.mark.slow

HI = [{"role": "user", "content": "Hi there"}]


@contextmanager
def server(environment: dict[str, str], *arguments: Any) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`llm serve` on a free port, and its address; it is killed in the end if it still runs."""
    process = subprocess.Popen(
        [*LLM, "serve", *map(str, arguments), "--port", "0", "--device", "cpu"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline().decode()
            assert line, "it ended"
            found = re.search(r"listening on (http://\S+)", line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        for _ in range(600):
            if httpx.get(found[1] + "/health", trust_env=False).status_code == 200:
                break
            time.sleep(0.05)
        yield process, found[1]
    finally:
        process.kill()
        process.wait(30)


def stream(url: str, n: int, **more: Any) -> Any:
    body = {"messages": HI, "max_tokens": n, "temperature": 0, "stream": True, **more}
    return httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=60, trust_env=False)


def test_sigterm_lets_answers_end(environment: dict[str, str], endless: Path) -> None:
    with server(environment, endless) as (process, url):
        with stream(url, 2000) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(httpx.ConnectError):
                httpx.get(url + "/health", trust_env=False)
            texts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert texts[-1]["choices"][0]["finish_reason"] == "length"
        assert process.wait(30) == 0


def test_a_second_signal_ends_it_at_once(environment: dict[str, str], endless: Path) -> None:
    with server(environment, endless) as (process, url), stream(url, 100_000) as answer:
        lines = answer.iter_lines()  # kept: the answer is closed with it
        assert next(lines).startswith("data: ")
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130


def test_a_key_from_the_environment(environment: dict[str, str], tiny: Path) -> None:
    with server({**environment, "LLM_API_KEY": "secret"}, tiny, "--parallel", 2, "--ctx", 256) as (_, url):
        assert httpx.get(url + "/v1/models", trust_env=False).status_code == 401
        headers = {"authorization": "Bearer secret"}
        models = httpx.get(url + "/v1/models", headers=headers, trust_env=False).json()["data"]
        assert [(model["id"], model["context_length"]) for model in models] == [("tiny", 256)]


def test_deterministic_answers_share_nothing(environment: dict[str, str], endless: Path) -> None:
    def ask(url: str, text: str) -> tuple[str, int]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 40, "temperature": 0}
        reply = httpx.post(url + "/v1/chat/completions", json=body, timeout=60, trust_env=False).json()
        n_cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        return reply["choices"][0]["message"]["content"], n_cached

    texts = ["the same " * 40 + str(i) for i in range(4)]
    with server(environment, endless, "--deterministic") as (_, url):
        alone = [ask(url, text) for text in texts]
        with ThreadPoolExecutor(len(texts)) as threads:
            beside = list(threads.map(partial(ask, url), texts))
    assert beside == alone
    assert [n_cached for _, n_cached in alone] == [0] * len(texts)


def test_what_is_refused(llm_inside: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    assert "--api-key" in failed(llm_inside("serve", tiny, "--host", "0.0.0.0"), 2)  # noqa: S104
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / tiny.name
    other.symlink_to(tiny)
    assert "two models" in failed(llm_inside("serve", tiny, other), 2)
    failed(llm_inside("serve", "no/such/file.gguf"), 3)
    assert "is no size" in failed(llm_inside("serve", tiny, "--memory", "much"), 2)


def test_sizes() -> None:
    assert size("24G") == 24 << 30
    assert size("1.5 gib") == 3 << 29
    assert size("1000") == 1000
