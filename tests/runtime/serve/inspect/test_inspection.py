"""The paths below /inspect: they tell what the library does, within limits, to those who have a key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.inspection.data import Spelled
from kukri.runtime.inspection.embeddings import embedding_table, neighbours
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.http.options import ServeOptions
from kukri.tests.tiny_model import write_tiny_model

from ..conftest import Served, serving

TEXT = "Hi the in"


@pytest.fixture
def model(served: Served) -> Any:
    assert served.post("/tokenize", {"model": "tiny", "content": "a"}).status_code == 200  # it is loaded
    return served.pool.entries["tiny"].model


def told(served: Served, path: str, **body: Any) -> dict[str, Any]:
    answer = served.post(f"/inspect/{path}", {"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_inspection_is_the_librarys(served: Served, model: Any) -> None:
    found = told(served, "prompt", prompt=TEXT, max_tokens=5, top=4)
    ids = [token["id"] for token in found["tokens"]]
    prompt = model.encode(TEXT)
    assert ids == [*prompt, *model.generate(prompt, temperature=0, max_tokens=5)]
    assert (found["n_prompt"], found["finish_reason"]) == (len(prompt), "length")
    expected = model.inspect(ids, top=4, lens=True).data(model.tokenizer)
    assert {name: found[name] for name in expected} == expected
    timing = found["timing"]
    assert (timing["prompt_tokens"], timing["new_tokens"], timing["decode_tokens"]) == (len(prompt), 5, 4)
    assert timing["cached_tokens"] + timing["prefilled_tokens"] == len(prompt)
    assert timing["decode_seconds"] > 0
    assert timing["bytes_per_step"] >= model.n_bytes // 2
    assert found["merges"] == model.tokenizer.merge_steps(TEXT)
    assert told(served, "prompt", ids=ids, top=4)["next"] == expected["next"]
    chat = told(served, "prompt", messages=[{"role": "user", "content": TEXT}], lens=False)
    assert [token["id"] for token in chat["tokens"]] == model.encode_chat(TEXT)
    assert chat["lens"] is None


def test_attention(served: Served, model: Any) -> None:
    ids = model.encode(TEXT)
    (found,) = told(served, "attention", ids=ids, layers=[1], heads=[0, 3], rows=[2, 4])["attention"]
    expected = model.inspect(ids, attention=True).attention[1].weights[[0, 3]][:, [2, 4]]
    np.testing.assert_allclose(found["weights"], expected, atol=1e-4)
    assert (found["layer"], found["heads"], found["rows"]) == (1, [0, 3], [2, 4])


def test_what_follows(served: Served, model: Any) -> None:
    ids = model.encode(TEXT)
    found = told(served, "next", ids=ids, n=20)["top"]
    logits = model.logits(ids)[-1].astype(float)
    logits -= np.log(np.exp(logits).sum())
    assert [token["id"] for token in found] == np.argsort(-logits, kind="stable")[:20].tolist()
    np.testing.assert_allclose([token["logprob"] for token in found], np.sort(logits)[::-1][:20], atol=0.02)
    everything = told(served, "next", ids=ids, n=1000)["top"]
    assert sum(np.exp(token["logprob"]) for token in everything) == pytest.approx(1)


def test_near_beams_and_the_model(served: Served, model: Any) -> None:
    ids = model.encode(TEXT)
    near = told(served, "near", ids=ids, n=2)["near"]
    table = embedding_table(model.engine.machine.program)
    expected = neighbours(table, list(dict.fromkeys(ids)), 2, model.tokenizer.vocab_size)
    assert [[token["id"] for token in each["tokens"]] for each in near] == expected.ids.tolist()
    assert near[0]["text"] == Spelled(model.tokenizer).token(ids[0])["text"]
    ends = told(served, "beams", ids=ids, k=3, max_tokens=4)["ends"]
    found = [[token["id"] for token in end["tokens"]] for end in ends]
    assert found == [beam.ids for beam in model.engine.beams(ids, 3, SamplingParams(max_tokens=4))]
    about = told(served, "model")
    assert (about["layers"], about["heads"], about["sizes"]["kv_per_token"]["f16"]) == (2, 4, 256)
    assert len(about["rope"][0]["inv_freq"]) == 8


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("prompt", {}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": "a", "ids": [1]}),
        ("prompt", {"ids": [265]}),
        ("prompt", {"ids": [-1]}),
        ("prompt", {"prompt": "a" * 600}),
        ("prompt", {"prompt": "a", "max_tokens": 129}),
        ("prompt", {"prompt": "a", "top": 51}),
        ("prompt", {"messages": [5]}),
        ("attention", {"prompt": "a", "layers": [2]}),
        ("attention", {"prompt": "a", "heads": [4]}),
        ("attention", {"prompt": "a", "rows": [1]}),
        ("attention", {"prompt": "a" * 500, "layers": [0] * 9}),
        ("next", {"prompt": "a", "n": 1001}),
        ("near", {"prompt": "a", "n": 21}),
        ("beams", {"prompt": "a", "k": 9}),
        ("beams", {"prompt": "a", "max_tokens": 33}),
    ],
)
def test_wrong_requests(served: Served, model: Any, path: str, body: dict[str, Any]) -> None:
    answer = served.post(f"/inspect/{path}", {"model": "tiny", **body})
    assert answer.status_code == 400, answer.text[:300]
    message = answer.json()["error"]["message"]
    assert message
    assert "\n" not in message


def test_others_go_on_while_something_is_inspected(served: Served, model: Any) -> None:
    """An inspection empties the cache: sequences that run begin anew, with the tokens that they have."""

    async def both() -> tuple[Any, ...]:
        async with httpx.AsyncClient(base_url=served.url, timeout=60, trust_env=False) as client:
            body = {"model": "tiny", "prompt": "abc", "max_tokens": 60, "temperature": 0}
            inspected = {"model": "tiny", "prompt": TEXT}
            return await asyncio.gather(
                client.post("/v1/completions", json=body),
                *(client.post("/inspect/prompt", json=inspected) for _ in range(4)),
            )

    written, *seen = asyncio.run(both())
    alone = model.tokenizer.decode(list(model.generate(model.encode("abc"), temperature=0, max_tokens=60)))
    assert written.json()["choices"][0]["text"] == alone
    assert len({answer.text for answer in seen}) == 1
    served.until_idle()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = write_tiny_model(tmp_path_factory.mktemp("guarded") / "tiny.gguf")
    options = ServeOptions(api_keys=("secret",), max_inspect=0)
    with serving({"tiny": path}, options, LoadOptions(device="cpu")) as running:
        yield running


@pytest.mark.parametrize("path", ["prompt", "attention", "next", "near", "beams", "model", "timeline"])
def test_a_key_is_needed_and_it_can_be_off(guarded: Served, path: str) -> None:
    assert guarded.post(f"/inspect/{path}", {"prompt": "a"}).status_code == 401
    key = {"authorization": "Bearer secret"}
    allowed = guarded.post(f"/inspect/{path}", {"prompt": "a"}, headers=key)
    assert allowed.status_code == (200 if path == "timeline" else 403)
    assert guarded.get("/inspect").status_code == 200  # the page says nothing about anybody


def test_a_model_that_makes_vectors_is_not_inspected(embedding_model: Any) -> None:
    with serving({"bert": embedding_model("bert")}, load=LoadOptions(device="cpu")) as vectors:
        for path in ("prompt", "attention", "next", "beams"):
            answer = vectors.post(f"/inspect/{path}", {"prompt": "a b"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_model")
        near = vectors.post("/inspect/near", {"prompt": "a b"})
        assert near.json()["near"]
