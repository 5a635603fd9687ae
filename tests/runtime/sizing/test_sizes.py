"""What a model takes: sizes that are told without loading it are those of its files and caches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kukri
from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.sizing.sizes import model_sizes
from kukri.runtime.sizing.training import expected_loss, training_estimate

from ...running import Run, failed
from ...tiny_model import HIDDEN, LAYERS, write_tiny_model

SMOL = "smollm2"
Fixture = Callable[[str], Path]


def test_weights_are_those_that_quantize_writes(llm_inside: Run, tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    sizes = {each.recipe: each for each in model_sizes(tiny, "tiny").recipes}
    for kind in ("q8_0", "q4_k_m"):
        path = tmp_path / f"{kind}.gguf"
        assert llm_inside("quantize", tiny, path, "--type", kind).returncode == 0
        written = GGUFFile.open(path).tensors.values()
        assert sizes[kind].n_bytes == sum(tensor.n_bytes for tensor in written)
        assert set(sizes[kind].by_format) == {tensor.format.name for tensor in written}
        assert model_sizes(path, kind).stored.by_format == sizes[kind].by_format


def test_the_cache_is_that_of_a_loaded_model(tmp_path: Path, real_model: Fixture) -> None:
    cases = [
        (write_tiny_model(tmp_path / "tiny.gguf"), "reference", "f32"),
        (real_model(SMOL), "cpu", "q8_0"),
        (real_model(SMOL), "cpu", "q8_0/q4_0"),
    ]
    for path, device, kv_type in cases:
        sizes = model_sizes(path, "model")
        with kukri.load(path, device=device, kv_type=kv_type, context=500) as model:
            n_pages = model.engine.table.n_pages
            assert sizes.cache_bytes(500, kv_type) == n_pages * len(model.engine.machine.read_page(0))


@pytest.mark.parametrize(
    ("name", "kinds", "shared"),
    [
        ("llama", {"MHA"}, False),
        ("llama-gqa", {"GQA"}, False),
        ("deepseek-v2", {"MLA"}, False),
        ("gemma3n", {"MQA"}, True),
    ],
)
def test_kinds_of_attention(conformance: Fixture, name: str, kinds: set[str], shared: bool) -> None:
    sizes = model_sizes(conformance(name), name)
    assert {group.kind for group in sizes.attention} == kinds
    assert any(group.cached == 0 for group in sizes.attention) == shared
    numbers = sum(len(group.layers) * group.cached for group in sizes.attention)
    assert sizes.kv_per_token["f32"] == 4 * numbers
    assert (sizes.cpu_share > 1) == ("MLA" in kinds)


def test_experts_that_a_token_leaves_out_are_not_active(conformance: Fixture) -> None:
    sizes = model_sizes(conformance("mixtral"), "mixtral")
    config = json.loads((conformance("mixtral") / "config.json").read_text())
    expert = 3 * config["hidden_size"] * config["intermediate_size"]
    idle = config["num_local_experts"] - config["num_experts_per_tok"]
    assert sizes.n_params - sizes.n_active == config["num_hidden_layers"] * idle * expert


def test_training_is_that_of_the_paper() -> None:
    """Chinchilla: 70 B parameters, 1.4 T tokens, 5.76e23 FLOPs (Hoffmann et al. 2022)."""
    run = training_estimate(70 * 10**9, 70 * 10**9).runs[0]
    assert (run.tokens, run.flops) == (1.4e12, pytest.approx(5.76e23, rel=0.03))
    assert run.optimal_params == pytest.approx(70e9)
    assert run.loss == expected_loss(70e9, 1.4e12) == pytest.approx(1.937, abs=0.001)
    assert run.gpu_hours == pytest.approx(run.flops / (989e12 * 0.4) / 3600)
    with pytest.raises(ValueError, match="nothing to train"):
        training_estimate(0, 0)


def test_show(llm_inside: Run, tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    told = json.loads(llm_inside("show", tiny, "--memory", "--training", "-o", "json").stdout)
    assert told["memory"]["kv_cache"]["512"]["f16"] == 512 * 2 * LAYERS * 2 * HIDDEN // 2
    assert told["training"]["is_estimate"]
    assert told["training"]["runs"][0]["tokens"] == 20 * told["memory"]["n_params"]
    shown = llm_inside("show", tiny, "--memory").stdout.decode()
    assert re.search(r"(?m)^q8_0 +[\d.]+ kB +8\.\d\d  Q8_0 ", shown)
    assert re.search(rf"(?m)^GQA +{LAYERS} +4 +2 +16 +all +64$", shown)
    assert "TRAINING" not in shown
    training = llm_inside("show", tiny, "--training").stdout.decode()
    assert "an estimate" in training
    assert "compute-optimal" in training
    assert "qwen3:4b" in failed(llm_inside("show", "qwen3:4b", "--memory"), 3)
