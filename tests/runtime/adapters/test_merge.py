"""Merged adapters: the written model computes what PEFT does, as the adapter beside the weights does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kukri
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.runtime.adapters.stored import adapter_files
from kukri.runtime.model.convert import open_convertible
from kukri.tests.runtime.adapters.conftest import ATOL
from kukri.tests.runtime.adapters.test_peft import BASES, logits

ONE_OF_TWO = {"gemma3"}  # changes the embeddings, which are the output matrix too


def written(source: Path, target: Path, lora) -> Path:
    """The model with adapters merged, in float32."""
    model = open_convertible(source, "merged", adapter_files(lora))
    records = [TensorRecord(tensor.name, tensor.shape, FORMATS["F32"]) for tensor in model.tensors]
    data = ((rows.dequantize().view(np.uint8) for rows in t.chunks(weights=3000)) for t in model.tensors)
    write_gguf(target, model.metadata, model.types, records, data)
    return target


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "GGUF file"])
@pytest.mark.parametrize("name", [name for name in BASES if name not in ONE_OF_TWO])
def test_merged(conformance, adapter, gguf_of, tmp_path, name: str, kind: str) -> None:
    base, expected = BASES[name], np.load(adapter(name) / "expected.npz")
    source = conformance(base) if kind == "folder" else gguf_of(base)
    path = written(source, tmp_path / "m.gguf", [adapter(name)])
    np.testing.assert_allclose(logits(path, expected, []), expected["logits"], rtol=0, atol=ATOL[base])


def test_two_with_scales(conformance, adapter, tmp_path) -> None:
    expected, model = np.load(adapter("llama") / "expected.npz"), conformance("llama")
    lora = [f"{adapter('llama')}:0.5", (adapter("llama-rslora"), -0.25)]
    beside = logits(model, expected, lora)
    merged = logits(written(model, tmp_path / "m.gguf", lora), expected, [])
    np.testing.assert_allclose(merged, beside, rtol=0, atol=ATOL["llama"])


def test_what_cannot_be_merged(conformance, adapter, tmp_path) -> None:
    with pytest.raises(
        kukri.UnsupportedModel, match=r"'token_embd\.weight': embeddings and output matrix are one"
    ):
        written(conformance("gemma3"), tmp_path / "m.gguf", [adapter("gemma3")])
    source = conformance("qwen2") / "qwen2-Q8_0.gguf"
    with pytest.raises(kukri.UnsupportedModel, match=r"is Q8_0: adapters are merged into floats only"):
        written(source, tmp_path / "m.gguf", [adapter("qwen2")])


def test_on_the_command_line(llm_inside, conformance, adapter, tmp_path) -> None:
    target = tmp_path / "m.gguf"
    done = llm_inside("quantize", conformance("llama"), target, "--type", "f32", "--lora", adapter("llama"))
    assert done.returncode == 0, done.stderr
    expected = np.load(adapter("llama") / "expected.npz")
    np.testing.assert_allclose(logits(target, expected, []), expected["logits"], rtol=0, atol=ATOL["llama"])
    flags = ("--type", "int4", "--lora", adapter("llama"), "--calibration", "default")
    refused = llm_inside("quantize", conformance("llama"), target, "--force", *flags)
    assert refused.returncode == 2
    assert b"merge into --type bf16 first" in refused.stderr
