"""LoRA adapters in GGUF files: those of PEFT, written as llama.cpp's converter does, beside both kinds of
models; and files that are none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

import kukri
from kukri.quant.block import QTensor
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.formats import FORMATS
from kukri.runtime.adapters.adapt import summed_changes
from kukri.runtime.adapters.low_rank import LowRank
from kukri.runtime.adapters.stored import AdapterFile
from kukri.runtime.config.from_hf import config_from_hf
from kukri.tests.runtime.adapters.conftest import ATOL
from kukri.tests.runtime.adapters.test_peft import logits

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
}


def write(path: Path, arch: str, tensors: dict[str, np.ndarray], alpha: float, **keys: Any) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {"general.type": "adapter", "adapter.type": "lora", **keys}.items():
        writer.add_string(key.replace("__", "."), value)
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(up: np.ndarray, heads: int) -> np.ndarray:
    """The rows as llama.cpp's converter puts them: neighbours in place of the halves of a head."""
    return up.reshape(heads, 2, len(up) // heads // 2, -1).swapaxes(1, 2).reshape(up.shape)


def factors(folder: Path, heads: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
    """The factors of an adapter of PEFT under GGUF's names; `heads` of queries and keys to permute."""
    found = {}
    for key, values in load_file(folder / "adapter_model.safetensors").items():
        words = key.removeprefix("base_model.model.model.layers.").split(".")
        stem, part = NAMES[".".join(words[1:3])], "a" if words[3] == "lora_A" else "b"
        if heads and part == "b" and stem in ("attn_q", "attn_k"):
            values = permuted(values, heads[stem == "attn_k"])
        found[f"blk.{words[0]}.{stem}.weight.lora_{part}"] = values
    return found


@pytest.mark.parametrize(
    ("name", "arch", "alpha", "heads"),
    [("llama", "llama", 8, (4, 4)), ("llama-gqa", "llama", 4, (9, 3)), ("phi3-partial", "phi3", 8, None)],
)
@pytest.mark.parametrize("kind", ["folder", "GGUF file"])
def test_logits(conformance, adapter, gguf_of, tmp_path, name, arch, alpha, heads, kind) -> None:
    expected = np.load(adapter(name) / "expected.npz")
    path = write(tmp_path / "lora.gguf", arch, factors(adapter(name), heads), alpha)
    model = conformance(name) if kind == "folder" else gguf_of(name)
    np.testing.assert_allclose(logits(model, expected, [path]), expected["logits"], rtol=0, atol=ATOL[name])


@pytest.mark.parametrize("kind", ["folder", "GGUF file"])
def test_experts_and_embeddings(conformance, adapter, gguf_of, tmp_path, kind) -> None:
    """Stacks of three dimensions; the first factor of embeddings is (tokens, rank)."""
    expected = np.load(adapter("mixtral") / "expected.npz")
    stored = load_file(adapter("mixtral") / "adapter_model.safetensors")
    stems = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}
    tensors: dict[str, np.ndarray] = {}
    for i in range(2):
        for part, end in (("A", "a"), ("B", "b")):
            block = f"base_model.model.model.layers.{i}"
            for module, stem in stems.items():
                name = f"{block}.block_sparse_moe.experts.{{}}.{module}.lora_{part}.weight"
                tensors[f"blk.{i}.{stem}.weight.lora_{end}"] = np.stack(
                    [stored[name.format(e)] for e in range(4)]
                )
            queries = stored[f"{block}.self_attn.q_proj.lora_{part}.weight"]
            queries = permuted(queries, 4) if part == "B" else queries
            tensors[f"blk.{i}.attn_q.weight.lora_{end}"] = queries
    path = write(tmp_path / "lora.gguf", "llama", tensors, 4)
    model = conformance("mixtral") if kind == "folder" else gguf_of("mixtral")
    got = logits(model, expected, [path])
    np.testing.assert_allclose(got, expected["logits"], rtol=0, atol=ATOL["mixtral"])

    gemma = load_file(adapter("gemma3") / "adapter_model.safetensors")
    table = "base_model.model.model.embed_tokens.lora_embedding_"
    down, up = gemma[f"{table}A"], gemma[f"{table}B"]
    both = {"token_embd.weight.lora_a": down.T, "token_embd.weight.lora_b": up}
    path = write(tmp_path / "table.gguf", "gemma3", both, 4)
    model = conformance("gemma3") if kind == "folder" else gguf_of("gemma3")
    expected = np.load(adapter("gemma3") / "expected.npz")
    assert np.abs(logits(model, expected, [path]) - logits(model, expected, [])).max() > 0.1


def test_an_alpha_of_zero_is_a_scale_of_one(conformance, adapter, tmp_path) -> None:
    expected = np.load(adapter("llama") / "expected.npz")
    path = write(tmp_path / "lora.gguf", "llama", factors(adapter("llama"), (4, 4)), 0)
    got = logits(conformance("llama"), expected, [f"{path}:2"])  # alpha 8 over rank 4
    np.testing.assert_allclose(got, expected["logits"], rtol=0, atol=ATOL["llama"])


ONE = np.ones((2, 64), np.float32)


@pytest.mark.parametrize(
    ("tensors", "keys", "message"),
    [
        ({"blk.0.attn_q.weight.lora_a": ONE}, {}, "has no other half"),
        ({"blk.0.attn_q.weight": ONE}, {}, "is of no adapter"),
        ({"blk.0.x.weight.lora_a": ONE, "blk.0.x.weight.lora_b": ONE.T}, {}, "has no place in a llama model"),
        ({"blk.0.attn_q.weight.lora_a": ONE, "blk.0.attn_q.weight.lora_b": ONE}, {}, "are no factors"),
        (
            {"blk.0.ffn_up.weight.lora_a": ONE, "blk.0.ffn_up.weight.lora_b": ONE.T},
            {},
            r"has shape \(64, 2\), but the model's matrix is \(128, 64\)",
        ),
        ({}, {}, "has no tensors of LoRA"),
        ({}, {"adapter.type": "other"}, "of type 'other'; only LoRA"),
        ({}, {"general.type": "model"}, "is no adapter but a model"),
        ({}, {"general.type": "mmproj"}, "is no adapter but the vision or audio part"),
        (
            {"blk.0.attn_q.weight.lora_a": ONE * np.float32(np.inf), "blk.0.attn_q.weight.lora_b": ONE.T},
            {},
            "values that are not finite",
        ),
    ],
)
def test_files_that_do_not_fit(conformance, tmp_path, tensors, keys, message) -> None:
    path = write(tmp_path / "lora.gguf", "llama", tensors, 2, **keys)
    with pytest.raises(kukri.DamagedFile, match=f"^lora.gguf: .*{message}"):
        kukri.load(conformance("llama"), device="reference", lora=[path])


def test_another_architecture(conformance, tmp_path) -> None:
    both = {"blk.0.attn_q.weight.lora_a": ONE, "blk.0.attn_q.weight.lora_b": ONE.T}
    path = write(tmp_path / "lora.gguf", "qwen2", both, 2)
    with pytest.raises(kukri.DamagedFile, match="is an adapter of 'qwen2' models, but the model is llama"):
        kukri.load(conformance("llama"), device="reference", lora=[path])


def test_damaged_files(conformance, adapter, tmp_path) -> None:
    """Cut off and with other bytes: an adapter, or one line that says why not."""
    model = Checkpoint.open(conformance("llama"))
    config, rng = config_from_hf(model.config, model.tensors), np.random.default_rng(5)
    whole = write(tmp_path / "l.gguf", "llama", factors(adapter("llama"), (4, 4)), 8).read_bytes()
    path, read = tmp_path / "damaged.gguf", 0
    for i in range(120):
        raw = bytearray(whole)
        for at in rng.integers(0, 2000, 1 + i % 4):
            raw[at] = rng.integers(0, 256)
        path.write_bytes(raw[: rng.integers(1, len(raw))] if i % 5 == 0 else raw)
        with contextlib.suppress(kukri.DamagedFile):
            summed_changes(config, model.tensors, [AdapterFile(path)])
            read += 1
    assert read < 60


def test_values_beyond_half_precision() -> None:
    """Factors whose product half precision cannot hold stay in float32 beside blocks."""
    blocks = QTensor("w", FORMATS["Q8_0"], (4, 32), np.zeros((4, 34), np.uint8))
    for size, kind in ((1e-3, "F16"), (1e3, "F16"), (1e6, "F32")):
        change = LowRank(np.full((2, 32), size, np.float32), np.full((4, 2), size, np.float32))
        down, up = change.factors("w", blocks)
        assert (down.format.name, down.shape, up.shape) == (kind, (8, 32), (4, 8))
        np.testing.assert_allclose(up.dequantize() @ down.dequantize(), change.delta, rtol=2e-3)
