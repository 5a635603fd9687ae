"""Trap 14: widths that do not divide, rows of zeros, subnormals, NaN and infinity, numbers beyond fp16."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.gguf.reader import GGUFFile

from ...fuzz.gguf_parts import take_apart
from ...running import Run, failed
from .models import write_shaped


def with_weights(path: Path, name: bytes, first: list[float] | np.ndarray) -> Path:
    """The file with the first weights of a tensor replaced."""
    parts = take_apart(path.read_bytes())
    data = bytearray(parts.data)
    offset = next(tensor.offset for tensor in parts.tensors if tensor.name == name)
    values = np.asarray(first, np.float32).tobytes()
    data[offset : offset + len(values)] = values
    parts.data = bytes(data)
    path.write_bytes(parts.pack())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("width", [576, 896])
def test_trap_14_widths_that_do_not_divide_into_256(llm_inside: Run, tmp_path: Path, width: int) -> None:
    heads = width // 64
    path = write_shaped(tmp_path / "a.gguf", hidden=width, heads=heads, kv_heads=heads, head_dim=64, layers=1)
    done = llm_inside("quantize", path, tmp_path / "b.gguf", "--type", "q4_k_m")
    assert done.returncode == 0, done.stderr.decode()
    told = done.stderr.decode()
    assert f"rows of {width} do not divide" in told
    assert re.search(r"\d+\.\d\d bits a weight", told)
    formats = {t.format.name for t in GGUFFile.open(tmp_path / "b.gguf").tensors.values()}
    assert formats & {"Q5_0", "Q5_1", "Q4_0", "Q8_0"}
    assert llm_inside("run", "-m", tmp_path / "b.gguf", "-n", 2, "hi").returncode == 0


@pytest.mark.parametrize(
    "kind", ["q8_0", "q4_0", "q4_1", "q5_0", pytest.param("iq4_nl", marks=pytest.mark.slow), "mxfp4", "nvfp4"]
)
def test_trap_14_rows_of_zeros_and_subnormals(llm_inside: Run, tmp_path: Path, kind: str) -> None:
    name = b"blk.0.ffn_up.weight"
    rows = np.zeros((3, 64), np.float32)
    rows[1] = 1e-42
    rows[2] = np.where(np.arange(64) % 2, 1e-42, -1e-45)
    path = with_weights(write_shaped(tmp_path / "a.gguf", layers=1), name, rows.ravel())
    done = llm_inside("quantize", path, tmp_path / "b.gguf", "--type", kind)
    assert done.returncode == 0, done.stderr.decode()
    values = GGUFFile.open(tmp_path / "b.gguf").tensors[name.decode()].dequantize()
    assert np.isfinite(values).all()
    assert np.abs(values[:3]).max() < 1e-6
    assert (values[0] == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_trap_14_weights_that_are_no_numbers_name_the_tensor(
    llm_inside: Run, tmp_path: Path, bad: float
) -> None:
    path = with_weights(write_shaped(tmp_path / "a.gguf", layers=1), b"blk.0.attn_q.weight", [1.0, bad])
    line = failed(llm_inside("quantize", path, tmp_path / "b.gguf", "--type", "q4_0"), 5)
    assert "blk.0.attn_q.weight" in line
    assert [p.name for p in tmp_path.iterdir() if "b.gguf" in p.name] == []


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_trap_14_numbers_above_65504(llm_inside: Run, tmp_path: Path, kind: str) -> None:
    name = "blk.0.ffn_up.weight"
    path = with_weights(write_shaped(tmp_path / "a.gguf", layers=1), name.encode(), [2.0**20, -(2.0**18)])
    done = llm_inside("quantize", path, tmp_path / "b.gguf", "--type", kind)
    assert done.returncode == 0, done.stderr.decode()
    values = GGUFFile.open(tmp_path / "b.gguf").tensors[name].dequantize()
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values[0, 0], 2.0**20, rtol=0.1)
