"""The table of short names: its form, what it says of each model, and that every name is found on a Hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kukri.runtime.archs import ARCHS
from kukri.runtime.hub import catalogue, files
from kukri.runtime.hub.catalogue import BY_NAME, ENTRIES, Entry
from kukri.runtime.hub.names import HubName, parse_name
from kukri.runtime.hub.recommend import BEST_FIRST, LEAST_SPEED, SHARE, recommended
from kukri.runtime.hub.resolve import download, find_local

from .hub_server import HubServer

LICENCES = {
    "Apache-2.0", "MIT", "Gemma Terms of Use", "Llama 3.1 Community License", "Llama 3.2 Community License",
    "Llama 3.3 Community License", "Qwen Research License", "LFM Open License v1.0",
}  # fmt: skip
# The architecture in the GGUF files of each family, which kukri must run.
FAMILIES = {
    "smollm2": "llama", "smollm3": "smollm3", "tinyllama": "llama", "llama3.1": "llama", "llama3.2": "llama",
    "llama3.3": "llama", "mistral": "llama", "mistral-small3.2": "llama", "ministral3": "mistral3",
    "qwen2.5": "qwen2", "qwen2.5-coder": "qwen2", "qwen3": "qwen3", "qwen3-coder": "qwen3moe",
    "qwen3-next": "qwen3next", "qwen3-coder-next": "qwen3next", "qwen3.5": "qwen35", "qwen3.6": "qwen35",
    "qwen3.8": "qwen35", "deepseek-r1": "qwen3", "gemma3": "gemma3", "gemma3n": "gemma3n", "gemma4": "gemma4",
    "gpt-oss": "gpt-oss", "phi4": "phi3", "phi4-mini": "phi3", "granite4": "granitehybrid",
    "granite4.1": "granite", "lfm2": "lfm2", "lfm2.5": "lfm2", "glm4": "glm4", "glm4.7-flash": "deepseek2",
    "glm4.5-air": "glm4moe", "olmo2": "olmo2",
}  # fmt: skip
MIXTURES = {"qwen3:30b-a3b": "qwen3moe", "qwen3.6:35b-a3b": "qwen35moe", "lfm2:8b-a1b": "lfm2moe",
            "lfm2.5:8b-a1b": "lfm2moe"}  # fmt: skip


def test_names_are_unique_and_in_form() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(BY_NAME) == len(ENTRIES) > 70
    assert len({(entry.repo, entry.file) for entry in ENTRIES}) == len(ENTRIES)
    assert catalogue.DEFAULT in BY_NAME
    assert {entry.name for entry in ENTRIES if entry.wheels} == {
        "smollm2", "gemma3:270m", "qwen2.5-coder:0.5b"
    }  # fmt: skip
    for entry in ENTRIES:
        assert re.fullmatch(r"[a-z0-9.-]+(:[a-z0-9.-]+)?", entry.name)
        assert parse_name(entry.name) is entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_what_the_table_says_of_a_model(entry: Entry) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.repo)
    assert isinstance(parse_name(f"{entry.repo}:{files.stem(entry.file)}"), HubName)
    assert entry.file.endswith(".gguf")
    assert files.quant_of(entry.file) in files.PREFERRED
    assert entry.licence in LICENCES
    assert 0.1 < entry.params < 200
    assert entry.active is None or 0 < entry.active < entry.params
    assert entry.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    family = entry.name.partition(":")[0]
    assert MIXTURES.get(entry.name, FAMILIES[family]) in {arch.gguf for arch in ARCHS.values()}
    if entry.n_bytes is None:  # then an estimate stands for it
        assert entry.about_bytes == round(entry.params * 1e9 * entry.bits / 8)
    else:
        # Small models have most of their weights in embeddings, which get more bits.
        least, most = entry.bits * 0.9, entry.bits * (1.15 if entry.params > 3 else 1.7)
        assert least < entry.n_bytes * 8 / (entry.params * 1e9) < most
        assert entry.about_bytes == entry.n_bytes


def test_names_that_state_a_size_mean_it() -> None:
    for entry in ENTRIES:
        for number, unit in re.findall(r"[:-](\d+(?:\.\d+)?)([mb])(?=$|-)", entry.name):
            stated = float(number) * (0.001 if unit == "m" else 1)
            assert 0.85 < entry.params / stated < 1.5, entry.name
        if stated_active := re.search(r"-a(\d+)b$", entry.name):
            assert entry.active is not None
            assert round(entry.active) in (int(stated_active[1]), int(stated_active[1]) + 1)


def shards(file: str) -> list[str]:
    """The names of all shards of a file by the name of the first; of a whole file just that."""
    cut = re.search(r"-00001-of-(\d{5})(?=\.gguf$)", file)
    n = int(cut[1]) if cut else 1
    return [file.replace("-00001-of-", f"-{i:05}-of-") for i in range(1, n + 1)]


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    """A Hub that has every model of the catalogue, each among others of its repository."""
    server = HubServer()
    for entry in ENTRIES:
        repo = server.repos.setdefault(entry.repo, {"README.md": b"x", "mmproj-F16.gguf": b"mm"})
        repo |= {path: f"GGUF {entry.name} {path}".encode() for path in shards(entry.file)}
        repo["other-Q2_K.gguf"] = b"other"
    server.start()
    yield server
    server.stop()


@pytest.fixture
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: HubServer) -> None:
    monkeypatch.setenv("KUKRI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "hf"), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", hub.url, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_caches")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_name_leads_to_its_file(entry: Entry, hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    quant = files.quant_of(entry.file)
    first = shards(entry.file)[0]
    names = [f"{entry.repo}:{quant}", f"hf.co/{entry.repo}:{files.stem(first)}",
             f"{hub.url}/{entry.repo}/blob/main/{first}"]  # fmt: skip
    if entry.wheels is None:  # others have a checksum, which no stand-in can have
        names.append(entry.name)
    caplog.set_level(logging.INFO, "kukri")
    for name in names:
        path = download(name)
        assert path.name == first.rpartition("/")[2]
        assert path.read_bytes().startswith(f"GGUF {entry.name} ".encode())
        assert find_local(name) == path
        for shard in shards(entry.file):
            assert path.with_name(shard.rpartition("/")[2]).exists()
    assert ("newer file on the Hub" in caplog.text) == (entry.sha256 is not None)


def test_the_recommended_models_are_there_and_in_order() -> None:
    sizes = [BY_NAME[name].about_bytes for name in BEST_FIRST]
    assert all(BY_NAME[name].chat for name in BEST_FIRST)
    assert sizes[0] == max(sizes)
    assert sizes[-1] == min(sizes)


@pytest.mark.parametrize(
    ("free", "bandwidth", "gpu", "name"),
    [
        (200_000_000, None, None, None),
        (1_400_000_000, None, None, "smollm2:360m"),
        (2_000_000_000, None, None, "gemma3:1b"),
        (4_000_000_000, None, None, "qwen3:4b"),
        (16_000_000_000, None, None, "qwen3:4b"),  # larger dense ones are too slow here
        (16_000_000_000, 100e9, None, "ministral3:14b"),
        (16_000_000_000, 5e9, None, "smollm2:360m"),
        (32_000_000_000, None, None, "qwen3:30b-a3b"),  # reads 3.3 B of 30.5 for a token
        (8_000_000_000, None, 24_000_000_000, "mistral-small3.2:24b"),
        (8_000_000_000, None, 1_000_000_000, "qwen3:4b"),  # a GPU too small for anything
        (200_000_000_000, 1e12, 140_000_000_000, "gpt-oss:120b"),
        (None, None, None, "qwen3:4b"),
    ],
)
def test_the_model_for_a_machine(
    free: int | None, bandwidth: float | None, gpu: int | None, name: str | None
) -> None:
    found = recommended(free, bandwidth, gpu)
    assert (found and found.name) == name
    if found and free and gpu is None:
        assert found.about_bytes < SHARE * free
        assert found.bytes_per_token * LEAST_SPEED <= (bandwidth or 30e9)
