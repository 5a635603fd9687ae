"""A GGUF file means the same model as the folder it was made of, for every architecture the format has."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.archs import ARCHS
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights
from kukri.tests.gguf_writing import as_gguf

GRANITE = {"embedding_scale": 6.0, "attention.scale": 0.4, "residual_scale": 0.6, "logit_scale": 4.0}
SLIDING = [True, True, True, False]
MAMBA = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 1,
}
DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
    "rope.dimension_count": 8,
}
QWEN_EXPERTS = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 32,
}
DEEPSEEK = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 48,  # of the latent
    "attention.value_length": 32,
    "rope.dimension_count": 16,
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "leading_dense_block_count": 1,
}
DEEPSEEK_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LOCAL = {
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [True, False, True, True, False],
    "attention.shared_kv_layers": 2,
    "embedding_length_per_layer_input": 16,
    "final_logit_softcapping": 5.0,
}
# fixture → its architecture in GGUF, and the keys that say what its config.json does
CASES = {
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {}),
    "gemma2": (
        "gemma2",
        {
            "attention.sliding_window": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "attention.scale": 24**-0.5,
        },
    ),
    "phi3-partial": ("phi3", {"rope.dimension_count": 24}),
    "phi4-mini": (
        "phi3",
        {
            "rope.dimension_count": 24,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(8) / math.log(32)),
            "attention.sliding_window": 512,
        },
    ),
    "ministral3": (
        "mistral3",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
    ),
    "llama-yarn": (
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "smollm3": ("smollm3", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": (
        "olmo2",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_attn_factor": 1.2079441541679836,
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": SLIDING,
        },
    ),
    "granite": ("granite", GRANITE),
    "granite4-dense": ("granitehybrid", {**GRANITE, "rope.scaling.finetuned": True, "expert_count": 0}),
    "seed-oss": ("seed_oss", {}),
    "ernie4.5": ("ernie4_5", {}),
    "hunyuan-dense": ("hunyuan-dense", {"rope.freq_base": 10000.0 * 1000.0 ** (32 / 30)}),
    "exaone4": ("exaone4", {"attention.sliding_window": 16, "attention.sliding_window_pattern": SLIDING}),
    "exaone4-global": ("exaone4", {}),
    "glm4": ("glm4", {"rope.dimension_count": 16}),
    "cohere": ("command-r", {"logit_scale": 0.25}),
    "cohere2": ("cohere2", {"logit_scale": 0.25, "attention.sliding_window": 16}),
    "stablelm": ("stablelm", {"rope.dimension_count": 4}),
    "starcoder2": ("starcoder2", {"attention.sliding_window": 16}),
    "gpt2-original": ("gpt2", {}),
    "gpt-neox": ("gptneox", {"rope.dimension_count": 8, "use_parallel_residual": True}),
    "mixtral": ("llama", {"expert_count": 4, "expert_used_count": 2}),
    "qwen2-moe": (
        "qwen2moe",
        {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 64,
            "expert_shared_feed_forward_length": 96,
        },
    ),
    "qwen3-moe": (
        "qwen3moe",
        {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
    "gpt-oss": (
        "gpt-oss",
        {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 64,
            "attention.sliding_window": 16,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "glm4-moe": (
        "glm4moe",
        {
            "rope.dimension_count": 16,
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 32,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        },
    ),
    "minimax-m2": (
        "minimax-m2",
        {
            "rope.dimension_count": 16,
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_gating_func": 2,
        },
    ),
    "ernie4.5-moe": (
        "ernie4_5-moe",
        {
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 64,
            "interleave_moe_layer_step": 1,
        },
    ),
    "lfm2": (
        "lfm2",
        {"feed_forward_length": 128, "attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
    ),
    "lfm2-moe": (
        "lfm2moe",
        {
            "attention.head_count_kv": [0, 2, 0],
            "shortconv.l_cache": 3,
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
        },
    ),
    "qwen3-next": ("qwen3next", {**DELTA, **QWEN_EXPERTS}),
    "qwen3.5": ("qwen35", {**DELTA, "rope.dimension_sections": [2, 1, 1, 0]}),
    "qwen3.5-moe": (
        "qwen35moe",
        {**DELTA, **QWEN_EXPERTS, "feed_forward_length": 0, "rope.dimension_sections": [2, 1, 1, 0]},
    ),
    "granite4-h": (
        "granitehybrid",
        {
            **GRANITE,
            **MAMBA,
            "attention.head_count_kv": [0, 2, 0],
            "rope.scaling.finetuned": False,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_shared_feed_forward_length": 64,
        },
    ),
    "nemotron-h": (
        "nemotron_h_moe",
        {
            **MAMBA,
            "ssm.group_count": 2,
            "attention.head_count_kv": [0, 0, 2, 0, 0],
            "feed_forward_length": [0, 0, 0, 96, 0],
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_group_count": 1,
        },
    ),
    "falcon-h1": ("falcon-h1", {**MAMBA, "ssm.inner_size": 96, "ssm.time_step_rank": 6}),
    "deepseek-v2": (
        "deepseek2",
        {
            **DEEPSEEK,
            **DEEPSEEK_YARN,
            "attention.key_length_mla": 32,
            "attention.value_length_mla": 16,
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.0,
        },
    ),
    "deepseek-v3": (
        "deepseek2",
        {
            **DEEPSEEK,
            **DEEPSEEK_YARN,
            "attention.q_lora_rank": 32,
            "attention.key_length_mla": 32,
            "attention.value_length_mla": 16,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "expert_shared_count": 1,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
        },
    ),
    "glm4-moe-lite": (
        "deepseek2",
        {
            **DEEPSEEK,
            "attention.q_lora_rank": 32,
            "attention.key_length_mla": 40,
            "attention.value_length_mla": 32,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.8,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
    ),
    "gemma3n": (
        "gemma3n",
        {
            **LOCAL,
            "feed_forward_length": [64] * 5,
            "altup.num_inputs": 4,
            "altup.active_idx": 0,
            "activation_sparsity_scale": [NormalDist().inv_cdf(0.8)] * 2 + [-math.inf] * 3,
        },
    ),
    "gemma4": (
        "gemma4",
        {
            **LOCAL,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.key_length_swa": 32,
            "attention.value_length_swa": 32,
            "rope.dimension_count": 64,
            "rope.dimension_count_swa": 32,
            "rope.freq_base_swa": 10000.0,
            "feed_forward_length": [64, 64, 64, 128, 128],
        },
    ),
    "gemma4-moe": (
        "gemma4",
        {
            **LOCAL,
            "attention.sliding_window_pattern": [True, True, False],
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.key_length_swa": 32,
            "attention.value_length_swa": 32,
            "attention.head_count_kv": [2, 2, 1],
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
        },
    ),
}


def load(path, nope=()):
    """The program of a file; `nope`: layers without RoPE, which the format only tells of real models."""
    file = GGUFFile.open(path)
    config = config_from_gguf(file.metadata, file.tensors)
    layers = (replace(layer, rope=None) if i in nope else layer for i, layer in enumerate(config.layers))
    config = replace(config, layers=tuple(layers))
    return config, build_program(config, Weights(config, file.tensors))


@pytest.mark.parametrize("name", CASES)
def test_gguf_of_a_fixture(conformance, feed, tmp_path, name):
    arch, keys = CASES[name]
    path = as_gguf(conformance(name), tmp_path / "model.gguf", arch, **keys)
    config, program = load(path, nope={1} if name == "smollm3" else ())
    reference = np.load(conformance(name) / "reference.npz")
    logits = feed(ReferenceMachine(program, n_pages=3), PageTable(3), reference["input_ids"])
    expected = reference["logits_full" if "logits_full" in reference else "logits"]
    np.testing.assert_allclose(logits[reference["rows"]], expected, rtol=0, atol=4e-4)
    assert ARCHS[config.arch].gguf == arch


@pytest.fixture
def older_deepseek(conformance, tmp_path):
    """(metadata, tensors) of a file with one matrix for keys and values, and the lengths of heads."""
    arch, keys = CASES["deepseek-v2"]
    older = {"attention.head_count_kv": 4, "attention.key_length": 32, "attention.value_length": 16}
    keys = {key: value for key, value in keys.items() if not key.endswith("_mla")} | older
    path = as_gguf(conformance("deepseek-v2"), tmp_path / "model.gguf", arch, whole=("attn_kv_b",), **keys)
    file = GGUFFile.open(path)
    return file.metadata, dict(file.tensors)


def test_older_files_of_latent_attention(conformance, feed, older_deepseek):
    metadata, tensors = older_deepseek
    config = config_from_gguf(metadata, tensors)
    machine = ReferenceMachine(build_program(config, Weights(config, tensors)), n_pages=3)
    reference = np.load(conformance("deepseek-v2") / "reference.npz")
    logits = feed(machine, PageTable(3), reference["input_ids"])
    np.testing.assert_allclose(logits[reference["rows"]], reference["logits"], rtol=0, atol=4e-4)


def test_files_with_the_matrices_of_heads_in_both_forms(feed, older_deepseek):
    """Those that are apart are taken, also where all heads' rows make up one matrix."""
    metadata, tensors = older_deepseek
    logits = []
    for both in (False, True):
        for i in range(2 if both else 0):
            by_head = tensors[f"blk.{i}.attn_kv_b.weight"].dequantize().reshape(4, 32, 32)
            apart = {"attn_k_b": by_head[:, :16].swapaxes(1, 2), "attn_v_b": by_head[:, 16:]}
            for stem, values in apart.items():
                values = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
                name = f"blk.{i}.{stem}.weight"
                tensors[name] = QTensor(name, FORMATS["F32"], values.shape, values.view(np.uint8))
        config = config_from_gguf(metadata, tensors)
        machine = ReferenceMachine(build_program(config, Weights(config, tensors)), n_pages=1)
        logits.append(feed(machine, PageTable(1), np.arange(3, 33)))
    np.testing.assert_array_equal(*logits)


