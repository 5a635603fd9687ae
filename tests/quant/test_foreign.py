"""Files that are no model: what they are is said, whatever they are given as."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile
from kukri.quant.foreign import HEAD_BYTES, foreign_kind
from kukri.quant.gguf.reader import GGUFFile

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4242\n"


def zipped() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return raw.getvalue()


def tarred() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model"))
    return raw.getvalue()


FILES = {
    "LFS pointer": (POINTER, "a Git LFS pointer"),
    "old LFS pointer": (b"version https://hawser.github.com/spec/v1\n", "a Git LFS pointer"),
    "web page": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "a web page"),
    "web page with a BOM": (b"\xef\xbb\xbf\r\n  <!doctype HTML>\n<html>", "a web page"),
    "XML": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "a web page"),
    "not found": (b"Entry not found", "an error message of a web site"),
    "JSON error": (b'{"error":"Invalid credentials in Authorization header"}', "an error message"),
    "zeros": (bytes(4096), "full of zeros"),
    "gzip": (gzip.compress(b"GGUF"), "packed with gzip"),
    "zip": (zipped(), "a ZIP archive, such as PyTorch's"),
    "tar": (tarred(), "a tar archive"),
    "pickle": (pickle.dumps({"weight": [1, 2]}, protocol=2), "a Python pickle"),
    "old pickle of PyTorch": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle"),
    "newer pickle": (pickle.dumps({"weight": "a" * 300}, protocol=4), "a Python pickle"),
    "ONNX": (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:" + bytes(90), "an ONNX model"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file"),
    "GGML": (b"tjgg" + bytes(90), "a GGML file"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(90), "a picture"),
    "JSON": (b'{"model_type": "llama"}', "a JSON file"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_given_as_a_gguf_file(tmp_path: Path, name: str) -> None:
    raw, kind = FILES[name]
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(DamagedFile, match=f"m.gguf: is not a GGUF file, but {kind}") as error:
        GGUFFile.open(tmp_path / "m.gguf")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FILES)
def test_given_as_weights_of_a_folder(tmp_path: Path, name: str) -> None:
    raw, kind = FILES[name]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(DamagedFile, match=f"model.safetensors: is not a safetensors file, but {kind}"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "generation_config.json"])
@pytest.mark.parametrize("name", ["LFS pointer", "web page with a BOM", "zeros", "gzip"])
def test_given_as_json(tmp_path: Path, file: str, name: str) -> None:
    raw, kind = FILES[name]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_bytes(raw)
    with pytest.raises(DamagedFile, match=f"{file}: is {kind}"):
        Checkpoint.open(tmp_path)


def test_one_kind_of_model_named_as_the_other(tmp_path: Path) -> None:
    tensors = save({"a": np.ones((2, 2), np.float32)})
    (tmp_path / "m.gguf").write_bytes(tensors)
    with pytest.raises(DamagedFile, match="not a GGUF file, but a safetensors file: give the folder"):
        GGUFFile.open(tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.safetensors", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DamagedFile, match="not a safetensors file, but a GGUF file"):
        Checkpoint.open(tmp_path)


def test_damage_of_the_right_kind_is_told_as_damage(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)  # and no data
    with pytest.raises(DamagedFile, match="Error while deserializing"):
        Checkpoint.open(tmp_path)
    (tmp_path / "config.json").write_text('{"a": ["b", }')
    with pytest.raises(DamagedFile, match="is not valid JSON"):
        Checkpoint.open(tmp_path)


def test_any_bytes() -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 4, 8, 9, HEAD_BYTES):
        for _ in range(200):
            assert "\n" not in foreign_kind(rng.bytes(n), "GGUF")


FOLDERS = {
    "adapter": (["adapter_config.json", "adapter_model.safetensors"], r"an adapter \(PEFT\) of 'org/base'"),
    "adapter with a config": (["adapter_config.json", "config.json"], "an adapter"),
    "adapter without its config": (["adapter_model.bin"], "an adapter .* of another model"),
    "pickles": (["config.json", "pytorch_model.bin"], r"pickled weights \(pytorch_model.bin\)"),
    "other pickles": (["model.pth"], r"pickled weights \(model.pth\)"),
    "maker's layout": (["params.json", "consolidated.00.pth"], r"maker's own layout \(consolidated.00.pth\)"),
    "GGUF files": (["m-Q4_0.gguf", "config.json"], r"holds GGUF files: give one of them \(m-Q4_0.gguf\)"),
    "ONNX": (["config.json", "model.onnx"], "an ONNX model"),
    "pipeline": (["model_index.json"], "diffusers"),
    "TensorFlow": (["config.json", "tf_model.h5"], "TensorFlow"),
    "Flax": (["config.json", "flax_model.msgpack"], "Flax"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_other_kinds(tmp_path: Path, name: str) -> None:
    files, kind = FOLDERS[name]
    for file in files:
        (tmp_path / file).write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(DamagedFile, match=kind) as error:
        Checkpoint.open(tmp_path)
    assert str(error.value).startswith(tmp_path.name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"base_model_name_or_path": 5}', b"[" * 100_000, b"\xff"])
def test_damaged_adapters(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "adapter_config.json").write_bytes(raw)
    with pytest.raises(DamagedFile, match=r"an adapter .* of another model"):
        Checkpoint.open(tmp_path)
