"""`llm quantize`: what it writes, what it refuses, and what it never touches."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kukri
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.gguf.reader import GGUFFile
from kukri.tokenizer.pretokenize.pretokenize import BYTE_SYMBOLS

from ...running import Run, failed
from ...tiny_model import write_tiny_model


def add_tokenizer(source: Path, folder: Path) -> Path:
    """A copy of a checkpoint as `folder`, with a tokenizer of bytes, a model card and a chat template."""
    shutil.copytree(source, folder)
    content: dict[str, Any] = {
        "added_tokens": [{"id": 2, "content": "<end>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "merges": ["l l"]},
    }
    words = ["<a>", "<b>", "<end>", *BYTE_SYMBOLS[3:-1], "ll"]
    content["model"]["vocab"] = {word: id for id, word in enumerate(words)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>", "chat_template": "{{ 1 }}"}')
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\n---\n# Small\n")
    return folder


@pytest.fixture
def checkpoint(conformance: Callable[[str], Path], tmp_path: Path) -> Path:
    """A bfloat16 folder in shards."""
    return add_tokenizer(conformance("llama-gqa-sharded"), tmp_path / "Small-Llama")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder(llm_inside: Run, checkpoint: Path, tmp_path: Path) -> None:
    before, target = contents(checkpoint), tmp_path / "out.gguf"
    done = llm_inside("quantize", checkpoint, target, "--type", "q8_0")
    assert (done.returncode, done.stdout.decode()) == (0, f"{target}\n")
    told = done.stderr.decode().splitlines()
    assert "8.54 bits a weight (Q8_0 100 %)" in told[-1]
    assert "MB/s of source" in told[-1]
    assert contents(checkpoint) == before
    assert sorted(os.listdir(tmp_path)) == ["Small-Llama", "out.gguf", "stdin"]
    metadata = GGUFFile.open(target).metadata
    assert metadata["general.file_type"] == 7
    assert metadata["general.license"] == "apache-2.0"
    assert metadata["tokenizer.chat_template"] == "{{ 1 }}"
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert "general.quantized_by" not in metadata
    ids = np.load(checkpoint / "reference.npz")["input_ids"][:20].tolist()
    with kukri.load(target, device="reference") as ours, kukri.load(checkpoint, device="reference") as theirs:
        assert np.abs(ours.logits(ids) - theirs.logits(ids)).max() < 0.2
        assert ours.encode("hello") == theirs.encode("hello")
        assert ours.end_ids == theirs.end_ids


def test_floats_are_exact(llm_inside: Run, checkpoint: Path, tmp_path: Path) -> None:
    assert llm_inside("quantize", checkpoint, tmp_path, "--type", "BF16").returncode == 0
    path = tmp_path / "Small-Llama-BF16.gguf"
    ids = list(range(3, 23))
    with kukri.load(path, device="reference") as ours, kukri.load(checkpoint, device="reference") as theirs:
        np.testing.assert_allclose(ours.logits(ids), theirs.logits(ids), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_fall_backs_are_told(llm_inside: Run, checkpoint: Path, tmp_path: Path) -> None:
    done = llm_inside("quantize", checkpoint, tmp_path / "a.gguf", "--type", "q4_k_m")
    told = done.stderr.decode()
    assert "tensors are Q5_0: rows of 288 do not divide into blocks of Q4_K" in told
    formats = {tensor.format.name for tensor in GGUFFile.open(tmp_path / "a.gguf").tensors.values()}
    assert "Q5_0" in formats


def test_a_gguf_file(llm_inside: Run, tmp_path: Path) -> None:
    """All keys are carried over, with their types, and what is not quantised stays as it is."""
    source, target = write_tiny_model(tmp_path / "tiny-F32.gguf"), tmp_path / "b.gguf"
    before = source.read_bytes()
    assert llm_inside("quantize", source, target, "--type", "q4_0").returncode == 0
    assert source.read_bytes() == before
    old, new = GGUFFile.open(source), GGUFFile.open(target)
    added = {"general.file_type": 2, "general.quantization_version": 2}
    assert {key: value for key, value in new.metadata.items() if key in added} == added
    for key, value in old.metadata.items():
        np.testing.assert_array_equal(new.metadata[key], value)
        assert new.types[key] == old.types[key]
    assert set(old.tensors) == set(new.tensors)
    norm = "blk.0.attn_norm.weight"
    np.testing.assert_array_equal(old.tensors[norm].data, new.tensors[norm].data)
    assert new.tensors["blk.0.ffn_up.weight"].format.name == "Q4_0"
    assert new.tensors["output.weight"].format.name == "Q8_0"


def test_requantising_must_be_asked_for(llm_inside: Run, tmp_path: Path) -> None:
    source, target = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "b.gguf"
    assert llm_inside("quantize", source, target, "--type", "int8").returncode == 0
    error = failed(llm_inside("quantize", target, tmp_path / "c.gguf", "--type", "q4_0"), 2)
    assert "--allow-requantize" in error
    assert "mostly Q8_0" in error
    assert (
        llm_inside("quantize", target, tmp_path / "same.gguf", "--type", "q8_0").returncode == 0
    )  # no change
    np.testing.assert_equal((tmp_path / "same.gguf").read_bytes(), target.read_bytes())
    done = llm_inside("quantize", target, tmp_path, "--type", "q5_1", "--allow-requantize")
    assert (done.returncode, done.stdout.decode()) == (0, f"{tmp_path / 'b-Q5_1.gguf'}\n")


def test_packed_matrices_may_stay_as_they_are(
    llm_inside: Run, conformance: Callable[[str], Path], tmp_path: Path
) -> None:
    """A symmetric 4-bit GPTQ checkpoint has the grid of Q4_0; no weight of its matrices changes."""
    source, target = conformance("llama-gptq"), tmp_path / "b.gguf"
    error = failed(llm_inside("quantize", source, target, "--type", "q8_0"), 2)
    assert "--type q4_0 keeps it as it is" in error
    assert llm_inside("quantize", source, target, "--type", "q4_0").returncode == 0
    written, held = GGUFFile.open(target).tensors, Checkpoint.open(source).tensors
    for stem, name in (("ffn_down", "mlp.down_proj"), ("attn_v", "self_attn.v_proj")):
        tensor = written[f"blk.1.{stem}.weight"]
        assert tensor.format.name == "Q4_0"
        np.testing.assert_array_equal(tensor.dequantize(), held[f"model.layers.1.{name}.weight"].dequantize())


def test_other_formats_for_some_tensors(llm_inside: Run, tmp_path: Path) -> None:
    source, target = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "b.gguf"
    done = llm_inside("quantize", source, target, "--type", "q8_0", "--tensor-type", "ffn_down=q4_1")
    assert done.returncode == 0
    formats = {name: tensor.format.name for name, tensor in GGUFFile.open(target).tensors.items()}
    assert formats["blk.1.ffn_down.weight"] == "Q4_1"
    assert formats["blk.1.ffn_up.weight"] == "Q8_0"


def test_wrong_usage(llm_inside: Run, tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "tiny.gguf")
    target = tmp_path / "b.gguf"
    assert "there are f32, f16" in failed(llm_inside("quantize", source, target, "--type", "q9"), 2)
    for override in ("ffn", "ffn=q9", "(=q8_0"):
        failed(llm_inside("quantize", source, target, "--type", "q8_0", "--tensor-type", override), 2)
    failed(llm_inside("quantize", source, tmp_path / "no" / "b.gguf", "--type", "q8_0"), 2)
    failed(llm_inside("quantize", tmp_path / "none.gguf", target, "--type", "q8_0"), 3)
    assert not target.exists()


def test_what_is_there_is_not_replaced_unasked(llm_inside: Run, tmp_path: Path) -> None:
    source, target = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "b.gguf"
    target.write_text("mine")
    before = source.read_bytes()
    assert "--force" in failed(llm_inside("quantize", source, target, "--type", "q8_0"), 2)
    assert target.read_text() == "mine"
    os.link(source, tmp_path / "link.gguf")
    for same in (source, tmp_path / "link.gguf"):
        error = failed(llm_inside("quantize", source, same, "--type", "q8_0", "--force"), 2)
        assert "never changed" in error
    assert source.read_bytes() == before
    assert llm_inside("quantize", source, target, "--type", "q8_0", "--force").returncode == 0
    assert target.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "README.md", "model-00001-of-00002.safetensors", "new.bin"]
)
def test_files_of_the_source_are_never_replaced(
    llm_inside: Run, checkpoint: Path, tmp_path: Path, name: str
) -> None:
    before = contents(checkpoint)
    for target in (checkpoint / name, tmp_path / "link" / name):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(checkpoint)
        line = failed(llm_inside("quantize", checkpoint, target, "--type", "q8_0", "--force"), 2)
        assert "where only a .gguf file may be written" in line
        assert contents(checkpoint) == before


def test_links_to_files_of_the_source_are_never_replaced(
    llm_inside: Run, checkpoint: Path, tmp_path: Path
) -> None:
    before = contents(checkpoint)
    for make in (os.link, os.symlink):
        (tmp_path / "other").unlink(missing_ok=True)
        make(checkpoint / "config.json", tmp_path / "other")
        line = failed(llm_inside("quantize", checkpoint, tmp_path / "other", "--type", "q8_0", "--force"), 2)
        assert "source" in line
        assert contents(checkpoint) == before


def test_a_gguf_file_inside_the_source_folder(llm_inside: Run, checkpoint: Path) -> None:
    """It is none of the source's files, so it may be there, and be replaced."""
    before = contents(checkpoint)
    for more in ((), ("--force",)):
        done = llm_inside("quantize", checkpoint, checkpoint / "m.gguf", "--type", "q8_0", *more)
        assert done.returncode == 0, done.stderr.decode()
    after = contents(checkpoint)
    assert after.pop("m.gguf")[:4] == b"GGUF"
    assert after == before


