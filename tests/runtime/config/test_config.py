"""ModelConfig: what the two kinds of files say, and what happens when they lie."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kukri.quant.block import QTensor
from kukri.quant.errors import DamagedFile, UnsupportedModel
from kukri.quant.formats import FORMATS
from kukri.runtime.archs import ARCHS
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.config.moe import MoEConfig
from kukri.runtime.weights.experts import PROJECTIONS

LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
GEMMA3 = {
    **LLAMA,
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "head_dim": 32,
    "sliding_window": 16,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GEMMA3 = {key: value for key, value in GEMMA3.items() if key != "hidden_act"}
GGUF = {
    "general.architecture": "llama",
    "llama.vocab_size": 256,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}
GEMMA3_GGUF = {
    **{key.replace("llama.", "gemma3."): value for key, value in GGUF.items()},
    "general.architecture": "gemma3",
    "gemma3.block_count": 7,
    "gemma3.attention.key_length": 32,
    "gemma3.attention.value_length": 32,
    "gemma3.attention.sliding_window": 16,
    "gemma3.rope.freq_base": 1e6,
}

PHI3 = {
    **LLAMA,
    "model_type": "phi3",
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "mscale": 1.0},
}
GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 40}
YARN_GGUF = {
    **{key.replace("llama.", "mistral3."): value for key, value in GGUF.items()},
    "general.architecture": "mistral3",
    "mistral3.rope.scaling.type": "yarn",
    "mistral3.rope.scaling.factor": 4.0,
    "mistral3.rope.scaling.original_context_length": 64,
    "mistral3.rope.scaling.yarn_beta_fast": 32.0,
    "mistral3.attention.temperature_scale": 0.1,
}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "rope_interleave": True,
    "topk_method": "noaux_tc",
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
    },
}
GEMMA4 = {
    **{key: value for key, value in LLAMA.items() if key not in ("hidden_act", "rope_theta")},
    "model_type": "gemma4_text",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "per_layer_config": None,
    "use_bidirectional_attention": None,
    "hidden_size_per_layer_input": 8,
    "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}},
}
GEMMA3N = {
    **GEMMA3,
    "model_type": "gemma3n_text",
    "intermediate_size": [64] * 7,
    "activation_sparsity_pattern": [0.5] * 7,
    "altup_num_inputs": 4,
    "altup_active_idx": 0,
    "altup_correct_scale": True,
    "laurel_rank": 8,
    "num_kv_shared_layers": 0,
}
DEEPSEEK_GGUF = {
    **{key.replace("llama.", "deepseek2."): value for key, value in GGUF.items()},
    "general.architecture": "deepseek2",
    "deepseek2.attention.kv_lora_rank": 32,
    "deepseek2.attention.q_lora_rank": 16,
    "deepseek2.attention.key_length": 40,
    "deepseek2.attention.value_length": 32,
    "deepseek2.attention.key_length_mla": 24,
    "deepseek2.attention.value_length_mla": 16,
    "deepseek2.rope.dimension_count": 8,
    "deepseek2.rope.scaling.type": "yarn",
    "deepseek2.rope.scaling.factor": 4.0,
    "deepseek2.rope.scaling.yarn_log_multiplier": 0.1,
}
GEMMA4_GGUF = {
    **{key.replace("gemma3.", "gemma4."): value for key, value in GEMMA3_GGUF.items()},
    "general.architecture": "gemma4",
    "gemma4.attention.key_length_swa": 16,
    "gemma4.attention.value_length_swa": 16,
    "gemma4.attention.shared_kv_layers": 1,
    "gemma4.attention.sliding_window_pattern": [True, False] * 3 + [True],
    "gemma4.attention.head_count_kv": [2, 1] * 3 + [2],
    "gemma4.embedding_length_per_layer_input": 8,
    "gemma4.activation_sparsity_scale": [1.0] * 7,
    "gemma4.rope.dimension_count_swa": 16,
}
NEW_BASES = [DEEPSEEK, GEMMA4, GEMMA3N, DEEPSEEK_GGUF, GEMMA4_GGUF]


def tensor(*shape: int) -> QTensor:
    data = np.zeros((int(np.prod(shape[:-1])), shape[-1] * 4), np.uint8)
    return QTensor("", FORMATS["F32"], shape, data)


# Enough tensors for any honest claim about layers.
TENSORS = {"token_embd.weight": tensor(256, 64), **{f"t{i}": tensor(1, 1) for i in range(20)}}


def hf(base=LLAMA, **changes):
    return config_from_hf({**base, **changes}, TENSORS)


def gguf(base=GGUF, tensors=TENSORS, **changes):
    name = base["general.architecture"]
    return config_from_gguf({**base, **{f"{name}.{k}": v for k, v in changes.items()}}, tensors)


def test_the_two_kinds_of_files_agree():
    a, b = hf(), gguf()
    same = ("arch", "n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "vocab_size")
    same += ("context_length", "norm_eps", "activation", "attention_scale", "embed_scale", "norms")
    assert [getattr(a, key) for key in same] == [getattr(b, key) for key in same]
    assert (a.layers[0].rope.interleaved, b.layers[0].rope.interleaved) == (False, True)

    a, b = hf(GEMMA3, rope_scaling=None, query_pre_attn_scalar=32), gguf(GEMMA3_GGUF)
    assert [getattr(a, key) for key in same] == [getattr(b, key) for key in same]
    assert a.layers == b.layers
    assert (a.norm_offset, b.norm_offset) == (1.0, 0.0)
    assert a.embed_scale == 8.0
    assert a.tied


def test_layers_of_gemma3():
    layers = hf(GEMMA3).layers
    assert [layer.window for layer in layers] == [16, 16, 16, 16, 16, 0, 16]
    assert (layers[0].rope.base, layers[0].rope.factor) == (1e4, 1.0)
    assert (layers[5].rope.base, layers[5].rope.factor) == (1e6, 8.0)
    in_gguf = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert gguf(GEMMA3_GGUF, **in_gguf).layers == layers
    assert [layer.window for layer in hf(GEMMA3, sliding_window_pattern=2).layers] == [16, 0] * 3 + [16]
    assert [layer.window for layer in hf(GEMMA3, _sliding_window_pattern=3).layers][:3] == [16, 16, 0]
    types = ["full_attention"] * 6 + ["sliding_attention"]
    assert [layer.window for layer in hf(GEMMA3, layer_types=types).layers] == [0] * 6 + [16]


def test_gemma3_scale():
    assert hf(GEMMA3).attention_scale == 256**-0.5  # the class's default
    assert hf(GEMMA3, query_pre_attn_scalar=64).attention_scale == 64**-0.5
    assert gguf(GEMMA3_GGUF).attention_scale == 32**-0.5
    many = {f"t{i}": tensor(1, 1) for i in range(62)}
    assert gguf(GEMMA3_GGUF, many, block_count=62).attention_scale == 16**-0.5  # hidden / heads: the 27B
    assert gguf(GEMMA3_GGUF, **{"attention.scale": 0.5}).attention_scale == 0.5


def test_windows_of_qwen2():
    qwen2 = {**LLAMA, "model_type": "qwen2", "num_hidden_layers": 3, "sliding_window": 16}
    off = {"use_sliding_window": False, "max_window_layers": 0}
    on = {"use_sliding_window": True, "max_window_layers": 1}
    assert [layer.window for layer in hf(qwen2).layers] == [0, 0, 0]
    assert [layer.window for layer in hf(qwen2, **off).layers] == [0, 0, 0]
    assert [layer.window for layer in hf(qwen2, **on).layers] == [0, 16, 16]
    assert hf(qwen2).biases == {"attn_q", "attn_k", "attn_v"}


def test_windows_of_mistral_and_llama():
    mistral = {**LLAMA, "model_type": "mistral"}
    assert [layer.window for layer in hf(mistral, sliding_window=16).layers] == [16, 16]
    assert [layer.window for layer in hf(mistral, sliding_window=None).layers] == [0, 0]
    assert [layer.window for layer in hf(mistral).layers] == [4096, 4096]  # the class's default
    assert [layer.window for layer in hf(sliding_window=16).layers] == [0, 0]  # llama knows no such key
    assert [layer.window for layer in gguf(**{"attention.sliding_window": 16}).layers] == [16, 16]


def rotates(config):
    return [layer.rope is not None for layer in config.layers]


def test_layers_without_rope():
    smollm3 = {**LLAMA, "model_type": "smollm3", "num_hidden_layers": 5}
    assert rotates(hf(smollm3)) == [True, True, True, False, True]
    assert rotates(hf(smollm3, no_rope_layer_interval=2)) == [True, False, True, False, True]
    assert rotates(hf(smollm3, no_rope_layers=[0, 1, 1, 0, 1])) == [False, True, True, False, True]
    with pytest.raises(DamagedFile, match="no_rope_layers"):
        hf(smollm3, no_rope_layers=[1, 0])
    with pytest.raises(UnsupportedModel, match="layer_types"):
        hf(smollm3, use_sliding_window=True, sliding_window=16)
    exaone4 = {**LLAMA, "model_type": "exaone4", "num_hidden_layers": 5, "sliding_window": 16}
    windowed = [True, True, True, False, True]
    for pattern in ({}, {"sliding_window_pattern": 4}, {"sliding_window_pattern": "LLLG"}):
        config = hf(exaone4, **pattern)
        assert rotates(config) == [layer.window > 0 for layer in config.layers] == windowed
    for pattern in (None, 0, "LLLG"):
        assert rotates(hf(exaone4, sliding_window=None, sliding_window_pattern=pattern)) == [True] * 5
    with pytest.raises(DamagedFile, match="sliding_window_pattern"):
        hf(exaone4, sliding_window_pattern="LXG")
    granite4 = {**LLAMA, "model_type": "granitemoehybrid", "num_local_experts": 0}
    assert rotates(hf(granite4)) == [False, False]
    assert rotates(hf(granite4, position_embedding_type="rope")) == [True, True]
    assert rotates(hf({**LLAMA, "model_type": "granite"})) == [True, True]


def test_scales():
    granite = {**LLAMA, "model_type": "granite", "embedding_multiplier": 12, "logits_scaling": 8}
    config = hf(granite, residual_multiplier=0.22, attention_multiplier=0.0078125)
    assert (config.embed_scale, config.logit_scale, config.residual_scale) == (12.0, 0.125, 0.22)
    assert config.attention_scale == 0.0078125
    cohere = {**LLAMA, "model_type": "cohere"}
    assert hf(cohere).logit_scale == 0.0625  # the class's default
    assert hf(cohere, logit_scale=0.5).logit_scale == 0.5
    assert hf().logit_scale == 1.0


def test_gelu_of_gemma_is_the_approximation():
    gemma = {**LLAMA, "model_type": "gemma"}
    for activation in ("gelu", "gelu_pytorch_tanh", None):
        assert hf(gemma, hidden_act=activation).activation == "gelu_tanh"
    assert hf({**LLAMA, "model_type": "starcoder2"}, hidden_act="gelu").activation == "gelu"


def test_keys_of_gpt2():
    config = hf(GPT2)
    assert (config.hidden, config.n_layers, config.n_heads, config.ffn) == (48, 2, 3, 192)
    assert (config.context_length, config.max_context, hf().max_context) == (40, 40, None)
    assert (config.gated, config.tied, config.activation) == (False, True, "gelu_tanh")
    assert hf(GPT2, n_inner=100).ffn == 100
    assert rotates(config) == [False, False]


def test_biases_by_switch():
    qkv = {"attn_q", "attn_k", "attn_v"}
    seed = {**LLAMA, "model_type": "seed_oss"}
    assert hf(seed).biases == qkv
    assert hf(seed, attention_out_bias=True, attention_bias=False).biases == {"attn_output"}
    assert hf({**LLAMA, "model_type": "glm4"}, attention_bias=True).biases == qkv
    ffn = {"ffn_gate", "ffn_up", "ffn_down"}
    assert hf({**LLAMA, "model_type": "ernie4_5"}, use_bias=True).biases == qkv | ffn | {"attn_output"}


def test_experts():
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}
    router = {"model.layers.1.block_sparse_moe.gate.weight": tensor(4, 64)}
    config = config_from_hf(mixtral, {**TENSORS, **router})
    assert config.moe == MoEConfig(n_experts=4, top_k=2, width=128)
    assert [layer.is_moe for layer in config.layers] == [False, True]  # where there is a router
    assert hf().moe is None
    keys = {"expert_count": 4, "expert_used_count": 3, "expert_feed_forward_length": 32}
    config = gguf(tensors={**TENSORS, "blk.0.ffn_gate_inp.weight": tensor(4, 64)}, **keys)
    assert (config.arch, config.moe) == ("mixtral", MoEConfig(n_experts=4, top_k=3, width=32))
    assert [layer.is_moe for layer in config.layers] == [True, False]
    assert (gguf().arch, gguf(expert_count=0).arch) == ("llama", "llama")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts_per_tok": 5},
        {"num_experts_per_tok": 0},
        {"num_local_experts": 2**40},
        {"num_local_experts": "4"},
        {"n_group": 3},
        {"n_group": 2, "topk_group": 3},
        {"routed_scaling_factor": 0},
        {"norm_topk_prob": 1},
    ],
)
def test_damaged_routing(changes):
    with pytest.raises(DamagedFile) as error:
        hf({**LLAMA, "model_type": "mixtral", "num_local_experts": 4}, **changes)
    assert not isinstance(error.value, UnsupportedModel)


def test_experts_where_there_are_none():
    with pytest.raises(UnsupportedModel, match="gemma3 with experts"):
        gguf(GEMMA3_GGUF, expert_count=4)
    with pytest.raises(UnsupportedModel, match="qwen2 with experts"):
        hf({**LLAMA, "model_type": "qwen2"}, num_experts=4)
    with pytest.raises(UnsupportedModel, match="expert_gating_func"):
        gguf(expert_count=4, expert_used_count=2, expert_gating_func=3)


def test_optional_keys():
    assert hf(num_key_value_heads=None).n_kv_heads == 4
    assert hf(head_dim=None).head_dim == 16
    assert hf(head_dim=24).head_dim == 24
    assert hf(rope_theta=500000).layers[0].rope.base == 500000.0
    assert not hf().tied
    assert hf(tie_word_embeddings=True).tied
    assert gguf().tied
    assert not gguf(tensors={**TENSORS, "output.weight": tensor(256, 64)}).tied
    no_vocab = {key: value for key, value in GGUF.items() if key != "llama.vocab_size"}
    assert gguf(no_vocab).vocab_size == 256  # the embedding's
    assert gguf(**{"attention.head_count": np.array([4, 4], np.int32)}).n_heads == 4
    assert gguf(**{"rope.dimension_count": 8}).layers[0].rope.dims == 8
    assert gguf(tensors={**TENSORS, "rope_freqs.weight": tensor(8)}).layers[0].rope.divisors == (0.0,) * 8
    assert hf(attention_bias=True).biases == {"attn_q", "attn_k", "attn_v", "attn_output"}
    assert gguf(tensors={**TENSORS, "blk.0.attn_q.bias": tensor(64)}).biases == {"attn_q"}


def test_wrapper_around_a_text_config():
    text = {"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 64, "sliding_window": 16}
    config = config_from_hf({"model_type": "gemma3", "text_config": text, "vision_config": {}}, TENSORS)
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.context_length) == (262208, 131072)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"num_key_value_heads": 3},
        {"num_key_value_heads": 8},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 10**100},
        {"hidden_size": -64},
        {"hidden_size": 65},
        {"hidden_size": 64.5},
        {"hidden_size": "64"},
        {"hidden_size": True},
        {"hidden_size": [64]},
        {"hidden_size": None},
        {"vocab_size": 2**31},
        {"intermediate_size": 0},
        {"head_dim": 15},
        {"head_dim": {}},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": -1e-5},
        {"rms_norm_eps": 0},
        {"rms_norm_eps": float("inf")},
        {"rms_norm_eps": 10**400},
        {"rope_theta": 0},
        {"rope_theta": "1e4"},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": 7, "factor": 2.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"rope_parameters": [1]},
        {"partial_rotary_factor": 1e300},
        {"partial_rotary_factor": 0.01},
        {"max_position_embeddings": 0},
        {"max_position_embeddings": 10**18},
        {"text_config": 3},
        {"tie_word_embeddings": "yes"},
        {"hidden_act": 3},
    ],
    ids=str,
)
def test_damaged_config_json(changes):
    with pytest.raises(DamagedFile) as error:
        hf(**changes)
    assert not isinstance(error.value, UnsupportedModel)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.head_count": 0},
        {"attention.head_count_kv": 3},
        {"attention.head_count": np.array([], np.int32)},
        {"attention.head_count": np.zeros(2, np.int32)},
        {"attention.head_count": ["4"]},
        {"block_count": 10**9},
        {"block_count": 2**63},
        {"embedding_length": 0},
        {"embedding_length": 63},
        {"attention.layer_norm_rms_epsilon": float("nan")},
        {"attention.layer_norm_rms_epsilon": "small"},
        {"attention.layer_norm_rms_epsilon": None},
        {"context_length": None},
        {"rope.dimension_count": 15},
        {"rope.dimension_count": 18},
        {"rope.dimension_count": 0},
        {"rope.freq_base": float("inf")},
        {"rope.scaling.factor": -1.0},
        {"rope.scaling.type": 1},
        {"attention.sliding_window": -1},
        {"vocab_size": 1.5},
    ],
    ids=str,
)
def test_damaged_gguf(changes):
    with pytest.raises(DamagedFile) as error:
        gguf(**changes)
    assert not isinstance(error.value, UnsupportedModel)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_damaged_layer_types():
    for types in ("full_attention", ["full_attention"], [None] * 7, 3):
        with pytest.raises(DamagedFile):
            hf(GEMMA3, layer_types=types)


@pytest.mark.parametrize(
    ("changes", "named", "listed"),
    [
        ({"model_type": "mamba"}, "mamba", "qwen2"),
        ({"model_type": "x" * 10**6 + "\n"}, "xxx", "llama"),
        ({"model_type": ""}, "''", "llama"),
        ({"rope_scaling": {"type": "spiral", "factor": 4.0}}, "spiral", "llama3"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "spiral"}}, "spiral", "longrope"),
        ({"model_type": "qwen3", "layer_types": ["mamba", "attention"]}, "mamba", "sliding_attention"),
        ({"model_type": "granitemoehybrid", "layer_types": ["rwkv", "attention"]}, "rwkv", "mamba"),
        ({"hidden_act": "relu6"}, "relu6", "silu"),
        ({"use_cla": True}, "use_cla", "true"),
        ({"scale_attn_weights": False}, "scale_attn_weights", "false"),
        ({"use_bidirectional_attention": "sideways"}, "bidirectional", "sideways"),
        ({"model_type": "mixtral", "num_local_experts": 4, "scoring_func": "x"}, "scoring_func", "sigmoid"),
    ],
)
def test_unsupported_config_json(changes, named, listed):
    with pytest.raises(UnsupportedModel) as error:
        hf(**changes)
    assert named in str(error.value)
    assert listed in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope.scaling.type": "spiral"}, "spiral"),
        ({"attention.value_length": 8}, "8"),
        ({"attention.head_count": np.array([4, 2], np.int32)}, "head_count"),
    ],
)
def test_unsupported_gguf(changes, named):
    with pytest.raises(UnsupportedModel, match=named):
        gguf(**changes)


def test_unsupported_architecture_in_gguf():
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama.*qwen2.*gemma3"):
        config_from_gguf({"general.architecture": "mamba"}, TENSORS)
    for architecture in ({}, {"general.architecture": 7}):
        with pytest.raises(DamagedFile, match="architecture"):
            config_from_gguf(architecture, TENSORS)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "full_attention"]), st.floats(), max_size=2),
    st.integers(-2, 9).map(lambda n: np.full(3, n, np.int32)),
    st.just(np.zeros((2, 2), np.float32)),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), value=JUNK)
def test_any_value_anywhere(data, value):
    """A wrong value gives a config or one line, never another exception."""
    older = [LLAMA, GEMMA3, PHI3, MIXTRAL, GPT2, GGUF, GEMMA3_GGUF, YARN_GGUF]
    base = data.draw(st.sampled_from([*older, *NEW_BASES]))
    optional = ["layer_types", "rope_parameters", "text_config", "sliding_window_pattern", "attention_bias"]
    optional += ["no_rope_layers", "rotary_dim", "logit_scale", "expert_count", "num_experts", "n_group"]
    key = data.draw(st.sampled_from([*base, *optional]))
    if isinstance(base.get(key), dict):
        inner = data.draw(st.sampled_from(list(base[key])))
        value = {**base[key], inner: value}
    read = config_from_gguf if "general.architecture" in base else config_from_hf
    message = ""
    try:
        config = read({**base, key: value}, TENSORS)
        assert config.n_layers <= len(TENSORS)
        for rope in {layer.rope for layer in config.layers} - {None}:
            rope.inv_freq()
            rope.inv_freq(rope.original_context + 1)
    except DamagedFile as error:
        message = str(error)
    assert "\n" not in message


def test_bases_of_any_value_are_sound():
    for base in NEW_BASES:
        read = config_from_gguf if "general.architecture" in base else config_from_hf
        assert read(base, TENSORS).n_layers >= 2


def test_rows_are_complete():
    for name, arch in ARCHS.items():
        assert name == arch.name
        assert {"attn_q", "attn_output"} <= set(arch.layer)
        assert {"attn_k", "attn_v"} <= set(arch.layer) or {"attn_k_b", "attn_v_b"} <= set(arch.layer)
        assert {"ffn_up", "ffn_down"} <= set(arch.layer) or {*PROJECTIONS, "ffn_gate_inp"} <= set(arch.layer)
        json.dumps(dict(arch.hf_defaults))
