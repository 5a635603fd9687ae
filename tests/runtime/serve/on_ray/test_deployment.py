"""The application on a Ray cluster, asked over HTTP."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import kukri
from kukri import KukriError
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve import ServeOptions, ray_app

from ....ray_cluster import RayCluster

KEY = "secret"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own fields


@pytest.fixture(scope="module")
def client(ray_cluster: RayCluster, tiny: Path) -> Iterator[httpx.Client]:
    import ray
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(ray_cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        options = ServeOptions(api_keys=(KEY,), max_body=4096)
        application = ray_app(
            tiny, options, LoadOptions(context=256, parallel=16), name="little", replicas=2, processors=0.5
        )
        serve.run(application, route_prefix="/", logging_config={"enable_access_log": False})
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {KEY}"}, timeout=60
        ) as client:
            yield client
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_answers_over_http(client: httpx.Client, tiny: Path) -> None:
    body = {"prompt": "text 1", "max_tokens": 8, "temperature": 0}
    with kukri.load(tiny) as model:
        expected = "".join(model.stream(model.encode("text 1"), temperature=0, max_tokens=8))
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == expected
    assert answer.json()["model"] == "little"
    assert answer.headers["x-content-type-options"] == "nosniff"

    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    texts = [choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(texts) == expected
    assert client.get("/v1/models").json()["data"][0]["id"] == "little"

    def status(**more: Any) -> int:
        return client.post("/v1/completions", **more).status_code

    assert status(json=body, headers={"authorization": "Bearer wrong"}) == 401
    assert status(json=body, headers={"host": "evil.example"}) == 403
    assert status(json=body | {"temperature": -1}) == 400
    assert status(content=b"{") == 400
    assert status(json={"prompt": "x" * 5000}) == 413
    assert client.get("/none").status_code == 404


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_prompts_that_begin_alike_meet(client: httpx.Client) -> None:
    """Ten conversations of four turns: a later turn finds the earlier ones in its replica's cache."""

    def talk(i: int) -> list[int]:
        cached = []
        messages = [{"role": "user", "content": f"{i}: " + "and then the " * 8}]
        for _ in range(4):
            body = {"messages": messages, "max_tokens": 4, "temperature": 0}
            answer = client.post("/v1/chat/completions", json=body).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "and on"}]
        return cached

    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(talk, range(10)))
    for cached in counts:
        assert 30 < cached[1] < cached[2] < cached[3], counts


def test_without_ray(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KukriError, match=r"\[ray\]"):
        ray_app(tiny)