def damaged(source: Path, name: str, value: float) -> Path:
    """The file with one weight changed."""
    data = GGUFFile.open(source).tensors[name].data
    raw = bytearray(source.read_bytes())
    at = raw.find(data[1].tobytes())
    raw[at : at + 4] = np.float32(value).tobytes()
    path = source.with_name(f"damaged-{value}.gguf")
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers(llm_inside: Run, tmp_path: Path, bad: float) -> None:
    source = damaged(write_tiny_model(tmp_path / "tiny.gguf"), "blk.1.ffn_up.weight", bad)
    target = tmp_path / "b.gguf"
    error = failed(llm_inside("quantize", source, target, "--type", "q8_0"), 5)
    assert "tensor blk.1.ffn_up.weight has a weight that is NaN or infinite" in error
    assert not target.exists()
    assert llm_inside("quantize", source, target, "--type", "q8_0", "--zero-nonfinite").returncode == 0
    assert np.isfinite(GGUFFile.open(target).tensors["blk.1.ffn_up.weight"].dequantize()).all()


def test_a_model_is_not_written_to_stdout(llm_inside: Run, checkpoint: Path) -> None:
    assert "not to stdout" in failed(llm_inside("quantize", checkpoint, "-", "--type", "q8_0"), 2)
    assert not Path("-").exists()


