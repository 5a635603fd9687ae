"""Strict binding of tensors, and that a GGUF file means the same model as the checkpoint it was made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.runtime.archs import ARCHS
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.config.tensor_names import TensorNames
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights


def float_tensor(name: str, values: np.ndarray) -> QTensor:
    values = np.ascontiguousarray(values, np.float32)
    data = values.reshape(-1, values.shape[-1]).view(np.uint8)
    return QTensor(name, FORMATS["F32"], values.shape, data)


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from halves (x0, x1, … y0, y1, …) to pairs (x0, y0, x1, y1, …), head by head."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def as_gguf(checkpoint: Checkpoint, config) -> dict[str, QTensor]:
    """A checkpoint's tensors as the llama architecture of GGUF has them."""
    arch = ARCHS[config.arch]
    names = ["token_embd.weight", "output_norm.weight", *([] if config.tied else ["output.weight"])]
    names += [f"blk.{i}.{stem}.weight" for i in range(config.n_layers) for stem in arch.layer]
    tensors = {}
    for name in names:
        values = checkpoint.tensors[TensorNames(arch, checkpoint.tensors, from_gguf=False)(name)].dequantize()
        if "attn_q." in name:
            values = interleaved(values, config.n_heads)
        if "attn_k." in name:
            values = interleaved(values, config.n_kv_heads)
        tensors[name] = float_tensor(name, values)
    return tensors


def metadata(config, **more) -> dict[str, object]:
    keys = {
        "context_length": config.context_length,
        "embedding_length": config.hidden,
        "block_count": config.n_layers,
        "feed_forward_length": config.ffn,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.layers[0].rope.base,
        **more,
    }
    return {"general.architecture": "llama", **{f"llama.{key}": value for key, value in keys.items()}}


@pytest.mark.parametrize("name", ["llama", "llama-gqa", "llama3-rope", "llama-linear-rope", "mistral"])
def test_gguf_of_a_checkpoint(conformance, feed, name):
    """The llama GGUF layout: paired rows of q and k, Llama 3's frequencies as a tensor, a window by key."""
    checkpoint = Checkpoint.open(conformance(name))
    config = config_from_hf(checkpoint.config, checkpoint.tensors)
    tensors = as_gguf(checkpoint, config)
    rope, more = config.layers[0].rope, {}
    if rope.scaling:
        divisors = replace(rope, scaling=None).inv_freq() / rope.inv_freq()
        tensors["rope_freqs.weight"] = float_tensor("rope_freqs.weight", divisors)
    if rope.factor != 1:
        more = {"rope.scaling.type": "linear", "rope.scaling.factor": rope.factor}
    if config.layers[0].window:
        more["attention.sliding_window"] = config.layers[0].window
    in_gguf = config_from_gguf(metadata(config, **more), tensors)
    machine = ReferenceMachine(build_program(in_gguf, Weights(in_gguf, tensors)), n_pages=3)
    reference = np.load(conformance(name) / "reference.npz")
    logits = feed(machine, PageTable(3), reference["input_ids"])
    np.testing.assert_allclose(logits[reference["rows"]], reference["logits"], rtol=0, atol=2e-4)


@pytest.fixture
def qwen2(conformance):
    checkpoint = Checkpoint.open(conformance("qwen2"))
    return config_from_hf(checkpoint.config, checkpoint.tensors), dict(checkpoint.tensors)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.1.self_attn.q_proj.bias",
        "model.layers.0.self_attn.k_proj.bias",
    ],
)
def test_missing_tensor(qwen2, name):
    config, tensors = qwen2
    del tensors[name]
    with pytest.raises(DamagedFile, match=f"{name} is missing"):
        Weights(config, tensors)


def test_missing_output_matrix(qwen2):
    config, tensors = qwen2
    with pytest.raises(DamagedFile, match=r"lm_head\.weight is missing"):
        Weights(replace(config, tied=False), tensors)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "vision_tower.patch.weight",
        "lm_head.bias",
    ],
)
def test_unused_tensor(qwen2, name):
    config, tensors = qwen2
    with pytest.raises(DamagedFile, match=f"{name} has no place"):
        Weights(config, {**tensors, name: float_tensor(name, np.ones(64))})


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"])
def test_intended_skips(qwen2, name):
    config, tensors = qwen2
    Weights(config, {**tensors, name: float_tensor(name, np.ones(64))})


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("vocab_size", 255, "embed_tokens"),
        ("vocab_size", 2**31 - 1, "embed_tokens"),
        ("hidden", 2**31 - 1, "embed_tokens"),
        ("n_kv_heads", 4, "k_proj"),
        ("n_heads", 2**30, "q_proj"),
        ("head_dim", 2**30, "q_proj"),
        ("ffn", 2**31 - 1, "gate_proj"),
    ],
)
def test_shapes(qwen2, field, value, name):
    """A claim about sizes is held against the tensors before anything is made from it."""
    config, tensors = qwen2
    with pytest.raises(DamagedFile, match=rf"{name}.* has shape \("):
        Weights(replace(config, **{field: value}), tensors)


