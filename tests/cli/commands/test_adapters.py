"""Adapters on the command line: what is shown, used and refused."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from kukri.cli.commands.serve import ServeFlags
from kukri.quant.gguf.reader import GGUFFile
from kukri.tests.runtime.adapters.test_control_vectors import write as write_vector
from kukri.tests.runtime.adapters.test_gguf_lora import write as write_lora

from ...running import Run

DATA = Path(__file__).parents[2] / "data" / "adapters" / "adapters.tar.xz"


@pytest.fixture(scope="module")
def peft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    with tarfile.open(DATA) as archive:
        archive.extractall(folder, members=[m for m in archive if m.name.startswith("./llama/")])  # noqa: S202
    return folder / "llama"


@pytest.fixture
def lora(tiny: Path, tmp_path: Path) -> Path:
    """An adapter of the tiny model that changes what it writes."""
    rng = np.random.default_rng(0)
    shape = GGUFFile.open(tiny).tensors["blk.1.ffn_down.weight"].shape
    down, up = rng.normal(size=(4, shape[1])), rng.normal(size=(shape[0], 4))
    name = "blk.1.ffn_down.weight.lora_"
    factors = {f"{name}a": down.astype(np.float32), f"{name}b": up.astype(np.float32)}
    return write_lora(tmp_path / "lora.gguf", "llama", factors, 4)


@pytest.fixture
def vector(tmp_path: Path) -> Path:
    direction = np.random.default_rng(1).normal(size=64).astype(np.float32) * 4
    return write_vector(tmp_path / "vector.gguf", {"direction.1": direction})


@pytest.mark.slow
def test_eval_and_bench(llm_inside: Run, tiny: Path, lora: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("The sun rises in the east, and sets in the west. " * 8)
    common = ("-m", tiny, "--lora", f"{lora}:0.5", "-o", "json", "--device", "cpu")
    done = llm_inside("eval", *common, "--file", tmp_path / "text", "-c", 64, "--baseline", tiny)
    report = json.loads(done.stdout)
    assert report["models"][0]["name"] == "tiny.gguf + lora.gguf:0.5"
    assert report["baseline"]["name"] == "tiny.gguf"
    assert report["models"][0]["kld"] > 1e-3
    (result,) = json.loads(llm_inside("bench", *common, "-p", 0, "-n", 4, "-r", 1).stdout)
    assert result["adapters"] == "lora.gguf:0.5"
    done = llm_inside("bench", "-m", tiny, "-p", 0, "-n", 4, "--lora", "nothing")
    assert done.returncode == 2


@pytest.mark.slow
def test_bench_with_drafts(llm_inside: Run, tiny: Path) -> None:
    flags = ("-m", tiny, "-p", 8, "-n", 24, "-r", 2, "--no-cold", "--device", "cpu")
    done = llm_inside("bench", *flags, "--draft", tiny, "-o", "json")
    prefill, plain, drafted = json.loads(done.stdout)
    assert (prefill["test"], plain["test"], drafted["test"]) == ("pp8", "tg24", "tg24 + draft")
    assert "n_drafted" not in plain
    assert 0 <= drafted["n_accepted"] <= drafted["n_drafted"]
    assert drafted["tokens_per_step"] >= 1
    assert len(drafted["samples_ts"]) == 2
    table = llm_inside("bench", *flags, "--speculate", "ngram", "-o", "md").stdout.decode()
    assert "tg24 + ngram" in table
    assert "| drafted | accepted" in " ".join(table.split())
    for wrong in (("--speculate", "draft"), ("--serve", "http://127.0.0.1:9", "--draft", tiny)):
        assert llm_inside("bench", *flags, *wrong).returncode == 2


def test_run(llm_inside: Run, tiny: Path, lora: Path, vector: Path) -> None:
    def said(*flags: object) -> bytes:
        command = ("run", "-m", tiny, "-n", 8, "-t", 0, "--raw", "--device", "cpu", *flags, "hello")
        done = llm_inside(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    plain = said()
    assert said("--lora", f"{lora}:0") == said("--control-vector", f"{vector}:0") == plain
    assert said("--lora", lora) != plain
    assert said("--control-vector", vector) != plain
    assert said("--control-vector", vector, "--control-vector-layers", "0") == plain
    assert said("--lora", f"{lora}:0.5", "--lora", f"{lora}:0.5") == said("--lora", lora)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--lora", "none"), 2, "--lora: there is no file or folder 'none'"),
        (("--control-vector", "none:2"), 2, "--control-vector: there is no file or folder 'none'"),
        (("--control-vector-layers", "1"), 2, "goes with --control-vector"),
        (("--control-vector", "V", "--control-vector-layers", "x"), 2, "takes FIRST-LAST"),
        (("--control-vector", "V", "--control-vector-layers", "3-1"), 2, "from layer 3 to layer 1"),
        (("--lora", "V"), 5, "vector.gguf: is no adapter but a control vector"),
        (("--control-vector", "L"), 5, "lora.gguf: is no control vector: its architecture is 'llama'"),
        (("--lora", "P"), 5, "lora_B.weight has shape"),
    ],
)
def test_what_is_refused(llm_inside: Run, tiny, lora, vector, peft, flags, code, message) -> None:
    files = {"L": lora, "V": vector, "P": peft}
    done = llm_inside("run", "-m", tiny, *(files.get(flag, flag) for flag in flags), "--raw", "hi")
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in " ".join(done.stderr.decode().split())
    assert done.stderr.count(b"\n") == 1


def test_serve(llm_inside: Run, tiny: Path, lora: Path) -> None:
    """Adapters go to the one model that is served."""
    loading = ServeFlags(lora=[f"{lora}:0.5"]).loading()
    assert loading.adapters.lora[0].scale == 0.5
    refused = llm_inside("serve", tiny, lora, "--lora", lora)
    assert refused.returncode == 2
    assert b"adapters are for one model" in refused.stderr


def test_show(llm_inside: Run, lora: Path, vector: Path, peft: Path) -> None:
    def shown(path: Path) -> dict[str, object]:
        done = llm_inside("show", path, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    facts = shown(peft)
    assert (facts["kind"], facts["base"], facts["ranks"]) == ("LoRA adapter (PEFT)", "llama", [4])
    assert (facts["matrices"], facts["scales"]) == (14, [2.0])
    facts = shown(lora)
    assert (facts["kind"], facts["base"], facts["ranks"]) == ("LoRA adapter (GGUF)", "llama", [4])
    assert shown(vector)["layers"] == [1]
    text = llm_inside("show", vector).stdout.decode()
    assert "--control-vector FILE" in text
    assert "tiny" in text


def test_an_adapter_is_no_model(
    llm_inside: Run, lora: Path, vector: Path, peft: Path, tmp_path: Path
) -> None:
    for path, flag in ((lora, "--lora"), (vector, "--control-vector"), (peft, "--lora")):
        done = llm_inside("run", "-m", path, "hi")
        assert done.returncode == 5
        assert flag in done.stderr.decode()
    shutil.copytree(peft, tmp_path / "damaged")
    (tmp_path / "damaged" / "adapter_model.safetensors").write_bytes(b"x" * 20)
    assert llm_inside("show", tmp_path / "damaged").returncode == 5