def test_quantised_matrices_of_keys_are_turned(feed, older_deepseek):
    """Into floats of the values that they stand for: blocks lie along the other axis."""
    metadata, tensors = older_deepseek
    logits = []
    for form in ("Q8_0", "F32"):
        for name in ("blk.0.attn_kv_b.weight", "blk.1.attn_kv_b.weight"):
            values = tensors[name].dequantize()
            blocks = values if form == "F32" else FORMATS[form].quantize(values.reshape(-1, 32))
            data = np.ascontiguousarray(blocks).view(np.uint8).reshape(len(values), -1)
            tensors[name] = QTensor(name, FORMATS[form], values.shape, data)
        config = config_from_gguf(metadata, tensors)
        machine = ReferenceMachine(build_program(config, Weights(config, tensors)), n_pages=1)
        logits.append(feed(machine, PageTable(1), np.arange(3, 33)))
    np.testing.assert_array_equal(*logits)


def test_layers_of_smollm3_in_gguf(conformance, tmp_path):
    """Every fourth has no RoPE, whatever the file says."""
    file = GGUFFile.open(as_gguf(conformance("smollm3"), tmp_path / "model.gguf", "smollm3"))
    many = {**file.tensors, **{f"t{i}": next(iter(file.tensors.values())) for i in range(9)}}
    config = config_from_gguf({**file.metadata, "smollm3.block_count": 9}, many)
    assert [layer.rope is None for layer in config.layers] == [False, False, False, True] * 2 + [False]


