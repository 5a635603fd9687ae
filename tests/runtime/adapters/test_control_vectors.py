"""Control vectors against hooks that add the same directions behind layers of transformers' models."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import kukri
from kukri.tests.runtime.adapters.conftest import ATOL


def write(path: Path, directions: dict[str, np.ndarray], architecture: str = "controlvector") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("controlvector.model_hint", "tiny")
    for name, values in directions.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def directions_of(expected) -> dict[str, np.ndarray]:
    return {name: expected[name] for name in expected.files if name.startswith("direction")}


def logits(model: Path, expected, device: str = "reference", **given) -> np.ndarray:
    with kukri.load(model, device=device, context=64, threads=2, **given) as loaded:
        return loaded.logits(expected["ids"])[expected["rows"]]


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("base", ["gemma3", "llama"])
def test_logits(conformance, adapter, tmp_path, base: str, device: str) -> None:
    """Also behind the last layer, where only the rows of the logits are left."""
    expected = np.load(adapter(f"control-{base}") / "expected.npz")
    path = write(tmp_path / "v.gguf", directions_of(expected))
    got = logits(conformance(base), expected, device, control_vectors=[path])
    np.testing.assert_allclose(got, expected["logits"], rtol=0, atol=5 * ATOL[base])
    assert expected["effect"].min() > 100 * ATOL[base]


def test_scales_sums_and_layers(conformance, adapter, tmp_path) -> None:
    model, expected = conformance("gemma3"), np.load(adapter("control-gemma3") / "expected.npz")
    directions = directions_of(expected)
    path = write(tmp_path / "v.gguf", directions)
    whole = logits(model, expected, control_vectors=[path])
    halves = logits(model, expected, control_vectors=[f"{path}:0.25", (path, 0.75)])
    np.testing.assert_allclose(halves, whole, rtol=0, atol=ATOL["gemma3"])
    plain = logits(model, expected)
    np.testing.assert_array_equal(logits(model, expected, control_vectors=[f"{path}:0"]), plain)
    np.testing.assert_array_equal(
        logits(model, expected, control_vectors=[path], control_layers=(3, 4)), plain
    )
    some = {name: values for name, values in directions.items() if name != "direction.5"}
    fewer = write(tmp_path / "fewer.gguf", some)
    np.testing.assert_array_equal(
        logits(model, expected, control_vectors=[path], control_layers=(1, 4)),
        logits(model, expected, control_vectors=[fewer]),
    )


def test_several_streams(conformance, tmp_path) -> None:
    """Gemma 3n has four residual streams; all of them move, as in llama.cpp."""
    reference = np.load(conformance("gemma3n") / "reference.npz")
    expected = {"ids": reference["input_ids"][:8], "rows": np.arange(8)}
    with kukri.load(conformance("gemma3n"), device="reference", context=64) as model:
        hidden, layers = model.config.hidden, model.config.n_layers
    direction = np.full(hidden, 2, np.float32)
    path = write(tmp_path / "v.gguf", {f"direction.{layers - 1}": direction})
    plain, moved = (
        logits(conformance("gemma3n"), expected, device, control_vectors=vectors)
        for device, vectors in (("cpu", []), ("cpu", [path]))
    )
    again = logits(conformance("gemma3n"), expected, control_vectors=[path])
    np.testing.assert_allclose(moved, again, rtol=0, atol=5 * ATOL["gemma3n"])
    assert np.abs(moved - plain).max() > 0.1


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (
            {"direction.1": np.ones(65, np.float32)},
            "has 65 numbers, but the model's width is 64",
        ),
        ({"direction.7": np.ones(64, np.float32)}, "'direction.7' has no place in a model of 2 layers"),
        ({"direction.0": np.ones(64, np.float32)}, "directions begin at layer 1"),
        ({"direction.1": np.full(64, np.nan, np.float32)}, "not finite"),
        ({"direction.x": np.ones(64, np.float32)}, "is no direction of a layer"),
        ({"direction.1": np.ones((2, 64), np.float32)}, "is no direction of a layer"),
        ({}, "has no directions"),
    ],
)
def test_files_that_do_not_fit(conformance, tmp_path, directions, message) -> None:
    path = write(tmp_path / "v.gguf", directions)
    for scale in (1.0, 0.0):
        with pytest.raises(kukri.DamagedFile, match=f"^v.gguf: .*{message}"):
            kukri.load(conformance("llama"), device="reference", control_vectors=[(path, scale)])


def test_other_files(conformance, tmp_path) -> None:
    path = write(tmp_path / "m.gguf", {"direction.1": np.ones(64, np.float32)}, "llama")
    with pytest.raises(kukri.DamagedFile, match="is no control vector: its architecture is 'llama'"):
        kukri.load(conformance("llama"), device="reference", control_vectors=[path])
    with pytest.raises(FileNotFoundError, match="no such control vector"):
        kukri.load(conformance("llama"), device="reference", control_vectors=[tmp_path / "none"])
    with pytest.raises(ValueError, match="cannot act from layer 3 to layer 2"):
        kukri.load(conformance("llama"), device="reference", control_vectors=[path], control_layers=(3, 2))
