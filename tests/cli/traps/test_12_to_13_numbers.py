"""Traps 12 and 13: samplers at their limits, logits that are no numbers, unusual shapes and positions."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kukri
from kukri.runtime.engine.sampler import SamplingParams

from ...fuzz.gguf_parts import take_apart
from ...running import Run, failed
from .conftest import told
from .models import write_script, write_shaped


@pytest.mark.parametrize(
    "flags",
    [
        ("-t", 0),
        ("-t", 1e-4),
        ("-t", 1e-30),
        ("-t", 0, "--top-k", 0, "--top-p", 1, "--min-p", 0),
        ("-t", 5, "--top-k", 1),
        ("-t", 5, "--top-p", 0),
        ("-t", 5, "--min-p", 1),
        ("-t", 0, "--repeat-penalty", 1.5, "--repeat-last-n", 0),
    ],
    ids=str,
)
def test_trap_12_settings_that_leave_one_token(
    llm_inside: Run, tmp_path: Path, flags: tuple[Any, ...]
) -> None:
    path = write_script(tmp_path / "t.gguf", b"Yes!")
    done = llm_inside("run", "-m", path, *flags, "hi")
    assert (done.returncode, done.stdout) == (0, b"Yes!\n"), done.stderr


@pytest.mark.parametrize(
    "flags",
    [("--top-k", 0), ("--top-k", 10**6), ("--top-p", 1), ("-t", 1e30), ("--repeat-penalty", 1e-30)],
    ids=str,
)
def test_trap_12_settings_that_leave_all(llm_inside: Run, tiny: Path, flags: tuple[Any, ...]) -> None:
    done = llm_inside("run", "-m", tiny, "--min-p", 0, *flags, "-n", 5, "hi")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("-t", "-0.1"), ("-t", "nan"), ("-t", "inf"), ("--top-k", "-1"), ("--top-k", "1.5")),
        *(("--top-p", "1.01"), ("--top-p", "-1"), ("--top-p", "nan"), ("--min-p", "2"), ("--min-p", "nan")),
        *(("--repeat-penalty", "0"), ("--repeat-penalty", "inf"), ("--repeat-last-n", "-2"), ("-n", "-2")),
        *(("-c", "0"), ("-c", "-5"), ("--seed", "-2"), ("--threads", "0"), ("--stop", "")),
        *(("--threads", "99999"), ("-c", "99999999999")),
        *(("--repeat-penalty", "1e-320"), ("--repeat-penalty", "1e39")),
    ],
)
def test_trap_12_parameters_out_of_range_are_usage_errors(
    llm_inside: Run, tiny: Path, flag: str, value: str
) -> None:
    assert "--help" in failed(llm_inside("run", "-m", tiny, flag, value, "hi"), 2)


@pytest.mark.parametrize("value", ["1e-30", "1e30"])
def test_trap_12_penalties_at_their_limits(llm_inside: Run, tiny: Path, value: str) -> None:
    done = llm_inside("run", "-m", tiny, "-n", 4, "--repeat-penalty", value, "hi")
    assert done.returncode == 0
    assert b"Warning" not in done.stderr


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e38], ids=["NaN", "inf", "all -inf"])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_trap_12_logits_without_a_distribution_name_the_step(
    llm_inside: Run, tmp_path: Path, value: float, temperature: float
) -> None:
    path = write_shaped(tmp_path / "t.gguf", output_value=value)
    for command in (("run", "-m", path, "-t", temperature, "hi"),):
        line = failed(llm_inside(*command), 1)
        assert re.search(r"token 1 of the answer \(position \d+\)", line), line


def test_trap_12_a_step_later_what_was_written_stays(llm_inside: Run, tmp_path: Path) -> None:
    path = write_script(tmp_path / "t.gguf", b"Ok!")
    parts = take_apart(path.read_bytes())
    embedding = next(t for t in parts.tensors if t.name == b"token_embd.weight")
    data = bytearray(parts.data)
    np.frombuffer(data, np.float32, 320, embedding.offset + 4 * 320 * ord("k"))[0] = np.nan
    parts.data = bytes(data)
    path.write_bytes(parts.pack())
    done = llm_inside("run", "-m", path, "-t", 0, "hi")
    assert done.returncode == 1
    assert done.stdout == b"Ok\n"
    assert b"token 3 of the answer" in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith(b"error: ")]) == 1


SHAPES: dict[str, dict[str, Any]] = {
    "head_dim is not hidden / heads": {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 32},
    "9 heads on 3": {"hidden": 72, "heads": 9, "kv_heads": 3, "head_dim": 8},
    "tied output": {"tied": True},
    "one head": {"hidden": 64, "heads": 1, "kv_heads": 1, "head_dim": 64},
    "linear scaling": {"keys": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "yarn": {
        "keys": {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        }
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_trap_13_shapes_and_positions(llm_inside: Run, tmp_path: Path, name: str) -> None:
    """What it writes is what NumPy computes, beyond the original 32 positions of scaled models too."""
    path = write_shaped(tmp_path / "t.gguf", **SHAPES[name])
    text = "positions and shapes, beyond what was once the length of it"
    done = llm_inside("run", "-m", path, "--raw", "-t", 0, "-n", 12, "--kv-type", "f32", "-o", "json", text)
    with kukri.load(path, device="reference") as model:
        ids = list(islice(model.generate(model.encode(text), SamplingParams(temperature=0)), 12))
        assert told(done)["text"] == model.tokenizer.decode(ids)


def test_trap_13_a_sliding_window_sees_as_much_as_it_says(tmp_path: Path) -> None:
    keys = {"attention.sliding_window": 8}
    path = write_shaped(tmp_path / "t.gguf", layers=1, keys=keys)
    ids = list(range(40, 60))
    with kukri.load(path) as model, kukri.load(path, device="reference") as reference:
        logits = model.logits(ids)
        np.testing.assert_allclose(logits, reference.logits(ids), rtol=2e-3, atol=2e-3)
        if all(layer.window for layer in model.config.layers):
            window = model.config.layers[0].window
            changed = [ids[0] + 100, *ids[1:]]  # is no longer seen once `window` tokens lie from there
            other = model.logits(changed)
            assert not np.array_equal(other[window - 1], logits[window - 1])
            np.testing.assert_array_equal(other[window], logits[window])


def test_trap_13_equal_logits_are_a_perplexity_of_the_vocabulary(tmp_path: Path) -> None:
    path = write_shaped(tmp_path / "t.gguf", zero=True)
    with kukri.load(path) as model:
        logits = model.logits([1, 2, 3]).astype(np.float64)
    loss = np.log(np.exp(logits).sum(axis=1)) - logits[:, 0]
    np.testing.assert_allclose(np.exp(loss.mean()), logits.shape[1], rtol=1e-6)
