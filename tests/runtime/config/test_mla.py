"""Latent attention: its ops, that absorbing matrices changes nothing, and files that do not fit."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.runtime import ops
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.config.mla import MLAConfig
from kukri.runtime.program.build import build_program
from kukri.runtime.program.mla import absorbed_attention
from kukri.runtime.weights.binding import Weights
from kukri.runtime.weights.mla_heads import HeadTensors
from kukri.runtime.weights.tensors import transposed
from kukri.tests.runtime.reference.test_machine import attend, batch, buffer, machine_of, matrix, run

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("behind", [0, 3])
def test_head_matmul(behind):
    """Each head has its own matrix; columns that it does not take follow the product."""
    x, weights = normal(4, 2 * (5 + behind)), [normal(6, 5), normal(6, 5)]
    width = 2 * (6 + behind)
    op = ops.HeadMatMul(buffer("x", x.shape[1]), buffer("y", width), tuple(map(matrix, weights)))
    got = run(machine_of(op, x=x), batch([0, 1, 2, 3]), "y").reshape(4, 2, 6 + behind)
    heads = x.reshape(4, 2, 5 + behind)
    for h in range(2):
        np.testing.assert_allclose(got[:, h, :6], heads[:, h, :5] @ weights[h].T, rtol=1e-5)
        np.testing.assert_array_equal(got[:, h, 6:], heads[:, h, 5:])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_within_heads(interleaved):
    """From `start` on it is what it is for those dimensions alone."""
    x, inv_freq = normal(3, 2 * 7), np.array([1.0, 0.3], np.float32)
    op = ops.RoPE(buffer("x", 14), 2, inv_freq, interleaved, start=2)
    got = run(machine_of(op, x=x), batch([0, 5, 9]), "x").reshape(3, 2, 7)
    heads = x.reshape(3, 2, 7)
    alone = ops.RoPE(buffer("x", 8), 2, inv_freq, interleaved)
    inner = heads[:, :, 2:6].reshape(3, 8)
    expected = run(machine_of(alone, x=inner), batch([0, 5, 9]), "x").reshape(3, 2, 4)
    np.testing.assert_array_equal(got[:, :, 2:6], expected)
    np.testing.assert_array_equal(got[:, :, [0, 1, 6]], heads[:, :, [0, 1, 6]])


def test_norm_of_a_part_of_a_row():
    x, weight = normal(2, 7), normal(4)
    op = ops.RMSNorm(buffer("x", 7), buffer("x", 7), weight, eps=0.1)
    got = run(machine_of(op, x=x), batch([0, 1]), "x")
    for row in range(2):
        scale = math.sqrt(np.mean(x[row, :4].astype(float) ** 2) + 0.1)
        np.testing.assert_allclose(got[row, :4], x[row, :4] / scale * weight, rtol=1e-5)
    np.testing.assert_array_equal(got[:, 4:], x[:, 4:])


@pytest.mark.parametrize("page_size", [3, 64])
def test_values_that_are_beginnings_of_keys(page_size):
    n, heads, d, values = 8, 3, 6, 4
    q, k = normal(n, heads, d), normal(n, 1, d)
    names = [buffer("q", heads * d), buffer("k", d), buffer("k", d), buffer("a", heads * values)]
    op = ops.Attend(*names, layer=0, heads=heads, kv_heads=1, head_dim=d, scale=0.5)
    layers = [ops.CacheLayer(1, d, value_dim=0)]
    machine = machine_of(op, layers=layers, n_pages=8, page_size=page_size, q=q.reshape(n, -1), k=k[:, 0])
    got = run(machine, batch(list(range(n))), "a", page_size, 8)
    expected = attend(q, k, k).reshape(n, heads, d)[:, :, :values]
    np.testing.assert_allclose(got.reshape(n, heads, values), expected, rtol=1e-5, atol=1e-6)
    assert machine.values[0].size == 0
    assert (layers[0].width, ops.CacheLayer(2, 8).width, ops.CacheLayer(2, 8, 4).width) == (6, 32, 24)


@pytest.mark.parametrize("fused", [False, True])
def test_absorbed_matrices(fused):
    """The same as keys and values made of the latent for each head, before attention."""
    n, heads, sizes = 9, 3, MLAConfig(kv_rank=10, q_rank=0, nope_dim=6, rope_dim=4, value_dim=5)
    q, k = normal(n, heads, sizes.head_dim), normal(n, sizes.cache_width)
    key_rows, value_rows = (
        normal(heads, sizes.nope_dim, sizes.kv_rank),
        normal(heads, sizes.value_dim, sizes.kv_rank),
    )

    class Stored:  # names of a file
        def __call__(self, name: str) -> str:
            return "both" if fused else name

    both = np.concatenate([key_rows, value_rows], axis=1)
    held = {
        "both": both.reshape(-1, sizes.kv_rank),
        "blk.0.attn_k_b.weight": key_rows.swapaxes(1, 2),
        "blk.0.attn_v_b.weight": value_rows,
    }
    tensors = {
        name: QTensor(name, FORMATS["F32"], v.shape, matrix(v.reshape(-1, v.shape[-1])).data)
        for name, v in held.items()
    }
    matrices = HeadTensors(0, sizes, heads, Stored(), tensors)
    buffers = [
        buffer("q", heads * sizes.head_dim),
        buffer("k", sizes.cache_width),
        buffer("a", heads * sizes.value_dim),
    ]
    program = absorbed_attention(matrices, *buffers, cache_layer=0, scale=0.5)
    layers = [ops.CacheLayer(1, sizes.cache_width, value_dim=0)]
    machine = machine_of(*program, layers=layers, q=q.reshape(n, -1), k=k)
    got = run(machine, batch(list(range(n))), "a")

    latent, shared = k[:, : sizes.kv_rank], k[:, sizes.kv_rank :]
    keys = np.einsum("tr,hpr->thp", latent, key_rows)
    keys = np.concatenate([keys, np.repeat(shared[:, None], heads, axis=1)], axis=2)
    values = np.einsum("tr,hvr->thv", latent, value_rows)
    padded = np.concatenate([values, np.zeros((n, heads, sizes.head_dim - sizes.value_dim))], axis=2)
    expected = attend(q, keys, padded).reshape(n, heads, -1)[:, :, : sizes.value_dim]
    np.testing.assert_allclose(got.reshape(n, heads, -1), expected, rtol=1e-4, atol=1e-4)


def test_transposed():
    values = normal(3, 32)
    np.testing.assert_array_equal(transposed(matrix(values)).dequantize(), values.T)
    half = QTensor("h", FORMATS["F16"], (3, 32), values.astype(np.float16).view(np.uint8))
    assert transposed(half).format.name == "F16"
    np.testing.assert_array_equal(transposed(half).dequantize(), half.dequantize().T)
    blocks = QTensor("q", FORMATS["Q8_0"], (3, 32), FORMATS["Q8_0"].quantize(values).reshape(3, -1))
    np.testing.assert_array_equal(transposed(blocks).dequantize(), blocks.dequantize().T)


def test_what_is_cached(conformance):
    """One latent and one rotated part of a key for each token and layer, and nothing for each head."""
    checkpoint = Checkpoint.open(conformance("deepseek-v3"))
    config = config_from_hf(checkpoint.config, checkpoint.tensors)
    program = build_program(config, Weights(config, checkpoint.tensors))
    assert program.cache_layers == (ops.CacheLayer(1, 32 + 16, value_dim=0),) * 2
    assert config.n_kv_heads == 1


def hf(conformance, **changes):
    config = json.loads((conformance("deepseek-v3") / "config.json").read_text())
    return config_from_hf({**config, **changes}, Checkpoint.open(conformance("deepseek-v3")).tensors)


def test_scale_of_scores(conformance):
    plain = 32**-0.5
    growth = (0.1 * math.log(4) + 1) ** 2
    assert hf(conformance).attention_scale == pytest.approx(plain * growth)
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert hf(conformance, rope_scaling=scaling).attention_scale == pytest.approx(plain)
    halved = hf(conformance, rope_scaling={**scaling, "mscale": 0.5, "mscale_all_dim": 0.5})
    assert halved.attention_scale == pytest.approx(plain * (0.05 * math.log(4) + 1) ** 2)
    assert halved.layers[0].rope.attention_factor == 1.0
    assert hf(conformance, rope_scaling=None).attention_scale == pytest.approx(plain)


def test_routing_of_deepseek(conformance):
    assert (hf(conformance).moe.groups, hf(conformance).moe.group_best) == (4, 2)
    v2 = {"model_type": "deepseek_v2", "scoring_func": "softmax"}
    limited = hf(conformance, **v2, topk_method="group_limited_greedy").moe
    assert (limited.groups, limited.top_groups, limited.group_best) == (4, 2, 1)
    assert hf(conformance, **v2, topk_method="greedy").moe.groups == 1
    assert hf(conformance, rope_interleave=False).layers[0].rope.interleaved is False


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_lora_rank": 0},
        {"kv_lora_rank": "32"},
        {"q_lora_rank": -1},
        {"qk_rope_head_dim": 15},
        {"qk_nope_head_dim": 2**40},
        {"v_head_dim": 0},
    ],
    ids=str,
)
def test_damaged_sizes(conformance, changes):
    with pytest.raises(DamagedFile):
        hf(conformance, **changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"kv_lora_rank": 31}, "kv_"),
        ({"kv_lora_rank": 2**31 - 1}, "kv_"),
        ({"v_head_dim": 2**31 - 1}, "o_proj|kv_b_proj"),
        ({"qk_nope_head_dim": 17}, "q_b_proj"),
        ({"q_lora_rank": None}, "q_proj.weight is missing"),
        ({"q_lora_rank": 33}, "q_a_"),
    ],
    ids=str,
)
def test_sizes_that_are_not_those_of_the_tensors(conformance, changes, name):
    checkpoint = Checkpoint.open(conformance("deepseek-v3"))
    with pytest.raises(DamagedFile, match=name):
        Weights(hf(conformance, **changes), checkpoint.tensors)


@pytest.mark.parametrize("missing", [True, False])
def test_damaged_matrices_of_heads(conformance, missing):
    checkpoint = Checkpoint.open(conformance("deepseek-v3"))
    tensors, name = dict(checkpoint.tensors), "model.layers.1.self_attn.kv_b_proj.weight"
    config = config_from_hf(checkpoint.config, tensors)
    del tensors[name]
    if not missing:
        tensors[name] = matrix(np.zeros((127, 32)))
    with pytest.raises(DamagedFile, match=r"kv_b_proj.weight (is missing|has shape \(127, 32\))"):
        Weights(config, tensors)


def test_lengths_in_gguf():
    keys = {
        "context_length": 64,
        "embedding_length": 64,
        "block_count": 1,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.kv_lora_rank": 32,
        "attention.key_length": 24,
        "attention.value_length": 20,
        "rope.dimension_count": 24,
        "vocab_size": 100,
    }
    keys = {f"deepseek2.{key}": value for key, value in keys.items()}
    tensors = {"token_embd.weight": matrix(np.zeros((100, 64)))}
    with pytest.raises(DamagedFile, match="dimension_count"):
        config_from_gguf({"general.architecture": "deepseek2", **keys}, tensors)
    keys["deepseek2.rope.dimension_count"] = 8
    config = config_from_gguf({"general.architecture": "deepseek2", **keys}, tensors)
    assert config.mla == MLAConfig(kv_rank=32, q_rank=0, nope_dim=16, rope_dim=8, value_dim=20)
