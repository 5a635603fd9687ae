"""The factors of NVFP4 tensors: read from tensors of their own, kept by gathering, and written."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants

from kukri.quant.block import QTensor
from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.gathered import GatheredTensor
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.quant.recipes.quantize import uncalibrated_encoder, write_quantized
from kukri.quant.recipes.recipes import PlannedTensor

RNG = np.random.default_rng(2)
NVFP4, F32 = FORMATS["NVFP4"], FORMATS["F32"]
METADATA = {"general.architecture": "llama"}


def blocks(rows: int, width: int) -> np.ndarray:
    data = RNG.integers(0, 256, (rows, NVFP4.row_bytes(width)), dtype=np.uint8)
    data.reshape(-1, 36)[:, :4] %= 127
    return data


def written(path: Path, scales: dict[str, np.ndarray], shape: tuple[int, ...] = (3, 2, 128)) -> GGUFFile:
    """A file with a tensor `x.weight` in NVFP4, and the float32 tensors `scales` beside it."""
    data = blocks(int(np.prod(shape[:-1])), shape[-1])
    records = [TensorRecord("x.weight", shape, NVFP4)]
    records += [TensorRecord(name, values.shape, F32) for name, values in scales.items()]
    bytes_of = [[data], *([values.view(np.uint8)] for values in scales.values())]
    write_gguf(path, METADATA, {}, records, bytes_of)
    return GGUFFile.open(path)


@pytest.mark.parametrize("factors", [None, [0.25], [0.5, 0.001, 3.0]])
def test_scales_beside_a_tensor_are_its_factors(tmp_path: Path, factors: list[float] | None) -> None:
    scales = {} if factors is None else {"x.scale": np.float32(factors)}
    scales |= {"x.input_scale": np.float32([7])}
    file = written(tmp_path / "a.gguf", scales)
    assert list(file.tensors) == ["x.weight"]
    [record] = [t for t in gguf.GGUFReader(tmp_path / "a.gguf").tensors if t.name == "x.weight"]
    expected = quants.dequantize(record.data, gguf.GGMLQuantizationType.NVFP4).reshape(3, 2, 128)
    if factors is not None:
        expected = expected * np.float32(factors)[:, None, None]
    np.testing.assert_array_equal(file.tensors["x.weight"].dequantize(), expected)


@pytest.mark.parametrize("values", [[1, 2], [np.nan], [-1], [np.inf], [300], [[1, 1, 1, 1]]])
def test_scales_that_cannot_be(tmp_path: Path, values: list) -> None:
    with pytest.raises(DamagedFile, match=r"'x.scale'"):
        written(tmp_path / "a.gguf", {"x.scale": np.float32(values)})


def test_scales_of_other_formats_stay_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    records = [TensorRecord("x.weight", (2, 32), FORMATS["Q8_0"]), TensorRecord("x.scale", (1,), F32)]
    write_gguf(path, METADATA, {}, records, [[np.zeros(record.n_bytes, np.uint8)] for record in records])
    assert list(GGUFFile.open(path).tensors) == ["x.weight", "x.scale"]


def test_gathered_rows_keep_their_factors() -> None:
    parts = tuple(QTensor("p", NVFP4, (4, 64), blocks(4, 64), factors) for factors in ((0.5,), (), (0.1,)))
    values = np.concatenate([part.dequantize() for part in parts])
    stack = GatheredTensor("s", (3, 4, 64), parts)
    assert stack.format is NVFP4
    np.testing.assert_array_equal(stack.factors, np.float32([0.5, 1, 0.1]))
    chunks = list(stack.chunks(128))
    np.testing.assert_array_equal(np.concatenate([chunk.dequantize() for chunk in chunks]), values)
    for order in (np.arange(12)[::-1], np.random.default_rng(0).permutation(12)):
        mixed = GatheredTensor("m", (12, 64), parts, order)
        assert (mixed.format, mixed.factors) == (F32, None)
        found = np.concatenate([chunk.dequantize() for chunk in mixed.chunks(300)])
        np.testing.assert_array_equal(found, values[order])
    whole = QTensor("w", NVFP4, (2, 3, 64), blocks(6, 64), (0.5, 0.1))
    turned = GatheredTensor("w", (2, 3, 64), (whole,), np.array([2, 1, 0, 4, 3, 5]))
    found = np.concatenate([chunk.dequantize() for chunk in turned.chunks(64)])
    np.testing.assert_array_equal(found, whole.dequantize().reshape(6, 64)[turned.order])
    assert turned.format is NVFP4


def test_written_files_have_factors(tmp_path: Path) -> None:
    """A matrix and experts of different sizes; a file of the same blocks comes of quantising it again."""
    matrix = RNG.laplace(size=(5, 128)).astype(np.float32) / 50
    experts = RNG.laplace(size=(3, 4, 64)).astype(np.float32) * np.float32([1e-3, 30, 0])[:, None, None]
    tensors = [
        GatheredTensor.from_values("a.weight", matrix),
        GatheredTensor.from_values("e.weight", experts),
    ]
    for name in ("first.gguf", "second.gguf"):
        plan = [PlannedTensor(tensor, NVFP4) for tensor in tensors]
        encode, done = uncalibrated_encoder(), []
        made = write_quantized(tmp_path / name, METADATA, {}, plan, encode, lambda rows: None, done.append)
        assert made.n_tensor_bytes == (5 * 2 + 3 * 4) * 36 + 4 * 4
        read = GGUFFile.open(tmp_path / name).tensors
        tensors = [GatheredTensor(n, t.shape, (t,)) for n, t in read.items()]
        assert list(read) == ["a.weight", "e.weight"]
        for values, tensor in ((matrix, read["a.weight"]), (experts, read["e.weight"])):
            back = tensor.dequantize().reshape(-1, *values.shape[-2:])
            for wanted, found in zip(values.reshape(back.shape), back, strict=True):
                assert ((found - wanted) ** 2).sum() <= 0.012 * (wanted**2).sum()
        peaks = np.abs(experts).max(axis=(1, 2))
        np.testing.assert_allclose(read["e.weight"].factors[:2], peaks[:2] / 2688, rtol=1e-6)
        assert read["e.weight"].factors[2] == 1
    assert (tmp_path / "first.gguf").read_bytes() == (tmp_path / "second.gguf").read_bytes()
