"""What files say about recurrent layers, and what is wrong with some of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kukri.quant.block import QTensor
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.config.recurrent import RecurrentConfig
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights
from kukri.tests.gguf_writing import as_gguf
from kukri.tests.runtime.archs.test_gguf_archs import CASES

NAMES = ["lfm2", "qwen3-next", "qwen3.5-moe", "granite4-h", "nemotron-h", "falcon-h1"]


def hf(conformance, name, **changes):
    checkpoint = Checkpoint.open(conformance(name))
    config = {**checkpoint.config, **changes}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], **changes}
    return config_from_hf(config, checkpoint.tensors)


def float_tensor(*shape: int) -> QTensor:
    data = np.zeros((int(np.prod(shape[:-1])), 4 * shape[-1]), np.uint8)
    return QTensor("", FORMATS["F32"], shape, data)


@pytest.mark.parametrize(
    ("name", "layers", "states"),
    [
        ("lfm2", ["RF", "AF"], [[(2, 64)], []]),
        ("lfm2-moe", ["RE", "AE", "RE"], [[(2, 64)], [], [(2, 64)]]),
        ("qwen3-next", ["RE", "AE"], [[(3, 128), (4, 16, 16)], []]),
        ("granite4-h", ["RE", "AE", "RE"], [[(3, 160), (8, 16, 16)], [], [(3, 160), (8, 16, 16)]]),
        (
            "nemotron-h",
            ["R", "E", "A", "F", "R"],
            [[(3, 192), (8, 16, 16)]] + [[]] * 3 + [[(3, 192), (8, 16, 16)]],
        ),
        ("falcon-h1", ["ARF", "ARF"], [[(3, 128), (6, 16, 16)]] * 2),
        ("granite4-dense", ["AF", "AF"], [[], []]),
    ],
)
def test_parts_of_layers_and_what_they_keep(conformance, name, layers, states):
    checkpoint = Checkpoint.open(conformance(name))
    config = config_from_hf(checkpoint.config, checkpoint.tensors)
    if name == "lfm2-moe":  # its first layer has a dense FFN
        layers = ["RF", *layers[1:]]
    parts = [
        "A" * layer.has_attention
        + "R" * layer.has_recurrence
        + ("E" if layer.is_moe else "F" * layer.has_ffn)
        for layer in config.layers
    ]
    assert parts == layers
    program = build_program(config, Weights(config, checkpoint.tensors))
    assert [layer.shape for layer in program.state_layers] == [shape for layer in states for shape in layer]
    assert len(program.cache_layers) == sum(layer.has_attention for layer in config.layers)


def test_ffn_width_of_lfm2(conformance):
    def width(**changes):
        return hf(conformance, "lfm2", **changes).ffn

    assert width() == 128  # 160 · 2/3 = 106, to a multiple of 32
    assert width(block_multiple_of=10) == 110
    assert width(block_multiple_of=10, block_ffn_dim_multiplier=1.5) == 160
    assert width(block_ffn_dim_multiplier=None) == 106
    assert width(block_auto_adjust_ff_dim=False) == 160


@pytest.mark.parametrize("name", ["granite4-h", "lfm2-moe"])
def test_keys_shared_with_a_layer_without_attention(conformance, name):
    with pytest.raises(
        DamagedFile, match="layer 1 shares the keys and values of layer 0, which has no attention"
    ):
        hf(conformance, name, num_kv_shared_layers=2)
    assert hf(conformance, name, num_kv_shared_layers=1).layers[2].kv_from == 1  # no attention, nothing read


def test_multipliers_of_falcon_h1(conformance):
    config = hf(conformance, "falcon-h1")
    assert config.multipliers.gate == pytest.approx(0.8838834764831844)
    assert config.attention_scale == pytest.approx(0.390625 / 32**0.5)
    assert config.logit_scale == 0.5
    assert config.recurrence.part_scales == (0.7, 0.5, 0.6, 0.8, 0.9)
    plain = hf(conformance, "falcon-h1", mlp_multipliers=None, ssm_multipliers=None, key_multiplier=None)
    assert plain.multipliers.gate == plain.multipliers.down == plain.multipliers.key == 1.0
    assert plain.recurrence.part_scales == (1.0,) * 5


def test_a_width_of_mamba_heads_that_is_left_to_be_worked_out(conformance):
    assert hf(conformance, "granite4-h", mamba_d_head="auto").recurrence.head_dim == 16
    with pytest.raises(DamagedFile, match="128 does not divide into 7"):
        hf(conformance, "granite4-h", mamba_d_head="auto", mamba_n_heads=7)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3-next", {"linear_num_key_heads": 3}, "4 recurrent heads cannot share 3 groups"),
        ("nemotron-h", {"n_groups": 3}, "8 recurrent heads cannot share 3 groups"),
        ("qwen3-next", {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim"),
        ("granite4-h", {"mamba_d_state": "x"}, "mamba_d_state"),
        ("lfm2", {"conv_L_cache": 2.5}, "conv_L_cache"),
        ("lfm2", {"block_ffn_dim_multiplier": -1}, "block_ffn_dim_multiplier"),
        ("falcon-h1", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers"),
        ("falcon-h1", {"mlp_multipliers": [0, 1]}, "mlp_multipliers"),
        ("nemotron-h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
        ("qwen3-next", {"moe_latent_size": 8}, "moe_latent_size"),
        ("qwen3.5-moe", {"attn_output_gate": False}, "attn_output_gate"),
    ],
)
def test_wrong_settings(conformance, name, changes, message):
    with pytest.raises(DamagedFile, match=message):
        hf(conformance, name, **changes)


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "message"),
    [
        ("lfm2", "layers.0.conv.conv.weight", None, "conv.conv.weight is missing"),
        ("lfm2", "layers.0.conv.in_proj.weight", (191, 64), r"in_proj.weight has shape \(191, 64\)"),
        ("lfm2", "layers.1.conv.conv.weight", (64, 1, 3), "is missing"),  # a layer that seems to be both
        ("lfm2", "layers.0.conv.conv.weight", (64, 3, 2), r"has shape \(64, 3, 2\)"),
        ("qwen3-next", "layers.0.linear_attn.A_log", None, "A_log is missing"),
        ("qwen3-next", "layers.0.linear_attn.dt_bias", (5,), r"dt_bias has shape \(5,\)"),
        ("qwen3-next", "layers.1.self_attn.q_proj.weight", (64, 64), r"q_proj.weight has shape \(64, 64\)"),
        ("granite4-h", "layers.0.mamba.D", (8, 2), r"mamba.D has shape \(8, 2\)"),
        ("granite4-h", "layers.0.mamba.norm.weight", (64,), r"norm.weight has shape \(64,\)"),
        ("falcon-h1", "layers.0.mamba.norm.weight", (96,), r"layers.1.mamba.norm.weight is missing"),
        ("falcon-h1", "layers.1.mamba.out_proj.weight", None, "out_proj.weight is missing"),
    ],
)
def test_damaged_tensors(conformance, name, tensor, shape, message):
    checkpoint = Checkpoint.open(conformance(name))
    tensors = {**checkpoint.tensors, f"model.{tensor}": float_tensor(*(shape or (1,)))}
    if shape is None:
        del tensors[f"model.{tensor}"]
    with pytest.raises(DamagedFile, match=message):
        Weights(config_from_hf(checkpoint.config, tensors), tensors)


def test_a_layer_of_nothing(conformance):
    """Its tensors are missed, like those of any layer."""
    checkpoint = Checkpoint.open(conformance("nemotron-h"))
    tensors = {name: t for name, t in checkpoint.tensors.items() if ".layers.3." not in name}
    with pytest.raises(DamagedFile, match=r"layers\.3\..* is missing"):
        Weights(config_from_hf(checkpoint.config, tensors), tensors)


def test_number_of_layers_by_their_list(conformance):
    checkpoint = Checkpoint.open(conformance("nemotron-h"))
    config = json.loads((conformance("nemotron-h") / "config.v5.json").read_text())
    assert "num_hidden_layers" not in config
    assert config_from_hf(config, checkpoint.tensors).n_layers == 5


def test_value_heads_take_turns_in_gguf_files_of_qwen35(conformance, tmp_path):
    for name, tiled in (("qwen3-next", False), ("qwen3.5", True)):
        arch, keys = CASES[name]
        file = GGUFFile.open(as_gguf(conformance(name), tmp_path / f"{arch}.gguf", arch, **keys))
        config = config_from_gguf(file.metadata, file.tensors)
        assert config.recurrence.tiled is tiled
        assert not hf(conformance, name).recurrence.tiled
        assert replace(config.recurrence, tiled=False) == hf(conformance, name).recurrence


@pytest.mark.parametrize(
    ("key", "value"), [("ssm.time_step_rank", 7), ("ssm.conv_kernel", None), ("ssm.group_count", 3)]
)
def test_wrong_gguf_keys(conformance, tmp_path, key, value):
    arch, keys = CASES["granite4-h"]
    file = GGUFFile.open(as_gguf(conformance("granite4-h"), tmp_path / "model.gguf", arch, **keys))
    metadata = {**file.metadata, f"{arch}.{key}": value}
    with pytest.raises(DamagedFile, match=r"recurrent heads|conv_kernel"):
        config_from_gguf(metadata, file.tensors)


def test_heads_of_layers_that_attend(conformance, tmp_path):
    """0 is that of layers that have none."""
    arch, keys = CASES["nemotron-h"]
    file = GGUFFile.open(as_gguf(conformance("nemotron-h"), tmp_path / "model.gguf", arch, **keys))
    key = f"{arch}.attention.head_count_kv"
    assert config_from_gguf(file.metadata, file.tensors).n_kv_heads == 2
    with pytest.raises(DamagedFile, match="4 attention heads cannot share 3"):
        config_from_gguf({**file.metadata, key: np.int32([0, 0, 3, 0, 0])}, file.tensors)
    with pytest.raises(DamagedFile, match="head_count_kv"):
        config_from_gguf({**file.metadata, key: np.zeros(5, np.int32)}, file.tensors)


def identity(conformance, name, latent):
    """The fixture with two projections around its experts that change nothing."""
    checkpoint = Checkpoint.open(conformance(name))
    tensors = dict(checkpoint.tensors)
    eye = np.eye(64, dtype=np.float32).view(np.uint8)
    for way in ("fc1", "fc2"):
        tensors[f"backbone.layers.1.mixer.{way}_latent_proj.weight"] = QTensor(
            "", FORMATS["F32"], (64, 64), eye
        )
    return config_from_hf({**checkpoint.config, "moe_latent_size": latent}, tensors), tensors


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ReferenceMachine, CpuMachine])
def test_experts_between_projections(conformance, feed, kind):
    """Nemotron 3 Super's; with those of the identity it is the same model."""
    config, tensors = identity(conformance, "nemotron-h", 64)
    assert config.moe.latent_width == 64
    machine = kind(build_program(config, Weights(config, tensors)), 3)
    reference = np.load(conformance("nemotron-h") / "reference.npz")
    logits = feed(machine, PageTable(3), reference["input_ids"])
    np.testing.assert_allclose(logits[reference["rows"]], reference["logits"], rtol=0, atol=5e-4)
    machine.close()
    config, tensors = identity(conformance, "nemotron-h", 32)
    with pytest.raises(DamagedFile, match="has shape"):
        Weights(config, tensors)
    config, tensors = identity(conformance, "nemotron-h", None)
    with pytest.raises(DamagedFile, match=r"fc1_latent_proj\.weight has no place"):
        Weights(config, tensors)