def test_claims_of_a_gguf_file(qwen2):
    config, tensors = qwen2
    named = {"token_embd.weight": tensors["model.embed_tokens.weight"]}
    more = {"output_norm.weight": tensors["model.norm.weight"]}
    for stated in (1, 255, 257, 1 << 24):
        assert config_from_gguf(metadata(config, vocab_size=stated), named | more).vocab_size == 256
    for stated in (0, (1 << 24) + 1, 2**31 - 1):
        with pytest.raises(DamagedFile, match="vocab_size is"):
            config_from_gguf(metadata(config, vocab_size=stated), named | more)
    claims = metadata(config, feed_forward_length=2**31 - 1)
    claimed = config_from_gguf(claims, {**named, "blk.0.ffn_up.weight": tensors["model.norm.weight"]})
    with pytest.raises(DamagedFile, match=r"tensor blk\.0\."):
        Weights(claimed, named)
    divisors = {"rope_freqs.weight": float_tensor("rope_freqs.weight", np.ones(7))}
    with pytest.raises(DamagedFile, match="rope_freqs"):
        config_from_gguf(metadata(config), {**named, **divisors})


def test_norms_of_gemma3(conformance):
    """Hugging Face stores w where GGUF stores 1 + w."""
    checkpoint = Checkpoint.open(conformance("gemma3"))
    weights = Weights(config_from_hf(checkpoint.config, checkpoint.tensors), checkpoint.tensors)
    stored = checkpoint.tensors["model.norm.weight"].dequantize()
    np.testing.assert_array_equal(weights.norm("output_norm.weight"), stored + np.float32(1))


@pytest.mark.parametrize("name", ["llama", "qwen2"])  # the second is tied
def test_a_bias_on_the_output(conformance, feed, name):
    checkpoint = Checkpoint.open(conformance(name))
    bias = np.arange(256, dtype=np.float32)
    logits = []
    for more in ({}, {"lm_head.bias": float_tensor("lm_head.bias", bias)}):
        tensors = {**checkpoint.tensors, **more}
        config = config_from_hf(checkpoint.config, tensors)
        machine = ReferenceMachine(build_program(config, Weights(config, tensors)), n_pages=1)
        logits.append(feed(machine, PageTable(1), [5, 6, 7]))
    np.testing.assert_allclose(logits[1], logits[0] + bias, atol=1e-4)


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", ""])
def test_prefixes_of_names(conformance, prefix):
    """Wrappers of the text model are written with several prefixes; bare ones without any."""
    checkpoint = Checkpoint.open(conformance("gemma3-multimodal"))
    tensors = {
        name.replace("language_model.model.", prefix): tensor for name, tensor in checkpoint.tensors.items()
    }
    assert f"{prefix}layers.0.self_attn.q_proj.weight" in tensors
    Weights(config_from_hf(checkpoint.config, tensors), tensors)


def test_fused_projections_are_views(conformance):
    checkpoint = Checkpoint.open(conformance("phi3-partial"))
    weights = Weights(config_from_hf(checkpoint.config, checkpoint.tensors), checkpoint.tensors)
    whole = checkpoint.tensors["model.layers.1.self_attn.qkv_proj.weight"]
    parts = [weights.matrix(f"blk.1.attn_{part}.weight") for part in "qkv"]
    assert [part.shape for part in parts] == [(64, 64), (32, 64), (32, 64)]
    assert all(np.shares_memory(part.data, whole.data) for part in parts)
    np.testing.assert_array_equal(np.concatenate([part.dequantize() for part in parts]), whole.dequantize())