def test_weights_beyond_fp16(llm_inside: Run, tmp_path: Path) -> None:
    source = damaged(write_tiny_model(tmp_path / "tiny.gguf"), "blk.1.ffn_up.weight", 1e6)
    done = llm_inside("quantize", source, tmp_path / "b.gguf", "--type", "f16")
    assert "tensor blk.1.ffn_up.weight is F32: a weight of 1e+06 is beyond the range of F16" in (
        done.stderr.decode()
    )
    tensors = GGUFFile.open(tmp_path / "b.gguf").tensors
    assert tensors["blk.1.ffn_up.weight"].dequantize().max() == 1e6
    assert tensors["blk.0.ffn_up.weight"].format.name == "F16"


def test_models_that_the_format_does_not_have(
    llm_inside: Run, conformance: Callable[[str], Path], tmp_path: Path
) -> None:
    source = conformance("llama-dynamic-ntk")
    error = failed(llm_inside("quantize", source, tmp_path / "b.gguf", "--type", "q8_0"), 5)
    assert "GGUF cannot express RoPE scaling dynamic" in error


def test_a_full_disk(llm_inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    source = write_tiny_model(tmp_path / "tiny.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    error = failed(llm_inside("quantize", source, tmp_path / "b.gguf", "--type", "q8_0"), 1)
    assert "GB are free" in error


def test_a_folder_without_a_tokenizer(
    llm_inside: Run, conformance: Callable[[str], Path], tmp_path: Path
) -> None:
    target = tmp_path / "b.gguf"
    done = llm_inside("quantize", conformance("qwen3"), target, "--type", "f32")
    assert "has no tokenizer" in done.stderr.decode()
    with kukri.load(target, device="reference") as model:
        assert model.logits([3, 4]).shape == (2, 256)