def test_older_gguf_files_of_qwen3_next_have_one_input_projection(conformance, feed, tmp_path):
    """As in the checkpoint: of one key head after the other, with the gates."""
    arch, keys = CASES["qwen3-next"]
    file = GGUFFile.open(as_gguf(conformance("qwen3-next"), tmp_path / "model.gguf", arch, **keys))
    tensors = dict(file.tensors)
    del tensors["blk.0.attn_qkv.weight"], tensors["blk.0.attn_gate.weight"]
    stored = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    tensors["blk.0.ssm_in.weight"] = Checkpoint.open(conformance("qwen3-next")).tensors[stored]
    config = config_from_gguf(file.metadata, tensors)
    reference = np.load(conformance("qwen3-next") / "reference.npz")
    machine = ReferenceMachine(build_program(config, Weights(config, tensors)), 3)
    logits = feed(machine, PageTable(3), reference["input_ids"])
    np.testing.assert_allclose(logits[reference["rows"]], reference["logits"], rtol=0, atol=2e-4)


def test_sizes():
    r = RecurrentConfig("mamba2", taps=4, heads=6, head_dim=16, groups=2, state_size=8)
    assert (r.inner, r.channels) == (96, 128)
    assert [layer.shape for layer in r.states] == [(3, 128), (6, 16, 8)]
    assert [layer.shape for layer in replace(r, kind="gated_delta").states] == [(3, 128), (6, 8, 16)]


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.floats(), max_size=6),
    st.just({}),
    st.just(np.zeros((2, 2), np.float32)),
)


@pytest.fixture(scope="module")
def checkpoints(conformance):
    return {name: Checkpoint.open(conformance(name)) for name in NAMES}


@settings(max_examples=200, deadline=None)
@given(data=st.data(), value=JUNK)
def test_any_value_anywhere(checkpoints, data, value):
    """A wrong value gives a model or one line, never another exception."""
    checkpoint = checkpoints[data.draw(st.sampled_from(NAMES))]
    config = checkpoint.config.get("text_config", checkpoint.config)
    more = ["layers_block_type", "block_ff_dim", "mamba_norm_before_gate", "num_experts", "full_attn_idxs"]
    key = data.draw(st.sampled_from([*config, *more]))
    message = ""
    try:
        read = config_from_hf({**config, key: value}, checkpoint.tensors)
        build_program(read, Weights(read, checkpoint.tensors))
    except DamagedFile as error:
        message = str(error)
    assert "\n" not in message