def test_fused_projections_by_head_need_as_many_of_each(conformance):
    checkpoint = Checkpoint.open(conformance("gpt-neox"))
    tensors = dict(checkpoint.tensors)
    for i in range(2):
        name = f"gpt_neox.layers.{i}.attention.query_key_value"
        for kind in ("weight", "bias"):
            values = tensors[f"{name}.{kind}"].dequantize()[:128]
            tensors[f"{name}.{kind}"] = float_tensor(name, values)
    config = config_from_hf({**checkpoint.config, "num_key_value_heads": 1}, tensors)
    with pytest.raises(DamagedFile, match="query_key_value"):
        Weights(config, tensors)


def test_names_of_gpt2_with_and_without_a_prefix(conformance):
    checkpoint = Checkpoint.open(conformance("gpt2-original"))
    tensors = {f"transformer.{name}": tensor for name, tensor in checkpoint.tensors.items()}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]  # newer files have it, tied as it is
    Weights(config_from_hf(checkpoint.config, tensors), tensors)


def stacked_experts(tensors: dict[str, QTensor], block: str) -> dict[str, QTensor]:
    """The same with one tensor for gate and up of all experts, and one for down, as newer files have them."""
    out = {name: tensor for name, tensor in tensors.items() if f"{block}.experts." not in name}
    for i in range(2):
        prefix = f"model.layers.{i}.{block}.experts"
        each = [[tensors[f"{prefix}.{e}.w{n}.weight"].dequantize() for e in range(4)] for n in (1, 3, 2)]
        gate, up, down = (np.stack(matrices) for matrices in each)
        out[f"{prefix}.gate_up_proj"] = float_tensor("", np.concatenate([gate, up], axis=1))
        out[f"{prefix}.down_proj"] = float_tensor("", down)
    return out


def test_stacked_experts_are_views(conformance):
    checkpoint = Checkpoint.open(conformance("mixtral"))
    config = config_from_hf(checkpoint.config, checkpoint.tensors)
    tensors = stacked_experts(checkpoint.tensors, "block_sparse_moe")
    single, stacked = Weights(config, checkpoint.tensors), Weights(config, tensors)
    for stem in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
        pairs = zip(single.experts(1).matrices[stem], stacked.experts(1).matrices[stem], strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(one.dequantize(), other.dequantize())
    whole = tensors["model.layers.1.block_sparse_moe.experts.gate_up_proj"]
    assert np.shares_memory(stacked.experts(1).matrices["ffn_up_exps"][3].data, whole.data)


@pytest.mark.parametrize(
    ("fixture", "name", "shape", "message"),
    [
        ("mixtral", "layers.0.block_sparse_moe.experts.3.w2.weight", None, "is missing"),
        ("mixtral", "layers.1.block_sparse_moe.experts.0.w1.weight", (63, 64), "has shape"),
        ("mixtral", "layers.1.block_sparse_moe.experts.4.w1.weight", (64, 64), "has no place"),
        ("mixtral", "layers.1.block_sparse_moe.gate.weight", (5, 64), "has shape"),
        ("gpt-oss", "layers.0.mlp.experts.gate_up_proj", (4, 64, 127), "has shape"),
        ("gpt-oss", "layers.0.mlp.experts.down_proj_bias", (3, 64), "has shape"),
        ("gpt-oss", "layers.0.self_attn.sinks", (3,), "has shape"),
        ("glm4-moe", "layers.1.mlp.shared_experts.up_proj.weight", None, "is missing"),
        ("glm4-moe", "layers.3.mlp.up_proj.weight", (1, 1), "has no place"),  # one layer more is skipped
    ],
)
def test_damaged_experts(conformance, fixture, name, shape, message):
    checkpoint = Checkpoint.open(conformance(fixture))
    tensors = dict(checkpoint.tensors)
    tensors.pop(f"model.{name}", None)
    if shape:
        tensors[f"model.{name}"] = float_tensor(name, np.zeros(shape))
    with pytest.raises(DamagedFile, match=f"{name}.* {message}"):
        Weights(config_from_hf(checkpoint.config, tensors), tensors)


def test_a_bias_on_a_norm_is_refused():
    """RMS norms have none: a file that brings one means something else than would be computed."""
    gamma = np.ones(64, np.float32)
    for file, name in (("gguf", "blk.0.attn_norm.bias"), ("hf", "model.layers.0.input_layernorm.bias")):
        tensors = {name: float_tensor(name, gamma)}
        if file == "gguf":
            keys = {f"llama.{key}": value for key, value in RAW.items()} | {"general.architecture": "llama"}
            config = config_from_gguf(keys, tensors)
        else:
            config = config_from_hf(RAW_HF, tensors)
        assert config.biases == frozenset()


RAW = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 1,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": 100,
}
RAW_HF = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
}
