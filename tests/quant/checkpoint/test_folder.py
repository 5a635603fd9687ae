"""Hugging Face folders, sound and damaged."""

import json
import math
import os
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile

Tensors = dict[str, tuple[tuple[int, ...], bytes]]  # name, which starts with the dtype → shape, data


def random_tensors() -> Tensors:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "matrix": (6, 10),
        "vector": (7,),
        "scalar": (),
        "experts": (2, 3, 5),
    }
    return {
        f"{dtype}.{name}": (shape, rng.integers(0, 256, math.prod(shape) * size, dtype=np.uint8).tobytes())
        for dtype, size in (("F32", 4), ("F16", 2), ("BF16", 2))
        for name, shape in shapes.items()
    }


def serialized(tensors: Tensors) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = entry(list(shape), at, at + len(data), name.split(".")[0])
        at += len(data)
    raw = json.dumps(header).encode()
    return pack("<Q", len(raw)) + raw + b"".join(data for _, data in tensors.values())


def entry(shape: list[int], start: int, end: int, dtype: str = "BF16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def as_float32(dtype: str, data: bytes) -> np.ndarray:
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def assert_holds(checkpoint: Checkpoint, tensors: Tensors) -> None:
    assert set(checkpoint.tensors) == set(tensors)
    for name, (shape, data) in tensors.items():
        tensor = checkpoint.tensors[name]
        dtype = name.split(".")[0]
        assert (tensor.name, tensor.format.name, tensor.shape) == (name, dtype, shape)
        assert tensor.data.tobytes() == data
        assert not tensor.data.flags.owndata
        assert not tensor.data.flags.writeable
        np.testing.assert_array_equal(tensor.dequantize(), as_float32(dtype, data).reshape(shape))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama", "limit": [0.0, Infinity]}')
    return path


@pytest.fixture
def single(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes(serialized(random_tensors()))
    return folder


@pytest.fixture
def sharded(folder: Path) -> Path:
    tensors = random_tensors()
    weight_map = {}
    for i in range(3):
        name = f"model-0000{i + 1}-of-00003.safetensors"
        part = {key: tensors[key] for key in list(tensors)[i::3]}
        (folder / name).write_bytes(serialized(part))
        weight_map |= dict.fromkeys(part, name)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def read_index(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def refusal(folder: Path) -> str:
    with pytest.raises(DamagedFile) as error:
        Checkpoint.open(folder)
    assert str(error.value).isprintable()
    return str(error.value)


def test_one_file(single: Path) -> None:
    checkpoint = Checkpoint.open(str(single))
    assert_holds(checkpoint, random_tensors())
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.generation_config == {}
    assert checkpoint.paths == [single / "model.safetensors"]
    assert checkpoint.n_bytes == (single / "model.safetensors").stat().st_size


def test_a_file_of_the_safetensors_package(folder: Path) -> None:
    arrays = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.arange(5, dtype=np.float16)}
    save_file(arrays, folder / "model.safetensors")
    checkpoint = Checkpoint.open(folder)
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.tensors[name].dequantize(), array)


def test_shards(sharded: Path) -> None:
    (sharded / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    checkpoint = Checkpoint.open(sharded)
    assert_holds(checkpoint, random_tensors())
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert [path.name[:11] for path in checkpoint.paths] == ["model-00001", "model-00002", "model-00003"]
    assert checkpoint.n_bytes == sum(path.stat().st_size for path in checkpoint.paths)
    for tensor in checkpoint.tensors.values():
        checkpoint.release(tensor)
    assert_holds(checkpoint, random_tensors())


def test_what_is_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Checkpoint.open(tmp_path / "none")
    assert refusal(folder) == "model: has neither model.safetensors nor model.safetensors.index.json"
    (folder / "pytorch_model-00001-of-00002.bin").write_bytes(b"x")
    assert "holds pickled weights (pytorch_model-00001-of-00002.bin)" in refusal(folder)
    (folder / "config.json").unlink()
    assert "holds pickled weights (pytorch_model-00001-of-00002.bin)" in refusal(folder)
    (folder / "pytorch_model-00001-of-00002.bin").unlink()
    assert refusal(folder) == "model: has no config.json"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "config.json: is empty: its download did not finish"),
        (b"{", "config.json: is not valid JSON"),
        (b"[1]", "config.json: is not a JSON object"),
        (b'{"a": "\xff"}', "config.json: is not valid JSON: 'utf-8'"),
        (b'{"a": 1, "a": 2}', "config.json: is not valid JSON: 'a' appears twice"),
        (b'{"a": ' + b"[" * 200_000, "config.json: is nested too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "config.json: is not valid JSON"),
    ],
)
def test_damaged_config(single: Path, raw: bytes, message: str) -> None:
    (single / "config.json").write_bytes(raw)
    assert message in refusal(single)


