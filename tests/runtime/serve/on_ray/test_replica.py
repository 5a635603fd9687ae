"""A replica asked as Ray asks it, without Ray."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve import ServeOptions
from kukri.runtime.serve.on_ray.model_file import AnotherFile, ModelFile
from kukri.runtime.serve.on_ray.replica import Replica

from ....tiny_model import write_tiny_model

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
}


async def replica_of(path: Path) -> Replica:
    replica = Replica.__new__(Replica)
    file = ModelFile.of(str(path), path)
    await replica.__init__(file, "little", ServeOptions(), LoadOptions(context=20_000, threads=1))  # type: ignore[misc]
    return replica


def test_an_answer_and_one_that_nobody_reads(endless: Path) -> None:
    async def run() -> None:
        replica = await replica_of(endless)
        pool = replica._application.state.pool
        body = {"prompt": "text 1", "max_tokens": 4, "temperature": 0}
        parts = [part async for part in replica.answer(dict(SCOPE), json.dumps(body).encode(), "")]
        assert parts[0][0] == 200
        assert (b"content-type", b"application/json") in parts[0][1]
        assert json.loads(b"".join(parts[1:]))["usage"]["completion_tokens"] == 4

        endless_body = json.dumps(body | {"max_tokens": 19_000, "stream": True}).encode()
        answer = replica.answer(dict(SCOPE), endless_body, "")
        assert (await anext(answer))[0] == 200
        await anext(answer)
        engine = pool.find(None).model.engine
        assert engine.use().running == 1
        await answer.aclose()
        async with asyncio.timeout(20):
            while engine.use().running:
                await asyncio.sleep(0.01)
        await pool.close()

    asyncio.run(run())


def test_another_file_is_refused(tiny: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=1)
    file = ModelFile(str(other), other, ModelFile.of("tiny", tiny).digest)
    with pytest.raises(AnotherFile, match=r"other\.gguf is another file"):
        file.here()
