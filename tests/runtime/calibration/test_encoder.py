"""`llm quantize --calibration`: rounding by what the model computes, experts and budgets included."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.gguf.reader import GGUFFile

from ...cli.commands.test_quantize import add_tokenizer, damaged
from ...running import Run, failed
from ...tiny_model import write_tiny_model

TEXT = "Blades are ground, hardened, tempered and ground again; what is left of the bar is thrown away. " * 30


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def divergence(llm: Run, model: Path, baseline: Path, text: Path) -> float:
    done = llm("eval", model, "--baseline", baseline, "--file", text, "-c", "128", "-o", "json")
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["models"][-1]["kld"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-gqa-sharded", "mixtral"])
def test_loses_less(
    llm_inside: Run, conformance: Callable[[str], Path], tmp_path: Path, text: Path, name: str
) -> None:
    folder = add_tokenizer(conformance(name), tmp_path / "model")
    plain, better, again = (tmp_path / f"{each}.gguf" for each in ("plain", "better", "again"))
    assert llm_inside("quantize", folder, plain, "--type", "q4_0").returncode == 0
    for target in (better, again):
        done = llm_inside("quantize", folder, target, "--type", "q4_0", "--calibration", text)
        assert done.returncode == 0, done.stderr
    assert better.read_bytes() == again.read_bytes()
    assert divergence(llm_inside, better, folder, text) < 0.9 * divergence(llm_inside, plain, folder, text)


@pytest.mark.slow
def test_a_budget(llm_inside: Run, conformance: Callable[[str], Path], tmp_path: Path, text: Path) -> None:
    folder, sizes = add_tokenizer(conformance("llama-gqa-sharded"), tmp_path / "model"), []
    for bits in ("5", "6.5"):
        target = tmp_path / f"{bits}.gguf"
        done = llm_inside("quantize", folder, target, "--type", "int4", "--bits", bits, "--calibration", text)
        assert done.returncode == 0, done.stderr
        tensors = GGUFFile.open(target).tensors.values()
        n_bytes = sum(tensor.n_bytes for tensor in tensors)
        n_weights = sum(tensor.data.shape[0] * tensor.shape[-1] for tensor in tensors)
        assert n_bytes * 8 <= float(bits) * n_weights
        sizes.append(n_bytes)
        assert len({tensor.format.name for tensor in tensors}) > 2  # not all matrices are worth the same
    assert sizes[0] < sizes[1]


def test_the_text_that_ships(llm_inside: Run, conformance: Callable[[str], Path], tmp_path: Path) -> None:
    folder = add_tokenizer(conformance("llama-gqa-sharded"), tmp_path / "model")
    target = tmp_path / "out.gguf"
    done = llm_inside("quantize", folder, target, "--type", "q4_0", "--calibration", "default")
    assert (done.returncode, done.stdout.decode()) == (0, f"{target}\n")


def test_texts_that_do_not_do(
    llm_inside: Run, conformance: Callable[[str], Path], tmp_path: Path, text: Path
) -> None:
    folder, target = add_tokenizer(conformance("llama-gqa-sharded"), tmp_path / "model"), tmp_path / "a.gguf"
    short = tmp_path / "short.txt"
    short.write_text("short")
    told = failed(llm_inside("quantize", folder, target, "--type", "q4_0", "--calibration", short), 2)
    assert "fewer than 512 tokens" in told
    told = failed(
        llm_inside("quantize", folder, target, "--type", "q4_0", "--calibration", tmp_path / "none.txt"), 2
    )
    assert "none.txt" in told
    bare = conformance("llama-gqa-sharded")
    told = failed(llm_inside("quantize", bare, target, "--type", "q4_0", "--calibration", text), 5)
    assert "tokenizer" in told
    assert not target.exists()


def test_weights_that_are_no_numbers(llm_inside: Run, tmp_path: Path, text: Path) -> None:
    source = damaged(write_tiny_model(tmp_path / "tiny.gguf"), "blk.1.ffn_up.weight", np.nan)
    target = tmp_path / "out.gguf"
    flags = ("--type", "int4", "--calibration", text)
    error = failed(llm_inside("quantize", source, target, *flags), 5)
    assert "tensor blk.1.ffn_up.weight has a weight that is NaN or infinite" in error
    done = llm_inside("quantize", source, target, *flags, "--zero-nonfinite")
    assert done.returncode == 0, done.stderr
    for tensor in GGUFFile.open(target).tensors.values():
        assert np.isfinite(tensor.dequantize()).all()


def test_models_that_compute_no_numbers(llm_inside: Run, tmp_path: Path, text: Path) -> None:
    source = damaged(write_tiny_model(tmp_path / "tiny.gguf"), "blk.0.ffn_up.weight", 3e38)
    target = tmp_path / "out.gguf"
    error = failed(llm_inside("quantize", source, target, "--type", "q4_0", "--calibration", text), 5)
    assert "NaN or infinity in front of blk." in error
    assert not target.exists()