def test_a_config_beyond_all_measure(single: Path) -> None:
    os.truncate(single / "config.json", 1 << 36)
    assert "config.json: is larger than" in refusal(single)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_without_weight_map(sharded: Path, weight_map: object) -> None:
    write_index(sharded, weight_map)
    assert "has no weight_map" in refusal(sharded)


@pytest.mark.parametrize(
    "name", [3, "", "..", "../config.json", "/etc/passwd", "a/b.safetensors", "x.bin", "a\0b"]
)
def test_an_index_that_leads_elsewhere(sharded: Path, name: object) -> None:
    write_index(sharded, {**read_index(sharded), "t": name})
    assert "tensor 't' has no safetensors file of this folder" in refusal(sharded)


def test_shards_against_their_index(sharded: Path) -> None:
    index = read_index(sharded)
    first, second = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"
    write_index(sharded, {**index, "F32.matrix": second})
    assert f"{second}: has no tensor 'F32.matrix', which" in refusal(sharded)
    write_index(sharded, index)
    (sharded / second).write_bytes(serialized(random_tensors()))
    assert f"{second}: tensor 'F32.matrix' is in another file too" in refusal(sharded)
    (sharded / first).unlink()
    assert f"model: '{first}' is missing" in refusal(sharded)


def store(folder: Path, header: object, data: bytes) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(pack("<Q", len(raw)) + raw + data)


@pytest.mark.parametrize(
    ("header", "n_bytes"),
    [
        ({"a": entry([2, 2], 0, 8)}, 7),
        ({"a": entry([2, 2], 0, 8)}, 9),
        ({"a": entry([2, 2], 8, 0)}, 8),
        ({"a": entry([2, 3], 0, 8)}, 8),
        ({"a": entry([2, 2], 2, 10)}, 10),
        ({"a": entry([4], 0, 8), "b": entry([4], 4, 12)}, 12),
        ({"a": entry([1 << 32, 1 << 32], 0, 0)}, 0),
        ({"a": entry([-1, -4], 0, 8)}, 8),
        ({"a": entry([4], 0, 1 << 60)}, 8),
        ({"a": entry([4], 0, 8, "NEW")}, 8),
        ({"a": 1}, 0),
        (b'{"a":', 0),
        (b"\xff\xff", 0),
        (b"[]", 0),
    ],
)
def test_damaged_headers(folder: Path, header: object, n_bytes: int) -> None:
    store(folder, header, bytes(n_bytes))
    assert refusal(folder).startswith("model.safetensors: ")


def test_headers_that_the_library_lets_pass(folder: Path) -> None:
    store(folder, {"a": entry([0, 4], 0, 0)}, b"")
    assert "tensor 'a' has a dimension of zero: (0, 4)" in refusal(folder)
    store(folder, {"a": entry([4], 0, 4, "U8")}, bytes(4))
    assert "tensor 'a' has dtype U8; supported are F32, F16, BF16" in refusal(folder)
    twice = json.dumps(entry([1], 0, 2))
    store(folder, f'{{"a": {twice}, "a": {twice}}}'.encode(), bytes(2))
    assert "'a' appears twice" in refusal(folder)


@pytest.mark.parametrize("raw", [b"", b"\1", pack("<Q", 1 << 60), pack("<Q", 1 << 27) + b"{}", pack("<Q", 0)])
def test_no_header(folder: Path, raw: bytes) -> None:
    (folder / "model.safetensors").write_bytes(raw)
    assert refusal(folder).startswith("model.safetensors: ")


def test_a_file_cut_anywhere(single: Path) -> None:
    path = single / "model.safetensors"
    raw = path.read_bytes()
    for cut in range(0, len(raw), 3):
        path.write_bytes(raw[:cut])
        refusal(single)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_changed_bytes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "changed"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    raw = bytearray(serialized(random_tensors()))
    header_bytes = 8 + int.from_bytes(raw[:8], "little")
    values = st.one_of(st.integers(0, 255), st.sampled_from(list(b'0129-"[]{},eF')))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, header_bytes))] = data.draw(values)
    (folder / "model.safetensors").write_bytes(raw)
    try:
        checkpoint = Checkpoint.open(folder)
    except DamagedFile:
        refusal(folder)
        return
    for tensor in checkpoint.tensors.values():
        assert tensor.dequantize().shape == tensor.shape
