"""What people reported of other runtimes: files in which something nobody needs is wrong, or no models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kukri
from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.model.source import load_tokenizer, open_source

from ...reports import CHATML, add_tokenizer, changed_folder, changed_gguf
from ...running import Run, failed
from ...tiny_model import tokens, write_tiny_model

ROWS = 265
END = 264  # <|im_end|> of the tiny model
GREEDY = ("-t", "0", "-n", "4")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("run", "--raw", *GREEDY, "hello"),
    ("eval", "-c", "32", "--limit", "64"),
    ("bench", "-p", "4", "-n", "2", "-r", "1"),
)

Conformance = Callable[[str], Path]


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "plain.gguf")


def likeliest(token: int) -> np.ndarray:
    """An output matrix that makes `token` the likeliest: the last hidden unit is the same after anything."""
    values = np.zeros((ROWS, 64), np.float32)
    values[token, -1] = 100
    return values


def answer(llm: Run, path: Path, *more: Any) -> tuple[str, str, list[str]]:
    """Text, why it ended, and the lines on stderr, of a raw answer."""
    done = llm("run", "-m", path, "--raw", *GREEDY, "-o", "json", *more, "hello")
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    return told["text"], told["finish_reason"], done.stderr.decode().splitlines()


def refused_by_all(llm: Run, path: Path, tmp_path: Path, *, show: bool = True) -> str:
    """The one line that every command gives for what is no model; nothing is written."""
    (tmp_path / "text.txt").write_text("a text " * 50)
    lines = set()
    for command, *more in COMMANDS:
        given = ["--file", tmp_path / "text.txt"] if command == "eval" else []
        lines.add(failed(llm(command, "-m", path, *given, *more), 5))
    (tmp_path / "out").mkdir()
    lines.add(failed(llm("quantize", path, tmp_path / "out" / "o.gguf", "--type", "q8_0"), 5))
    assert os.listdir(tmp_path / "out") == []
    if show:
        lines.add(failed(llm("show", path), 5))
    assert len(lines) == 1, lines
    return lines.pop()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_buffers_of_gpt_neox(llm_inside: Run, conformance: Conformance, tmp_path: Path, dtype: type) -> None:
    mask, names = np.tril(np.ones((1, 1, 64, 64), dtype)), ("bias", "masked_bias", "rotary_emb.inv_freq")
    buffers = {f"gpt_neox.layers.{i}.attention.{name}": mask for i in (0, 1) for name in names}
    folder = changed_folder(conformance("gpt-neox"), tmp_path / "neox", tensors=buffers)
    with kukri.load(folder) as model, kukri.load(conformance("gpt-neox")) as plain:
        np.testing.assert_array_equal(model.logits([3, 4, 5]), plain.logits([3, 4, 5]))
    done = llm_inside("quantize", folder, tmp_path / "o.gguf", "--type", "f32")
    assert done.returncode == 0
    assert not [name for name in GGUFFile.open(tmp_path / "o.gguf").tensors if "mask" in name]


def test_buffers_of_gpt2(conformance: Conformance, tmp_path: Path) -> None:
    source = conformance("gpt2-original")
    buffers = {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 8, 8), np.uint8) for i in (0, 1)}
    buffers |= {f"transformer.h.{i}.attn.masked_bias": np.array(-1e4, np.float16) for i in (0, 1)}
    with (
        kukri.load(changed_folder(source, tmp_path / "g", tensors=buffers)) as model,
        kukri.load(source) as plain,
    ):
        np.testing.assert_array_equal(model.logits([3, 4, 5]), plain.logits([3, 4, 5]))


@pytest.mark.parametrize("kind", [1, 4])  # NORMAL, USER_DEFINED
def test_an_end_mark_of_another_type(llm_inside: Run, tiny_file: Path, tmp_path: Path, kind: int) -> None:
    keys = {
        "tokenizer.ggml.token_type": np.array([1] * 262 + [3, kind, kind], np.int32),
        "tokenizer.ggml.eos_token_id": 262,
    }
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", keys, {"output.weight": likeliest(END)})
    assert answer(llm_inside, path)[:2] == ("", "stop")


def test_more_ends_than_one(llm_inside: Run, tiny_file: Path, tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.eos_token_ids": np.array([262, 104], np.int32)}
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", ends, {"output.weight": likeliest(104)})
    assert answer(llm_inside, path)[:2] == ("", "stop")


@pytest.mark.parametrize("stop", ["<|im_start|>", "<|im_start|><|im_start|>", "start|>"])
def test_a_stop_string_that_spells_a_special_token(
    llm_inside: Run, tiny_file: Path, tmp_path: Path, stop: str
) -> None:
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", {}, {"output.weight": likeliest(263)})
    assert answer(llm_inside, path)[:2] == ("", "length")
    assert answer(llm_inside, path, "--stop", stop)[:2] == ("", "stop_string")


def test_special_ids_out_of_range(llm_inside: Run, tiny_file: Path, tmp_path: Path) -> None:
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", {"tokenizer.ggml.bos_token_id": 2**32 - 1})
    note = "tokenizer.ggml.bos_token_id is 4294967295, but there are 265 tokens: it counts as not there"
    text, _, told = answer(llm_inside, path)
    assert note in told
    assert text == answer(llm_inside, tiny_file)[0]
    done = llm_inside("tokenize", "-m", path, "hello")
    assert (done.returncode, note in done.stderr.decode()) == (0, True)


@pytest.mark.parametrize("stated", [1, 260, 300, 128256])
def test_a_stale_vocabulary_size(llm_inside: Run, tiny_file: Path, tmp_path: Path, stated: int) -> None:
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", {"llama.vocab_size": stated})
    assert answer(llm_inside, path)[0] == answer(llm_inside, tiny_file)[0]
    assert llm_inside("quantize", path, tmp_path / "o.gguf", "--type", "q8_0").returncode == 0
    assert GGUFFile.open(tmp_path / "o.gguf").metadata["llama.vocab_size"] == ROWS


def test_a_stale_vocabulary_size_of_a_folder(conformance: Conformance, tmp_path: Path) -> None:
    folder = changed_folder(conformance("llama"), tmp_path / "m", {"vocab_size": 100})
    assert open_source(folder).config.vocab_size == 256


def test_text_that_is_not_utf_8_where_nobody_needs_it(
    llm_inside: Run, tiny_file: Path, tmp_path: Path
) -> None:
    keys = {"general.author": b"J\xfcrgen", "general.tags": ["a", b"\xe9t\xe9"], "general.name": b"\xff"}
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", keys)
    assert answer(llm_inside, path)[0] == answer(llm_inside, tiny_file)[0]
    assert llm_inside("show", path).returncode == 0
    assert llm_inside("quantize", path, tmp_path / "o.gguf", "--type", "q8_0").returncode == 0
    kept = GGUFFile.open(tmp_path / "o.gguf").metadata
    assert {key: kept[key] for key in keys} == keys
    for key in ("tokenizer.chat_template", "tokenizer.ggml.pre", "general.architecture"):
        bad = changed_gguf(tiny_file, tmp_path / "bad.gguf", {key: b"\xff"}) if "arch" not in key else None
        if bad:
            assert key in failed(llm_inside("run", "-m", bad, "hi"), 5)


def test_text_and_vision_in_one_file(llm_inside: Run, tiny_file: Path, tmp_path: Path) -> None:
    names = (
        "v.patch_embd.weight",
        "v.blk.0.attn_q.weight",
        "mm.input_projection.weight",
        "a.blk.0.ln1.weight",
    )
    path = changed_gguf(
        tiny_file, tmp_path / "m.gguf", {}, dict.fromkeys(names, np.ones((32, 32), np.float32))
    )
    text, _, told = answer(llm_inside, path)
    assert text == answer(llm_inside, tiny_file)[0]
    assert "tiny is more than a text model; not loaded: a (1 tensors), mm (1 tensors), v (2 tensors)" in told
    odd = changed_gguf(tiny_file, tmp_path / "odd.gguf", {}, {"x.weight": np.ones((32, 32), np.float32)})
    assert "x.weight has no place" in failed(llm_inside("run", "-m", odd, "--raw", "hi"), 5)


def test_several_ends_are_kept(llm_inside: Run, conformance: Conformance, tmp_path: Path) -> None:
    names = ("<pad>", "<s>", "</s>", "<|stop_a|>", "<|stop_b|>", "<|stop_c|>")
    ends = {"generation_config": {"eos_token_id": [2, 3, 4, 5]}}
    folder = changed_folder(conformance("llama"), tmp_path / "m")
    add_tokenizer(folder, names, **ends)
    done = llm_inside("quantize", folder, tmp_path / "o.gguf", "--type", "f32")
    assert done.returncode == 0
    assert b"llama.cpp does not stop at <|stop_c|>" in done.stderr  # it has keys for three
    written = open_source(tmp_path / "o.gguf")
    assert written.end_ids == open_source(folder).end_ids == {2, 3, 4, 5}


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_flags_of_added_tokens_are_kept(
    llm_inside: Run, conformance: Conformance, tmp_path: Path, flag: str
) -> None:
    names = ("<pad>", "<s>", "</s>", "<|user|>", "<|end|>")
    folder = add_tokenizer(changed_folder(conformance("llama"), tmp_path / "m"), names, added={flag: True})
    done = llm_inside("quantize", folder, tmp_path / "o.gguf", "--type", "f32")
    assert f"<|user|>, <|end|> matter ({flag})" in done.stderr.decode()
    text = "<|user|>\n  hi <|end|>\nyou<|user|>"
    original, written = (
        load_tokenizer(path).encode(text, special=True) for path in (folder, tmp_path / "o.gguf")
    )
    assert written == original
    plain = add_tokenizer(changed_folder(conformance("llama"), tmp_path / "plain"), names)
    assert original != load_tokenizer(plain).encode(text, special=True)


def test_two_tokens_in_front(llm_inside: Run, conformance: Conformance, tmp_path: Path) -> None:
    single = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[gMASK]", "<sop>")]
    template = {"type": "TemplateProcessing", "single": [*single, {"Sequence": {"id": "A", "type_id": 0}}]}
    folder = changed_folder(conformance("llama"), tmp_path / "m")
    config = {"eos_token": "</s>"}
    names = ("<pad>", "<s>", "</s>", "[gMASK]", "<sop>")
    add_tokenizer(folder, names, tokenizer_config=config, post_processor=template)
    done = llm_inside("quantize", folder, tmp_path / "o.gguf", "--type", "f32")
    assert b"[gMASK], <sop>" in done.stderr
    for path in (folder, tmp_path / "o.gguf"):
        with kukri.load(path) as model:
            assert model.encode("hi")[:2] == [3, 4]
            assert model.encode("[gMASK]<sop>hi", special=True)[:3] != [3, 4, 3]


@pytest.fixture
def larger(conformance: Conformance, tmp_path: Path) -> Path:
    """Two added tokens more than the embedding table has rows."""
    decoder = {
        str(256 + i): {"content": name, "special": True}
        for i, name in enumerate(("<|im_start|>", "<|im_end|>"))
    }
    config = {"eos_token": "<|im_end|>", "chat_template": CHATML, "added_tokens_decoder": decoder}
    return add_tokenizer(changed_folder(conformance("llama"), tmp_path / "larger"), tokenizer_config=config)


def test_more_tokens_than_embeddings(llm_inside: Run, larger: Path, tmp_path: Path) -> None:
    note = "larger has 256 embeddings, but 258 tokens; it cannot read <|im_start|>, <|im_end|>"
    assert answer(llm_inside, larger)[2][0] == note
    line = failed(llm_inside("run", "-m", larger, *GREEDY, "hi"), 5)  # in the chat template
    assert "cannot read the token '<|im_start|>' (256): its embedding table has 256 rows" in line
    done = llm_inside("quantize", larger, tmp_path / "o.gguf", "--type", "f32")
    assert "left out: <|im_start|>, <|im_end|>" in done.stderr.decode()


def test_the_tokenizer_of_another_model(llm_inside: Run, conformance: Conformance, tmp_path: Path) -> None:
    rows = {name: np.ones((120, 64), np.float32) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    folder = add_tokenizer(changed_folder(conformance("llama"), tmp_path / "m", {"vocab_size": 120}, rows))
    assert "cannot read the token" in failed(llm_inside("run", "-m", folder, "--raw", "zz"), 5)
    (tmp_path / "text.txt").write_text("z" * 500)
    line = failed(llm_inside("eval", "-m", folder, "--file", tmp_path / "text.txt", "-c", "32"), 5)
    assert "its embedding table has 120 rows" in line
    failed(llm_inside("quantize", folder, tmp_path / "o.gguf", "--type", "f32"), 5)
    assert not (tmp_path / "o.gguf").exists()


def test_a_file_without_tensors(llm_inside: Run, tiny_file: Path, tmp_path: Path) -> None:
    nothing = dict.fromkeys(GGUFFile.open(tiny_file).tensors)
    path = changed_gguf(tiny_file, tmp_path / "v.gguf", {}, nothing)
    line = refused_by_all(llm_inside, path, tmp_path, show=False)
    assert line == "error: the file has no tensors: it is a vocabulary without a model (vocab-only)"
    assert b"no weights" in llm_inside("show", path).stderr
    assert llm_inside("tokenize", "-m", path, "hi").returncode == 0


KINDS = {
    "LoRA": ({"general.type": "adapter", "adapter.type": "lora"}, {}, "an adapter"),
    "projector": ({"general.type": "mmproj", "general.architecture": "clip"}, {}, "vision or audio part"),
    "importance matrix": (
        {"general.type": "imatrix", "general.architecture": None},
        {},
        "an importance matrix",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_gguf_files_that_are_no_model(llm_inside: Run, tiny_file: Path, tmp_path: Path, name: str) -> None:
    keys, tensors, kind = KINDS[name]
    given = {**keys, "general.architecture": keys.get("general.architecture") or "llama"}
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", given, tensors)
    assert kind in refused_by_all(llm_inside, path, tmp_path, show=False)


ARCHITECTURES = {
    "deberta-v2": "an encoder",
    "t5": "an encoder-decoder",
    "t5encoder": "an encoder",
    "whisper": "a model for speech",
    "clip": "vision or audio part",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_that_write_no_text(
    llm_inside: Run, tiny_file: Path, conformance: Conformance, tmp_path: Path, name: str
) -> None:
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", {"general.architecture": name})
    assert ARCHITECTURES[name] in failed(llm_inside("run", "-m", path, "--raw", "hi"), 5)
    folder = changed_folder(conformance("llama"), tmp_path / "m", {"model_type": name})
    assert ARCHITECTURES[name] in failed(llm_inside("run", "-m", folder, "--raw", "hi"), 5)


@pytest.mark.parametrize(
    ("classes", "head"),
    [
        (["LlamaForSequenceClassification"], "score.weight"),
        (["LlamaForTokenClassification"], "classifier.weight"),
        (["LlamaForRewardModel"], "v_head.summary.weight"),
        (None, "score.weight"),
        (["LlamaModel"], None),
    ],
)
def test_heads_that_write_no_text(
    llm_inside: Run, conformance: Conformance, tmp_path: Path, classes: list[str] | None, head: str | None
) -> None:
    tensors: dict[str, Any] = {"lm_head.weight": None}
    if head:
        tensors[head] = np.ones((1, 64), np.float32)
    folder = changed_folder(conformance("llama"), tmp_path / "m", {"architectures": classes}, tensors)
    line = refused_by_all(llm_inside, folder, tmp_path, show=False)
    assert "writes no" in line or "writes none" in line
    assert not classes or classes[0] in line


def test_a_reranker_in_gguf(llm_inside: Run, tiny_file: Path, tmp_path: Path) -> None:
    head = {"cls.output.weight": np.ones((1, 64), np.float32)}
    path = changed_gguf(tiny_file, tmp_path / "m.gguf", {}, head)
    assert "a classifier or reranker" in failed(llm_inside("run", "-m", path, "--raw", "hi"), 5)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer.model"])
@pytest.mark.parametrize(
    "raw", [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"<html>", b""]
)
def test_what_a_download_left(
    llm_inside: Run, conformance: Conformance, tmp_path: Path, file: str, raw: bytes
) -> None:
    folder = add_tokenizer(changed_folder(conformance("llama"), tmp_path / "m"))
    if file == "tokenizer.model":
        (folder / "tokenizer.json").unlink()
    (folder / file).write_bytes(raw)
    line = failed(llm_inside("run", "-m", folder, "--raw", "hi"), 5)
    kind = {b"v": "Git LFS pointer", b"<": "web page", b"": "is empty"}[raw[:1]]
    assert file in line
    assert kind in line


def test_an_adapter_folder(llm_inside: Run, tmp_path: Path) -> None:
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "base_model_name_or_path": "org/base"}'
    )
    assert "an adapter (PEFT) of 'org/base'" in refused_by_all(llm_inside, folder, tmp_path)


def test_the_tiny_model_is_what_these_tests_think() -> None:
    assert tokens()[END] == "<|im_end|>"
    assert len(tokens()) == ROWS


@pytest.mark.parametrize("raw", [b"PK\x03\x04" + bytes(90), b"\x08\x07\x12\x07pytorch", b"<html>", bytes(99)])
def test_a_tokenizer_out_of_what_has_none(llm_inside: Run, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "m.bin").write_bytes(raw)
    line = failed(llm_inside("tokenize", "-m", tmp_path / "m.bin", "hi"), 5)
    assert line == failed(llm_inside("run", "-m", tmp_path / "m.bin", "hi"), 5).replace(
        "not a GGUF file, but ", ""
    )
