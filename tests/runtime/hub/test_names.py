"""Names of models: addresses on the Hub, and what is said of those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kukri.runtime.hub.catalogue import BY_NAME
from kukri.runtime.hub.errors import ModelNotFound
from kukri.runtime.hub.names import HubName, parse_name


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


@pytest.mark.parametrize(
    ("address", "repo", "quant"),
    [
        ("hf.co/org/repo", "org/repo", None),
        ("hf.co/org/repo:Q4_K_M", "org/repo", "Q4_K_M"),
        ("HF.co/org/repo.v1:q8_0", "org/repo.v1", "q8_0"),
        ("huggingface.co/org/repo", "org/repo", None),
        ("https://huggingface.co/org/repo", "org/repo", None),
        ("HTTPS://www.huggingface.co/org/repo/", "org/repo", None),
        ("https://hf.co/org/repo:Q4_0", "org/repo", "Q4_0"),
        ("https://huggingface.co/org/repo/tree/main", "org/repo", None),
        ("https://huggingface.co/org/repo/blob/main/m-Q4_K_M.gguf", "org/repo", "m-Q4_K_M"),
        ("https://huggingface.co/org/repo/resolve/main/m-Q4_K_M.gguf?download=true", "org/repo", "m-Q4_K_M"),
        ("https://huggingface.co/org/repo/resolve/main/Q8/m-Q8_0-00001-of-00003.gguf", "org/repo", "m-Q8_0"),
        ("https://huggingface.co/org/repo/blob/main/a%20b.gguf", "org/repo", "a b"),
        ("https://huggingface.co/org/repo?show_file_info=m-Q6_K.gguf", "org/repo", "m-Q6_K"),
        ("https://huggingface.co/org/repo?not_for_all=1", "org/repo", None),
    ],
)
def test_addresses_on_the_hub(address: str, repo: str, quant: str | None) -> None:
    assert parse_name(address) == HubName(repo, quant)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("https://example.com/org/repo", "from huggingface.co only, not from example.com: download the file"),
        ("https://huggingface.co.example.com/org/repo", "not from huggingface.co.example.com"),
        ("https://huggingface.co@example.com/org/repo", "not from example.com"),
        ("http://[::1/org/repo", "is no address"),
        ("https://huggingface.co:99999/org/repo", "is no address"),
        ("https:///org/repo", "not from https:///org/repo"),
        ("https://huggingface.co", "is no model on the Hub"),
        ("https://huggingface.co/gpt2", "is no model on the Hub"),
        ("https://huggingface.co/datasets/org/repo", "is no model on the Hub"),
        ("https://huggingface.co/org/re po", "is no model on the Hub"),
        ("hf.co/org", "is no model on the Hub"),
        (
            "https://huggingface.co/org/repo/blob/main/config.json",
            "config.json is no GGUF file; org/repo names",
        ),
        ("https://huggingface.co/org/repo/tree/main/sub", "sub is no GGUF file"),
        ("https://huggingface.co/org/repo/blob/v2/m.gguf", "takes the revision main of a repository, not v2"),
        ("https://huggingface.co/org/repo/discussions/1", "the address of no file"),
        ("https://huggingface.co/org/repo:Q4_0/blob/main/m.gguf", "the address of no file"),
    ],
)
def test_other_addresses_are_refused(address: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message.replace("[", r"\[")) as error:
        parse_name(address)
    assert "\n" not in str(error.value)


def test_secrets_in_an_address_are_not_shown() -> None:
    for address in (
        "https://me:hf_secret@example.com/a/b?token=hf_other",
        "https://me:hf_secret@hf.co/a?b=hf_other",
    ):
        with pytest.raises(ModelNotFound) as error:
            parse_name(address)
        assert "hf_" not in str(error.value)


def test_addresses_of_another_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example:8443/mirror/")
    assert parse_name("https://hub.example:8443/mirror/org/repo/blob/main/m.gguf") == HubName("org/repo", "m")
    assert parse_name("https://huggingface.co/org/repo") == HubName("org/repo", None)
    for address in ("https://hub.example/mirror/org/repo", "https://hub.example:8443/mirrors/org/repo"):
        with pytest.raises(ModelNotFound, match=r"from huggingface\.co and hub\.example only, not from hub"):
            parse_name(address)


def test_a_folder_goes_before_an_address(tmp_path: Path) -> None:
    (tmp_path / "hf.co" / "org" / "repo").mkdir(parents=True)
    assert parse_name("hf.co/org/repo") == Path("hf.co/org/repo")


def test_a_family_without_a_size_lists_its_sizes() -> None:
    with pytest.raises(ModelNotFound) as error:
        parse_name("Qwen3")
    sizes = [name for name in BY_NAME if name.startswith("qwen3:")]
    assert str(error.value) == f"no model is named 'Qwen3': there are {', '.join(sizes)}"
    with pytest.raises(ModelNotFound, match=r"did you mean qwen3:4b"):
        parse_name("qwen3:4")
