"""Tokenizers of real models, their goldens, and a small one that tests can take apart."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from kukri.quant.gguf.reader import GGUFFile
from kukri.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf

DATA = Path(__file__).parents[1] / "data" / "tokenizers"


def _unpack(name: str, folder: Path) -> Path:
    """The file of a tokenizer ("phi2", "gguf/gpt-2"), unpacked into `folder`."""
    (packed,) = [p for p in (DATA / name).iterdir() if p.name != "goldens.json.xz"]
    path = folder / name.replace("/", "-") / packed.stem
    if not path.exists():
        path.parent.mkdir()
        path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return lambda name: _unpack(name, folder)


@pytest.fixture(scope="session")
def metadata(unpacked: Callable[[str], Path]) -> Callable[[str], dict[str, Any]]:
    """The metadata of a vocabulary in a GGUF file, a fresh dictionary each time."""

    def read(name: str) -> dict[str, Any]:
        return dict(GGUFFile.open(unpacked(name), tensors=False).metadata)

    return read


@pytest.fixture(scope="session")
def tokenizer(
    unpacked: Callable[[str], Path], metadata: Callable[[str], dict[str, Any]]
) -> Callable[[str], Tokenizer]:
    @lru_cache(maxsize=4)
    def load(name: str) -> Tokenizer:
        if name.startswith("gguf/"):
            return tokenizer_from_gguf(metadata(name))
        return load_tokenizer(unpacked(name))

    return load


@pytest.fixture(scope="session")
def strings() -> dict[str, str]:
    rows = json.loads(lzma.decompress((DATA / "strings.json.xz").read_bytes()))
    return {row["id"]: row["text"] for row in rows}


@pytest.fixture(scope="session")
def goldens() -> Callable[[str], dict[str, Any]]:
    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(lzma.decompress((DATA / name / "goldens.json.xz").read_bytes()))
        return found

    return read


@pytest.fixture
def small() -> dict[str, Any]:
    """A tokenizer.json of the 256 byte symbols, three merges and some added tokens."""
    from kukri.tokenizer.pretokenize.pretokenize import BYTE_SYMBOLS

    pieces = [*BYTE_SYMBOLS, "he", "ll", "hell", "\u0120hell"]
    vocab = {piece: id for id, piece in enumerate(pieces)}
    added = [("<|end|>", True), ("<|start|>", True), ("<tool>", False)]
    return {
        "added_tokens": [
            {"id": len(pieces) + i, "content": content, "special": special}
            for i, (content, special) in enumerate(added)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l", "he ll", "\u0120 hell"]},
    }


@pytest.fixture
def load_small(tmp_path: Path, small: dict[str, Any]) -> Callable[[], Tokenizer]:
    """Writes `small`, however the test has changed it, and loads it."""

    def load() -> Tokenizer:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(small))
        return load_tokenizer(path)

    return load
