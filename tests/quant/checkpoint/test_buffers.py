"""Buffers: constants that PyTorch saved beside the weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kukri.quant.checkpoint.buffers import is_buffer
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile

BUFFERS = [
    "gpt_neox.layers.0.attention.bias",
    "gpt_neox.layers.11.attention.masked_bias",
    "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
    "transformer.h.0.attn.bias",
    "h.0.attn.bias",
    "h.0.attn.masked_bias",
    "transformer.h.3.attn.attention.bias",
    "transformer.h.3.attn.attention.masked_bias",
    "model.layers.0.self_attn.rotary_emb.inv_freq",
    "model.layers.0.self_attn.rotary_emb.cos_cached",
    "model.rotary_emb.inv_freq",
    "model.rotary_emb.original_inv_freq",
    "model.rotary_emb_local.inv_freq",
    "model.rotary_emb.full_attention_inv_freq",
    "transformer.rotary_pos_emb.inv_freq",
    "rope.freqs",
    "model.embeddings.position_ids",
    "vision_tower.vision_model.embeddings.position_ids",
    "model.causal_mask",
]
WEIGHTS = [
    "model.layers.0.self_attn.q_proj.bias",
    "transformer.h.0.attn.c_attn.bias",
    "gpt_neox.layers.0.attention.dense.bias",
    "gpt_neox.layers.0.attention.query_key_value.bias",
    "model.layers.0.input_layernorm.bias",
    "model.embed_positions.weight",
]
VALUES = [
    np.ones((1, 1, 8, 8), bool),
    np.ones((1, 1, 8, 8), np.uint8),
    np.ones((1, 1, 2048, 2048), np.int8),
    np.arange(8)[None],
    np.ones(8, np.float64),
    np.array(-1e9, np.float32),
    np.array(-1e4, np.float16),
    np.ones((1, 0, 8), np.float32),
]


@pytest.mark.parametrize("name", BUFFERS)
def test_names_of_buffers(name: str) -> None:
    assert is_buffer(name)


@pytest.mark.parametrize("name", WEIGHTS)
def test_names_of_weights(name: str) -> None:
    assert not is_buffer(name)


@pytest.mark.parametrize("values", VALUES, ids=lambda values: f"{values.dtype} {values.shape}")
def test_buffers_of_any_dtype_and_size(tmp_path: Path, values: np.ndarray) -> None:
    weight = np.ones((4, 4), np.float32)
    (tmp_path / "config.json").write_text("{}")
    save_file({"weight": weight, "h.0.attn.bias": values}, tmp_path / "model.safetensors")
    assert [*Checkpoint.open(tmp_path).tensors] == ["weight"]
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    index = {"weight_map": {"weight": "a.safetensors", "h.0.attn.bias": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [*Checkpoint.open(tmp_path).tensors] == ["weight"]
    save_file({"weight": weight, "h.0.attn.other": np.ones(4, bool)}, tmp_path / "model.safetensors")
    with pytest.raises(DamagedFile, match=r"h\.0\.attn\.other' has dtype BOOL"):
        Checkpoint.open(tmp_path)
