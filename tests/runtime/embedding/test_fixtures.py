"""Vectors and scores of tiny models against what sentence-transformers and transformers compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions

Find = Callable[[str], Path]
EMBEDDERS = ["qwen3-embedding"]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors(embedding_model: Find, name: str, device: str) -> None:
    folder = embedding_model(name)
    cases = np.load(folder / "cases.npz")
    texts = [str(text) for text in cases["texts"]]
    with load_model(folder, LoadOptions(device, task="auto")) as model:
        for key in (key for key in cases.files if key.startswith("vectors")):
            prompt = key.removeprefix("vectors of ") if " of " in key else None
            got = model.embed(texts, prompt=prompt)
            assert got.dtype == np.float32
            assert cosines(got, cases[key]).min() > 0.9999
            np.testing.assert_allclose(got, cases[key], atol=2e-5, err_msg=key)
