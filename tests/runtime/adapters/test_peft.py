"""Adapters of PEFT against what PEFT computes with them in float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kukri
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.ops import MatMul
from kukri.tests.runtime.adapters.conftest import ATOL

BASES = {
    "llama": "llama",
    "llama-rslora": "llama",
    "llama-saved": "llama",  # brings an output matrix of its own
    "llama-gqa": "llama-gqa",
    "qwen2": "qwen2",
    "phi3-partial": "phi3-partial",
    "gpt2": "gpt2-original",
    "gemma3": "gemma3",
    "qwen3-next": "qwen3-next",
    "qwen3.5": "qwen3.5",
    "deepseek-v2": "deepseek-v2",  # a change of the matrix that is cut into heads
    "qwen3-moe": "qwen3-moe",  # stacks of experts
    "gpt-oss": "gpt-oss",  # whose gate and up alternate
    "mixtral": "mixtral",  # a module for each expert
}


def logits(model: Path, expected, lora, device: str = "reference") -> np.ndarray:
    return all_logits(model, expected, lora, device)[expected["rows"]]


def all_logits(model: Path, expected, lora, device: str, kv_type: str = "auto") -> np.ndarray:
    options = {"device": device, "context": 64, "threads": 2, "kv_type": kv_type}
    with kukri.load(model, lora=lora, **options) as loaded:
        return loaded.logits(expected["ids"])


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", BASES)
def test_logits(conformance, adapter, name: str, device: str) -> None:
    base, expected = BASES[name], np.load(adapter(name) / "expected.npz")
    got = logits(conformance(base), expected, [adapter(name)], device)
    atol = ATOL[base] * (5 if device == "cpu" else 1)
    np.testing.assert_allclose(got, expected["logits"], rtol=0, atol=atol)
    assert expected["effect"].min() > 100 * atol  # an adapter that is left out fails


@pytest.mark.parametrize("name", BASES)
def test_beside_a_gguf_file(conformance, adapter, gguf_of, name: str) -> None:
    """Whose rows are in another order: queries and keys of llama, heads of recurrent layers."""
    base, expected = BASES[name], np.load(adapter(name) / "expected.npz")
    got = logits(gguf_of(base), expected, [adapter(name)])
    np.testing.assert_allclose(got, expected["logits"], rtol=0, atol=ATOL[base])


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3.5", "qwen3-moe", "gpt-oss"])
def test_decode(conformance, adapter, feed, name: str) -> None:
    """Token by token, and in steps of several rows, on the CPU machine: each has kernels of its own."""
    base, expected = BASES[name], np.load(adapter(name) / "expected.npz")
    with kukri.load(conformance(base), device="cpu", context=64, threads=2, lora=[adapter(name)]) as model:
        for chunks in ((1,), (3, 1)):
            got = feed(model.engine.machine, PageTable(1), expected["ids"], chunks)[expected["rows"]]
            np.testing.assert_allclose(got, expected["logits"], rtol=0, atol=5 * ATOL[base])


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "gemma3"])
def test_beside_blocks(conformance, adapter, tmp_path, name: str) -> None:
    """Factors beside quantised weights are in F16: against those in F32 beside the same weights in F32."""
    expected, model = np.load(adapter(name) / "expected.npz"), conformance(name) / f"{name}-Q8_0.gguf"
    file = GGUFFile.open(model)
    records = [TensorRecord(t.name, t.shape, FORMATS["F32"]) for t in file.tensors.values()]
    values = ((t.dequantize().reshape(-1).view(np.uint8),) for t in file.tensors.values())
    write_gguf(tmp_path / "f32.gguf", file.metadata, file.types, records, values)
    exact = all_logits(tmp_path / "f32.gguf", expected, [adapter(name)], "reference")
    assert mean_kl(exact, all_logits(model, expected, [adapter(name)], "reference")) < 1e-5
    assert mean_kl(exact, all_logits(model, expected, [adapter(name)], "cpu", "f32")) < 0.002


def mean_kl(expected: np.ndarray, got: np.ndarray) -> float:
    p, q = (rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True) for rows in (expected, got))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def test_a_scale_of_zero_changes_nothing(conformance, adapter) -> None:
    expected = np.load(adapter("llama") / "expected.npz")
    plain = logits(conformance("llama"), expected, [])
    np.testing.assert_array_equal(logits(conformance("llama"), expected, [(adapter("llama"), 0)]), plain)


def test_two_adapters_add_up(conformance, adapter, tmp_path) -> None:
    """An adapter twice with half of its scale each, and together with another one in either order."""
    expected, model = np.load(adapter("llama") / "expected.npz"), conformance("llama")
    one, other = adapter("llama"), adapter("llama-rslora")
    halves = logits(model, expected, [(one, 0.25), f"{one}:0.75"])
    np.testing.assert_allclose(halves, expected["logits"], rtol=0, atol=ATOL["llama"])
    both = logits(model, expected, [one, other])
    np.testing.assert_allclose(both, logits(model, expected, [other, one]), rtol=0, atol=ATOL["llama"])
    assert np.abs(both - expected["logits"]).max() > 1


def test_fingerprints(conformance, adapter) -> None:
    """Sessions belong to a model with its adapters and their scales."""
    seen = set()
    named = [[], [adapter("llama")], [(adapter("llama"), 0.5)], [adapter("llama-rslora")]]
    for lora in named:
        with kukri.load(conformance("llama"), device="reference", context=64, lora=lora) as model:
            seen.add(model.fingerprint)
    assert len(seen) == len(named)
    zero = [(adapter("llama"), 0)]
    with kukri.load(conformance("llama"), device="reference", context=64, lora=zero) as model:
        assert model.fingerprint in seen


def changed(source: Path, target: Path, **values) -> Path:
    """A copy of an adapter with other values in its configuration."""
    shutil.copytree(source, target)
    config = json.loads((target / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps({**config, **values}))
    return target


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peft_type": "IA3"}, "of type 'IA3'; only LoRA"),
        ({"use_dora": True}, r"DoRA \(use_dora\) is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the model's own weights"),
        ({"layer_replication": [[0, 1]]}, "replicated layers"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"r": "four"}, "r must be a number"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"(a*)*b": 3}}, "too complex"),
        ({"alpha_pattern": {"(a": 3}}, r"alpha_pattern: '\(a'"),
        ({"rank_pattern": [3]}, "rank_pattern must be an object"),
    ],
)
def test_what_is_not_supported(conformance, adapter, tmp_path, values, message) -> None:
    folder = changed(adapter("llama"), tmp_path / "other", **values)
    with pytest.raises(kukri.DamagedFile, match=f"^other: .*{message}"):
        kukri.load(conformance("llama"), device="reference", context=64, lora=[folder])


def test_saved_modules(conformance, adapter, tmp_path) -> None:
    """Whole tensors beside the factors: embeddings and output matrix only, of the model's shape."""
    folder, base = tmp_path / "saved", Checkpoint.open(conformance("llama")).tensors
    tensors = load_file(adapter("llama") / "adapter_model.safetensors")
    embeddings = np.random.default_rng(1).normal(size=(256, 64)).astype(np.float32)
    name = "base_model.model.model.embed_tokens.weight"

    def load(key: str, value: np.ndarray, scale: float = 1.0, device: str = "reference") -> np.ndarray:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(adapter("llama"), folder)
        save_file({**tensors, key: value}, folder / "adapter_model.safetensors")
        return logits(conformance("llama"), expected, [(folder, scale)], device)

    expected = np.load(adapter("llama") / "expected.npz")
    got = load(name, embeddings)
    shutil.copytree(conformance("llama"), tmp_path / "changed")
    stored = {key: tensor.dequantize() for key, tensor in base.items()}
    save_file({**stored, "model.embed_tokens.weight": embeddings}, tmp_path / "changed" / "model.safetensors")
    wanted = logits(tmp_path / "changed", expected, [adapter("llama")])
    np.testing.assert_allclose(got, wanted, rtol=0, atol=ATOL["llama"])
    np.testing.assert_allclose(load(name, embeddings, device="cpu"), wanted, rtol=0, atol=5 * ATOL["llama"])
    own = stored["model.embed_tokens.weight"]  # a copy that PEFT saves beside factors of embeddings
    np.testing.assert_allclose(load(name, own), expected["logits"], rtol=0, atol=ATOL["llama"])
    with pytest.raises(kukri.DamagedFile, match=r"shape \(257, 64\), but the model's is \(256, 64\)"):
        load(name, np.zeros((257, 64), np.float32))
    with pytest.raises(kukri.UnsupportedModel, match=r"the scale must be 1, not 0\.5"):
        load(name, embeddings, 0.5)
    with pytest.raises(kukri.UnsupportedModel, match=r"'model\.norm' replaces one of the model's"):
        load("base_model.model.model.norm.weight", np.ones(64, np.float32))


