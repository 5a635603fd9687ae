"""Links, devices and pipes in the folder of a model, which somebody else made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kukri.cli.console.description import describe
from kukri.cli.main import main
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile
from kukri.runtime.hub import cache
from kukri.runtime.model.convert import open_convertible
from kukri.runtime.model.source import load_tokenizer, open_source
from kukri.tokenizer import TokenizerError

from .fuzz.seeds import safetensors_seeds
from .tiny_model import write_tiny_model

posix = pytest.mark.skipif(os.name == "nt", reason="links, devices and pipes of POSIX")


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A checkpoint in two files with a tokenizer and templates."""
    made = tmp_path_factory.mktemp("seeds")
    seed = next(seed for seed in safetensors_seeds(made) if seed.changed == "model.safetensors.index.json")
    path = tmp_path / "model"
    (path / "additional_chat_templates").mkdir(parents=True)
    for name, raw in seed.files.items():
        (path / name).write_bytes(raw)
    (path / "generation_config.json").write_text("{}")
    vocab = {letter: i for i, letter in enumerate("abcdefgh")}
    tokenizer = {"model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True}}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "chat_template.json"):
        (path / name).write_text('{"chat_template": "x"}')
    for name in ("special_tokens_map.json", "added_tokens.json"):
        (path / name).write_text("{}")
    (path / "README.md").write_text("---\nlicense: mit\n---\n")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("x")
    return path


FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "model-00002-of-00003.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)


def test_the_folder_is_sound(model: Path) -> None:
    assert open_source(model).tokenizer
    assert describe(model).chat_template
    assert {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()} >= set(FILES)


@posix
@pytest.mark.parametrize("name", FILES)
def test_no_file_of_a_folder_leads_out_of_it(name: str, model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (model / name).rename(elsewhere)
    (model / name).symlink_to(elsewhere)
    message = f"{Path(name).name}: leads to {str(elsewhere)!r}, outside of the model's folder"
    with pytest.raises((DamagedFile, TokenizerError)) as refused:
        open_source(model)
    assert str(refused.value) == message
    with pytest.raises((DamagedFile, TokenizerError), match="outside of the model's folder"):
        open_convertible(model, "model")
    if "token" in name or "template" in name:
        with pytest.raises(TokenizerError, match="outside of the model's folder"):
            load_tokenizer(model)
    inside = model / "kept-elsewhere"
    elsewhere.rename(inside)
    (model / name).unlink()
    (model / name).symlink_to(inside)
    assert open_source(model).tokenizer


@posix
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_no_file_of_a_folder_is_a_device_or_pipe(name: str, kind: str, model: Path) -> None:
    (model / name).unlink()
    if kind == "pipe":
        os.mkfifo(model / name)
    else:
        (model / name).symlink_to("/dev/zero")
    with pytest.raises((DamagedFile, TokenizerError), match=r"is not an ordinary file|leads to '/dev/zero'"):
        open_source(model)


@posix
@pytest.mark.parametrize("how", ["a link", "too long", "an alias"])
def test_model_cards(how: str, model: Path, tmp_path: Path) -> None:
    """A README.md goes into a converted file, if it is one of this folder and no trap for a YAML parser."""
    card = model / "README.md"
    assert open_convertible(model, "model").metadata["general.license"] == "mit"
    if how == "a link":
        card.rename(tmp_path / "card")
        card.symlink_to(tmp_path / "card")
        with pytest.raises(DamagedFile, match=r"README\.md: leads to"):
            open_convertible(model, "model")
        return
    more = "tags: [" + "[]," * 30_000 + "]" if how == "too long" else "a: &a [x]\nb: [*a, *a]"
    card.write_text(f"---\nlicense: mit\n{more}\n---\n")
    metadata = open_convertible(model, "model").metadata
    assert metadata["general.name"] == "model"
    assert "general.license" not in metadata


@posix
def test_the_command_line_says_where_a_link_leads(
    model: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outside = tmp_path / "secret"
    outside.write_text("a secret")
    (model / "chat_template.jinja").unlink()
    (model / "chat_template.jinja").symlink_to(outside)
    target = tmp_path / "out.gguf"
    for words in (
        ["tokenize", "-m", str(model), "a"],
        ["quantize", str(model), str(target), "--type", "q8_0"],
    ):
        assert main(words) == 5
        written = capfd.readouterr()
        assert written.out == ""
        lines = [line for line in written.err.splitlines() if line.startswith("error: ")]
        assert lines == [
            f"error: chat_template.jinja: leads to {str(outside)!r}, outside of the model's folder"
        ]
        assert "a secret" not in written.err
    assert not target.exists()


@posix
def test_a_named_file_may_be_a_link(model: Path, tmp_path: Path) -> None:
    """Models kept elsewhere, split ones too, are linked to by other programs; a GGUF file is read as one."""
    whole = write_tiny_model(tmp_path / "tiny.gguf")
    link = tmp_path / "link" / "model.gguf"
    link.parent.mkdir()
    link.symlink_to(whole)
    assert open_source(link).tensors
    named = tmp_path / "link" / "tokenizer.json"
    named.symlink_to(model / "tokenizer.json")
    assert load_tokenizer(named).vocab_size == 8
    (tmp_path / "folder").symlink_to(model)
    assert Checkpoint.open(tmp_path / "folder").tensors


@posix
def test_a_commit_is_read_from_a_short_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    folder = tmp_path / "models--org--name"
    for commit in ("a" * 40, "b" * 40):
        (folder / "snapshots" / commit).mkdir(parents=True)
    os.utime(folder / "snapshots" / ("b" * 40), (1, 1))
    (folder / "refs").mkdir()
    main_ref = folder / "refs" / "main"
    main_ref.write_text("b" * 40 + "\n")
    assert cache.snapshot("org/name") == folder / "snapshots" / ("b" * 40)
    for raw in (b"b" * 40 + b" " * 300, b"\xff", b"b\0"):
        main_ref.write_bytes(raw)
        assert cache.snapshot("org/name") == folder / "snapshots" / ("a" * 40)
    main_ref.unlink()
    main_ref.symlink_to("/dev/zero")
    assert cache.snapshot("org/name") == folder / "snapshots" / ("a" * 40)
