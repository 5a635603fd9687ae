"""Tensors gathered from rows of others, against the same with whole arrays."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.gathered import GatheredTensor

RNG = np.random.default_rng(0)


def tensor(rows: int, width: int, form: str = "F32", seed: int = 0) -> QTensor:
    values = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    if form == "BF16":
        data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    elif form == "F32":
        data = values.view(np.uint8)
    else:
        data = FORMATS[form].quantize(values.reshape(-1, FORMATS[form].block_size)).reshape(rows, -1)
    return QTensor("t", FORMATS[form], (rows, width), data)


def whole(gathered: GatheredTensor, weights: int) -> np.ndarray:
    chunks = list(gathered.chunks(weights))
    assert all(chunk.format is gathered.format for chunk in chunks)
    assert all(
        chunk.data.shape == (chunk.shape[0], chunk.format.row_bytes(chunk.shape[1])) for chunk in chunks
    )
    return np.concatenate([chunk.dequantize() for chunk in chunks])


@pytest.mark.parametrize("form", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize("weights", [1, 64, 150, 10_000])
@pytest.mark.parametrize("how", ["plain", "ordered", "turns", "columns", "scaled", "all"])
def test_rows_columns_and_scales(form, weights, how):
    parts = tuple(tensor(rows, 64, form, seed) for seed, rows in enumerate((5, 1, 130)))
    values = np.concatenate([part.dequantize() for part in parts])
    order = columns = scale = None
    if how in ("ordered", "all"):
        order = np.random.default_rng(1).permutation(136)
    if how == "turns":  # rows of the parts alternate, and some are left out
        order = np.stack([np.arange(6, 106), np.arange(100) % 5]).T.reshape(-1)
    if how in ("columns", "all"):
        columns = np.random.default_rng(2).permutation(64)
    if how in ("scaled", "all"):
        scale = np.random.default_rng(3).normal(size=136).astype(np.float32)
    expected = values if order is None else values[order]
    expected = expected if columns is None else expected[:, columns]
    expected = expected if scale is None else expected * scale[:, None]
    gathered = GatheredTensor("gathered", expected.shape, parts, order, columns, scale)
    np.testing.assert_array_equal(whole(gathered, weights), expected)
    computed = scale is not None or (columns is not None and form == "Q8_0")
    assert gathered.format.name == ("F32" if computed else form)


def test_blocks_stay_blocks_where_columns_move_together():
    part = tensor(7, 128, "Q8_0")
    columns = np.arange(128).reshape(4, 32)[[2, 0, 3, 1]].reshape(-1)
    gathered = GatheredTensor("gathered", (7, 128), (part,), columns=columns)
    assert gathered.format.name == "Q8_0"
    np.testing.assert_array_equal(whole(gathered, 100), part.dequantize()[:, columns])


def test_parts_of_different_formats_become_floats():
    parts = tensor(3, 32, "Q8_0"), tensor(4, 32, "F32")
    gathered = GatheredTensor("gathered", (7, 32), parts)
    assert gathered.format.name == "F32"
    np.testing.assert_array_equal(whole(gathered, 96), np.concatenate([p.dequantize() for p in parts]))


def test_no_chunk_crosses_from_one_matrix_of_a_stack_to_the_next():
    gathered = GatheredTensor("gathered", (3, 5, 8), tuple(tensor(5, 8, seed=i) for i in range(3)))
    assert [len(chunk.data) for chunk in gathered.chunks(24)] == [3, 2] * 3
    assert [len(chunk.data) for chunk in gathered.chunks()] == [5] * 3


def test_a_vector_is_one_row():
    gathered = GatheredTensor.from_values("v", np.arange(6.0))
    assert (gathered.n_rows, gathered.width, gathered.n_weights, gathered.matrix_rows) == (1, 6, 6, 1)
    np.testing.assert_array_equal(whole(gathered, 2), [np.arange(6.0)])
