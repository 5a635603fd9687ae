"""Folders as GGUF files: each fixture's file means the same model, or is refused in a line that says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import UnsupportedModel
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.export.model import as_gguf, difference, export_model
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights

MANIFEST = Path(__file__).parents[2] / "data" / "conformance" / "manifest.json"
FIXTURES = {entry["name"]: entry for entry in json.loads(MANIFEST.read_text())["fixtures"]}
REFUSED = {
    "llama-dynamic-ntk": "RoPE scaling dynamic",
    "smollm3": "layer 1's rope",  # the format only knows that every fourth layer has none
}


def opened(folder, file="config.json"):
    checkpoint = Checkpoint.open(folder)
    raw = json.loads((folder / file).read_text())
    config = config_from_hf(raw, checkpoint.tensors)
    return raw, config, Weights(config, checkpoint.tensors)


def write(exported, path):
    """All tensors as float32, in pieces of few rows."""
    records = [TensorRecord(tensor.name, tensor.shape, FORMATS["F32"]) for tensor in exported.tensors]
    data = (
        (rows.dequantize().view(np.uint8) for rows in tensor.chunks(weights=1000))
        for tensor in exported.tensors
    )
    write_gguf(path, exported.metadata, {}, records, data)
    return GGUFFile.open(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FIXTURES if name not in REFUSED])
def test_the_file_means_the_same_model(conformance, feed, tmp_path, name):
    raw, config, weights = opened(conformance(name))
    file = write(export_model(config, weights, raw), tmp_path / "model.gguf")
    read = config_from_gguf(file.metadata, file.tensors)
    assert difference(as_gguf(config), read) == ""
    machine = ReferenceMachine(build_program(read, Weights(read, file.tensors)), n_pages=3)
    reference = np.load(conformance(name) / "reference.npz")
    logits = feed(machine, PageTable(3), reference["input_ids"], known=True)
    expected = reference["logits_full" if "logits_full" in reference else "logits"]
    atol = FIXTURES[name]["suggested_atol"]
    np.testing.assert_allclose(logits[reference["rows"]], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", [name for name in FIXTURES if name not in REFUSED])
def test_names_are_those_of_the_format(conformance, name):
    """Each tensor is one that the `gguf` package lists for the architecture."""
    raw, config, weights = opened(conformance(name))
    exported = export_model(config, weights, raw)
    architecture = exported.metadata["general.architecture"]
    number = next(n for n, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture)
    stems = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[number]}
    for tensor in exported.tensors:
        name_of_layer = tensor.name.split(".")
        if name_of_layer[0] == "blk":
            name_of_layer[1] = "{bid}"
        known = ".".join(name_of_layer)
        assert {known, known.rpartition(".")[0]} & stems, tensor.name


@pytest.mark.parametrize("name", ["llama-yarn", "gemma3", "gpt-oss", "deepseek-v3", "phi4-mini"])
def test_both_spellings_of_config_json_give_the_same_file(conformance, name):
    both = []
    for file in ("config.json", "config.v5.json"):
        raw, config, weights = opened(conformance(name), file)
        both.append(export_model(config, weights, raw).metadata)
    first, second = ({key: np.asarray(value).tolist() for key, value in each.items()} for each in both)
    assert first == second


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_format_cannot_express_is_refused(conformance, name):
    raw, config, weights = opened(conformance(name))
    with pytest.raises(UnsupportedModel, match=REFUSED[name]) as refused:
        export_model(config, weights, raw)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"logit_softcap": 3.0}, "logit_softcap"),
        ({"norm_eps": 0.01}, "norm_eps"),
        ({"attention_scale": 0.3}, "attention_scale"),
        ({"tied": True}, "tied"),
        ({"n_heads": 8}, "n_heads"),
    ],
)
def test_a_difference_is_named(conformance, change, what):
    _, config, _ = opened(conformance("llama"))
    assert difference(config, replace(config, **change)).startswith(what)
    assert difference(config, config) == ""


def test_differences_of_layers_are_named(conformance):
    _, config, _ = opened(conformance("gemma3"))
    layers = list(config.layers)
    layers[2] = replace(layers[2], window=17)
    assert difference(config, replace(config, layers=tuple(layers))).startswith("layer 2's window")
    layers = list(config.layers)
    layers[5] = replace(layers[5], rope=replace(layers[5].rope, factor=7.9))
    assert difference(config, replace(config, layers=tuple(layers))).startswith("layer 5's rope")


def test_falcons_scales_are_in_its_matrices(conformance):
    """And an output matrix of its own, where tied embeddings would be scaled in two ways."""
    raw, config, weights = opened(conformance("falcon-h1"))
    exported = export_model(config, weights, raw)
    table = next(tensor for tensor in exported.tensors if tensor.name == "token_embd.weight")
    values = weights.matrix("token_embd.weight").dequantize() * np.float32(config.embed_scale)
    np.testing.assert_array_equal(table.rows(0, table.n_rows).dequantize(), values)
    assert not any("scale" in key for key in exported.metadata if "rope" not in key)
    if not config.tied:
        config = replace(config, tied=True)
    tied = export_model(config, weights, raw)
    assert "output.weight" in {tensor.name for tensor in tied.tensors}
