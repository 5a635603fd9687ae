"""`llm embed`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri import load

from ...running import failed


@pytest.fixture(scope="module")
def model(embedding_model: Callable[[str], Path]) -> Path:
    return embedding_model("qwen3-embedding")


@pytest.fixture(scope="module")
def expected(model: Path) -> np.ndarray:
    return np.load(model / "cases.npz")["vectors"]


def texts_of(model: Path) -> list[str]:
    return [str(text) for text in np.load(model / "cases.npz")["texts"]]


def test_arguments(llm_inside: Callable, model: Path, expected: np.ndarray) -> None:
    done = llm_inside("embed", "-m", model, "--device", "cpu", *texts_of(model))
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose([line["embedding"] for line in lines], expected, atol=2e-5)


def test_json_lines(llm_inside: Callable, model: Path, expected: np.ndarray, tmp_path: Path) -> None:
    first, second, third, *_ = texts_of(model)
    rows = [json.dumps({"id": "a", "text": first}), json.dumps(second), "", json.dumps({"input": third})]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    done = llm_inside("embed", "-m", model, "-f", tmp_path / "texts.jsonl", "--dimensions", "8")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["index"], line.get("id")) for line in lines] == [(0, "a"), (1, None), (2, None)]
    cut = expected[:3, :8]
    cut = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose([line["embedding"] for line in lines], cut, atol=2e-5)


def test_lines_as_an_array(llm_inside: Callable, model: Path, expected: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(texts_of(model)) + "\n")
    done = llm_inside("embed", "-m", model, "-f", tmp_path / "texts.txt", "-o", "npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(io.BytesIO(done.stdout)), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--prompt", "nope"], 2, "it has document, query"),
        (["--pooling", "nope"], 2, "unknown pooling"),
        (["--dimensions", "33"], 2, "32 dimensions"),
        (["-c", "3"], 4, "text 1 ('hello') has 5 tokens, but the model takes 3"),
        (["--file", "missing.txt"], 2, "missing.txt"),
    ],
)
def test_errors(llm_inside: Callable, model: Path, flags: list[str], code: int, words: str) -> None:
    done = llm_inside("embed", "-m", model, "--device", "cpu", "hello", *flags)
    assert words in failed(done, code)


def test_truncated(llm_inside: Callable, model: Path) -> None:
    done = llm_inside("embed", "-m", model, "hello", "-c", "3", "--truncate")
    with load(model, device="cpu", task="embed", context=3) as loaded:
        vector = loaded.embed("hello", truncate=True)[0]
        np.testing.assert_allclose(json.loads(done.stdout)["embedding"], vector, atol=1e-6)


def test_a_model_that_writes_text(llm_inside: Callable, tiny: Path) -> None:
    done = llm_inside("embed", "-m", tiny, "--device", "cpu", "hello", "a", "--pooling", "mean")
    vectors = np.array([json.loads(line)["embedding"] for line in done.stdout.splitlines()])
    assert vectors.shape == (2, 64)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_reranked(llm_inside: Callable, embedding_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = embedding_model("bge-reranker")
    cases = np.load(folder / "cases.npz")
    query = str(cases["pairs"][0][0])
    documents = [str(document) for first, document in cases["pairs"] if first == query]
    (tmp_path / "documents.txt").write_text("\n".join(documents))
    command = ("rerank", "-m", folder, "--device", "cpu", query)
    done = llm_inside(*command, "-f", tmp_path / "documents.txt", "-o", "json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    order = np.argsort(-cases["scores"][: len(documents)], kind="stable").tolist()
    assert [line["index"] for line in lines] == order
    assert [line["document"] for line in lines] == [documents[i] for i in order]
    np.testing.assert_allclose([line["score"] for line in lines], cases["scores"][order], atol=2e-5)
    done = llm_inside(*command, *documents, "--top", "2")
    assert [line.split()[0] for line in done.stdout.decode().splitlines()] == [
        f"{cases['scores'][i]:.4f}" for i in order[:2]
    ]


def test_no_reranker(llm_inside: Callable, tiny: Path) -> None:
    """Any model of ChatML may be asked for yes or no, if these are words of its vocabulary."""
    done = llm_inside("rerank", "-m", tiny, "--device", "cpu", "query", "document")
    assert "is no reranker" in failed(done, 5)


def test_empty_texts(llm_inside: Callable, model: Path, tiny: Path) -> None:
    """A line without a text has a vector where the model puts tokens around a text."""
    done = llm_inside("embed", "-m", model, "--device", "cpu", input=b"hello\n\nhello\n")
    vectors = [json.loads(line)["embedding"] for line in done.stdout.splitlines()]
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-6)
    assert vectors[1] != pytest.approx(vectors[0], abs=1e-2)
    done = llm_inside("embed", "-m", tiny, "--device", "cpu", "")
    assert "text 1 is empty" in failed(done, 2)