def test_granite_without_rope_in_gguf(conformance, tmp_path):
    keys = {**GRANITE, "rope.scaling.finetuned": False}
    config, _ = load(as_gguf(conformance("granite"), tmp_path / "model.gguf", "granite", **keys))
    assert all(layer.rope is None for layer in config.layers)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("phi4-mini", {"rope_factors_short.weight": None}, "rope_factors_short.weight is missing"),
        ("phi4-mini", {"blk.1.attn_qkv.weight": None}, "blk.1.attn_qkv.weight is missing"),
        ("phi4-mini", {"blk.0.attn_qkv.weight": (127, 64)}, r"attn_qkv.weight has shape \(127, 64\)"),
        ("phi4-mini", {"blk.0.ffn_up.weight": (128, 64)}, r"ffn_up.weight has shape \(128, 64\)"),
        ("gpt2-original", {"position_embd.weight": (63, 48)}, r"position_embd.weight has shape \(63, 48\)"),
        ("gpt2-original", {"blk.1.attn_qkv.bias": (143,)}, r"attn_qkv.bias has shape \(143,\)"),
        ("cohere", {"output_norm.bias": (64,)}, "output_norm.bias has no place"),
    ],
)
def test_damaged_tensors(conformance, tmp_path, name, change, message):
    arch, keys = CASES[name]
    file = GGUFFile.open(as_gguf(conformance(name), tmp_path / "model.gguf", arch, **keys))
    tensors = dict(file.tensors)
    for tensor, shape in change.items():
        tensors.pop(tensor, None)
        if shape:
            data = np.zeros((math.prod(shape[:-1]), shape[-1] * 4), np.uint8)
            tensors[tensor] = QTensor(tensor, FORMATS["F32"], shape, data)
    with pytest.raises(DamagedFile, match=message):
        Weights(config_from_gguf(file.metadata, tensors), tensors)


def test_layers_for_predicting_more_tokens_are_skipped(conformance, tmp_path):
    """In GGUF files they count as layers."""
    arch, keys = CASES["glm4-moe"]
    file = GGUFFile.open(as_gguf(conformance("glm4-moe"), tmp_path / "model.gguf", arch, **keys))
    tensors = {**file.tensors, "blk.2.nextn.enorm.weight": file.tensors["output_norm.weight"]}
    with pytest.raises(DamagedFile, match=r"blk\.2\.nextn"):
        Weights(config_from_gguf(file.metadata, tensors), tensors)
    metadata = {**file.metadata, "glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    config = config_from_gguf(metadata, tensors)
    assert config.n_layers == 2
    Weights(config, tensors)
