"""Neighbours in the embedding table, their map, and the frequencies of rotary embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kukri
from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.runtime.inspection import embeddings
from kukri.runtime.inspection.data import Spelled
from kukri.runtime.inspection.rope import rope_data

from ...tiny_model import write_tiny_model


def table_of(values: np.ndarray) -> QTensor:
    values = np.ascontiguousarray(values, np.float32)
    return QTensor("t", FORMATS["F32"], values.shape, values.view(np.uint8).reshape(len(values), -1))


def test_neighbours_are_the_nearest_by_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "ROWS", 7)  # several parts
    values = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
    values[3] = 0
    found = embeddings.neighbours(table_of(values), [4, 49], 5, n_tokens=45)
    with np.errstate(invalid="ignore"):
        unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    for id_, ids, cosines in zip([4, 49], found.ids, found.cosines, strict=True):
        expected = np.nan_to_num(unit[:45] @ unit[id_])
        if id_ < 45:
            expected[id_] = -2
        assert ids.tolist() == np.argsort(-expected)[:5].tolist()
        np.testing.assert_allclose(cosines, expected[ids], atol=1e-6)
    with pytest.raises(ValueError, match="from 0 to 49"):
        embeddings.neighbours(table_of(values), [50], 5)


def test_the_plane_has_the_main_axes() -> None:
    angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((9, 2)))[0]
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ axes.T  # lies in a plane
    points, shares = embeddings.plane(table_of(circle), range(12))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, atol=1e-5)
    assert shares.sum() == pytest.approx(1)
    one, none = embeddings.plane(table_of(circle), [5])
    assert (one.tolist(), none.tolist()) == ([[0, 0]], [0, 0])


def test_of_a_model(tmp_path: Path) -> None:
    with kukri.load(write_tiny_model(tmp_path / "tiny.gguf"), device="reference") as model:
        table = embeddings.embedding_table(model.engine.machine.program)
        assert table.shape == (265, 64)
        told = embeddings.embeddings_data(table, [7, 9, 7], 3, Spelled(model.tokenizer))
        assert [near["id"] for near in told["near"]] == [7, 9]
        assert [len(near["tokens"]) for near in told["near"]] == [3, 3]
        assert [point["id"] for point in told["points"] if point["asked"]] == [7, 9]
        (rope,) = rope_data(model.config)
        assert (rope["layers"], rope["base"], rope["interleaved"]) == ([0, 1], 10000.0, True)
        np.testing.assert_allclose(rope["inv_freq"], 10000.0 ** (-np.arange(8) / 8), rtol=1e-6)
