"""Models that come and go: loaded when first asked for, out when others need the memory."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import kukri
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve import pool as pool_module
from kukri.runtime.serve.http.options import ServeOptions
from kukri.runtime.serve.http.problems import Problem
from kukri.runtime.serve.pool import ModelPool, sources

from .conftest import serving

CPU = LoadOptions(device="cpu", context=256, parallel=1)


def made(models: dict[str, Any], **more: Any) -> ModelPool:
    return ModelPool(sources(models), CPU, more.pop("patience", 60.0), **more)


def test_the_least_recently_used_makes_room(tiny: Path) -> None:
    async def run() -> None:
        pool = made(dict.fromkeys("abc", tiny), memory=2 * tiny.stat().st_size)
        for name in "aba":
            async with pool.use(name):
                pass
        async with pool.use("c"):
            loaded = {name for name, entry in pool.entries.items() if entry.model is not None}
            assert loaded == {"a", "c"}
        await pool.close()
        assert not any(entry.model for entry in pool.entries.values())

    asyncio.run(run())


def test_a_model_in_use_stays(tiny: Path) -> None:
    async def run() -> None:
        pool = made(dict.fromkeys("ab", tiny), memory=tiny.stat().st_size)
        async with pool.use("a") as first, pool.use("b"):  # more than the limit, but both are needed
            assert pool.entries["a"].model is first
        await pool.close()

    asyncio.run(run())


def test_a_loaded_model_stays_its_owners(tiny: Path) -> None:
    async def run(model: kukri.Model) -> None:
        pool = made({"mine": model})
        async with pool.use("mine") as used:
            assert used is model
        await pool.close()

    with kukri.load(tiny, device="cpu") as model:
        asyncio.run(run(model))
        assert model.answer("Hi", max_tokens=2).complete().stats.new_tokens == 2


def test_names(tiny: Path) -> None:
    pool = made({"tiny": tiny, "b": tiny})
    assert pool.find(None).name == "tiny"
    assert pool.find("b:latest").name == "b"
    assert pool.find("/somewhere/b").name == "b"
    assert pool.find("/somewhere/b.gguf").name == "b"
    for name in ("other", "/etc/passwd", "b/"):
        with pytest.raises(Problem) as refused:
            pool.find(name)
        assert refused.value.status == 404
    assert list(sources([tiny, str(tiny)])) == ["tiny"]
    with pytest.raises(ValueError, match="at least one model"):
        sources({})


def test_a_model_that_is_being_loaded(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    real = pool_module.load_model

    def slow(*args: Any, **more: Any) -> Any:
        more["progress"]("repacking weights", 1, 4)
        go.wait(30)
        return real(*args, **more)

    async def run() -> None:
        pool = made({"tiny": tiny}, patience=0.05)
        with pytest.raises(Problem) as busy:
            async with pool.use("tiny"):
                pass
        assert busy.value.status == 503
        assert busy.value.headers["retry-after"].isdigit()
        assert "repacking weights (25 %)" in str(busy.value)
        go.set()
        pool.patience = 60.0
        async with pool.use("tiny"):
            pass
        await pool.close()

    monkeypatch.setattr(pool_module, "load_model", slow)
    asyncio.run(run())


def test_a_model_that_cannot_be_loaded(tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes()[:1000])
    options = ServeOptions(load_patience=60)
    with serving({"tiny": tiny, "broken": broken}, options, CPU) as served:
        for _ in range(2):
            done = served.post(
                "/v1/chat/completions", {"model": "broken", "messages": [{"role": "user", "content": "x"}]}
            )
            assert done.status_code == 500
            assert "broken.gguf" in done.json()["error"]["message"]
            assert caplog.text.count("broken cannot be loaded: broken.gguf: ") == 1
            caplog.clear()
        assert served.post("/tokenize", {"content": "x"}).status_code == 200


def test_many_share_the_memory_of_one_context(tiny: Path) -> None:
    async def run() -> None:
        pool = ModelPool(sources({"tiny": tiny}), LoadOptions(device="cpu", context=512), 60.0)
        async with pool.use("tiny") as model:
            table = model.engine.table
            assert (table.max_sequences, table.n_pages * table.page_size) == (16, 512)
            answers = [model.answer(f"Hi {i}", temperature=0, max_tokens=60) for i in range(16)]
            texts = [answer.complete().text for answer in answers]
            assert texts == [
                model.answer(f"Hi {i}", temperature=0, max_tokens=60).complete().text for i in range(16)
            ]
        await pool.close()

    asyncio.run(run())