def test_the_vision_part_is_left_out(conformance, adapter, tmp_path) -> None:
    """An adapter that was trained on a model with images changes its text part here, with a line about it."""
    folder = shutil.copytree(adapter("llama"), tmp_path / "images")
    tensors = {}
    for module in (
        "language_model.layers.0.self_attn.q_proj",
        "vision_tower.encoder.layers.0.self_attn.q_proj",
    ):
        name = f"base_model.model.model.{module}.lora_"
        tensors |= {
            f"{name}A.weight": np.ones((4, 64), np.float32),
            f"{name}B.weight": np.ones((64, 4), np.float32),
        }
    save_file(tensors, folder / "adapter_model.safetensors")
    notes: list[str] = []
    load = {"device": "reference", "context": 64, "lora": [folder], "warn": notes.append}
    with kukri.load(conformance("gemma3-multimodal"), **load) as model:
        assert sum(op.accumulate for op in model.engine.machine.program.ops if isinstance(op, MatMul)) == 1
    assert "images also changes what is beside the text model; not used: 1 matrices" in notes


def test_adapters_of_other_models(conformance, adapter, tmp_path) -> None:
    def refused(base: str, lora: Path) -> str:
        with pytest.raises(kukri.DamagedFile) as error:
            kukri.load(conformance(base), device="reference", context=64, lora=[lora])
        assert "\n" not in str(error.value)
        return str(error.value)

    line = refused("llama", adapter("qwen2"))
    assert "k_proj.lora_B.weight has shape (32, 2), but the model's matrix is (64, 64)" in line
    line = refused("llama", adapter("phi3-partial"))
    assert "gate_up_proj' has no place in a llama model of 2 layers" in line
    (tmp_path / "empty").mkdir()
    assert refused("llama", tmp_path / "empty") == "empty: is no adapter: it has no adapter_config.json"
    shutil.copytree(adapter("llama"), tmp_path / "pickled")
    (tmp_path / "pickled" / "adapter_model.safetensors").rename(tmp_path / "pickled" / "adapter_model.bin")
    assert "pickled weights" in refused("llama", tmp_path / "pickled")
    assert "is no adapter" in refused("llama", conformance("llama"))
    with pytest.raises(FileNotFoundError, match="no such adapter"):
        kukri.load(conformance("llama"), device="reference", context=64, lora=[tmp_path / "none"])
