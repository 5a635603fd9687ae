"""Encoders in GGUF files, laid out as llama.cpp's converter writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.weights.binding import Weights

KINDS = {  # fixture → architecture in GGUF, pooling type, fused stems
    "bert": ("bert", 1, {}),
    "xlm-roberta": ("bert", 2, {}),
    "nomic-bert": ("nomic-bert", 1, {"attn_qkv": ("attn_q", "attn_k", "attn_v")}),
    "modernbert": (
        "modern-bert",
        1,
        {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")},
    ),
    "embedding-gemma": ("gemma-embedding", 1, {}),
}


def write(folder: Path, path: Path, name: str, head: dict[str, str] | None = None) -> Path:
    architecture, pooling, fused = KINDS[name]
    checkpoint = Checkpoint.open(folder)
    skipped = set(head or ())
    tensors = {n: t for n, t in checkpoint.tensors.items() if n not in skipped}
    config = config_from_hf(checkpoint.config, tensors)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn)
    writer.add_block_count(config.n_layers)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    add_eps = writer.add_layer_norm_eps if config.norm == "layer" else writer.add_layer_norm_rms_eps
    add_eps(config.norm_eps)
    writer.add_causal_attention(False)
    writer.add_uint32(f"{architecture}.pooling_type", 4 if head else pooling)
    if rope := next((layer.rope for layer in config.layers if layer.rope and not layer.window), None):
        writer.add_rope_freq_base(rope.base)
    raw = checkpoint.config.get("local_attention", checkpoint.config.get("sliding_window"))
    if raw:
        writer.add_sliding_window(raw)
    write_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text("utf-8")))
    bound = {n: t.dequantize() for n, t in Weights(config, tensors).bound.items()}
    bound = {n: v + config.norm_offset if "norm" in n else v for n, v in bound.items()}
    bound = {n: v[config.position_offset :] if n == "position_embd.weight" else v for n, v in bound.items()}
    for layer in range(config.n_layers):
        for stem, parts in fused.items():
            values = [bound.pop(f"blk.{layer}.{part}.weight") for part in parts]
            bound[f"blk.{layer}.{stem}.weight"] = np.concatenate(values)
    for i in (2, 3):
        if (folder / f"{i}_Dense").exists():
            dense = dense_weight(folder / f"{i}_Dense", folder)
            bound[f"dense_{i}.weight"] = dense
    for stored, own in (head or {}).items():
        bound[own] = checkpoint.tensors[stored].dequantize()
    for n, values in bound.items():
        writer.add_tensor(n, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dense_weight(path: Path, folder: Path) -> np.ndarray:
    from kukri.quant.checkpoint.folder import tensors_of_file

    return tensors_of_file(path / "model.safetensors", folder)["linear.weight"].dequantize()


def write_tokenizer(writer: gguf.GGUFWriter, content: dict[str, Any]) -> None:
    model, special = content["model"], {token["content"] for token in content["added_tokens"]}
    kinds = gguf.TokenType
    if model["type"] == "Unigram":
        pieces = [piece for piece, _ in model["vocab"]]
        writer.add_tokenizer_model("t5")
        writer.add_token_list(pieces)
        writer.add_token_scores([score for _, score in model["vocab"]])
        types = [kinds.CONTROL if piece in special or piece == "<mask>" else kinds.NORMAL for piece in pieces]
        types[3] = kinds.UNKNOWN
        writer.add_token_types(types)
        writer.add_remove_extra_whitespaces(True)
        table = content["normalizer"]["normalizers"][0]["precompiled_charsmap"]
        writer.add_precompiled_charsmap(base64.b64decode(table))
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(3)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        return
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    types = [kinds.CONTROL if piece in special else kinds.NORMAL for piece in pieces]
    if model["type"] == "WordPiece":
        writer.add_tokenizer_model("bert")
        spelled = [p if p in special else p[2:] if p.startswith("##") else f"▁{p}" for p in pieces]
        writer.add_token_list(spelled)
        writer.add_unk_token_id(pieces.index("[UNK]"))
        writer.add_sep_token_id(pieces.index("[SEP]"))
        writer.add_uint32("tokenizer.ggml.cls_token_id", pieces.index("[CLS]"))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(pieces)
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        first, last = ("[CLS]", "[SEP]") if "[CLS]" in special else ("<bos>", "<eos>")
        writer.add_bos_token_id(pieces.index(first))
        writer.add_eos_token_id(pieces.index(last))
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
    writer.add_token_types(types)


@pytest.mark.parametrize("name", KINDS)
def test_vectors(embedding_model: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    folder = embedding_model(name)
    path = write(folder, tmp_path / "model.gguf", name)
    cases = np.load(folder / "cases.npz")
    with load_model(path, LoadOptions("reference", task="auto")) as model:
        got = model.embed([str(text) for text in cases["texts"]])
    expected = cases["vectors"] / np.linalg.norm(cases["vectors"], axis=1, keepdims=True)
    np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("fixture", "name", "head"),
    [
        (
            "bge-reranker",
            "xlm-roberta",
            {
                f"classifier.{stored}.{kind}": f"{own}.{kind}"
                for stored, own in (("dense", "cls"), ("out_proj", "cls.output"))
                for kind in ("weight", "bias")
            },
        ),
    ],
)
def test_scores(
    embedding_model: Callable[[str], Path], tmp_path: Path, fixture: str, name: str, head: dict[str, str]
) -> None:
    folder = embedding_model(fixture)
    path = write(folder, tmp_path / "model.gguf", name, head)
    cases = np.load(folder / "cases.npz")
    with load_model(path, LoadOptions("reference", task="auto")) as model:
        got = [model.rerank(str(query), [str(document)])[0] for query, document in cases["pairs"]]
    np.testing.assert_allclose(got, cases["scores"], atol=2e-5)
