"""Small sound files of every kind, for the fuzzer to change: made here, or cut out of the tests' data.

All take an empty folder to work in; `few` leaves out those that take long to make.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

from ..gguf_writing import as_gguf
from ..tiny_model import write_tiny_model
from .gguf_parts import STRING, Parts, Value, requantised, take_apart

DATA = Path(__file__).parents[1] / "data"
CONFORMANCE = ("dense", "experts", "gemma_n", "hybrids", "latent", "fixtures")
QUANTISED = (2, 3, 6, 7, 8, 20, 39, 1, 30)  # formats of blocks of 32, and floats of 16 bits
SHORT_TEMPLATE = 3000  # characters
KEPT_IDS = 400  # of a real vocabulary
TRAINING = (
    "The quick brown fox jumps over the lazy dog, 1234567890 times.",
    "Größe, naïve café, Ελλάδα, Привет, 日本語のテキスト, 한국어",
    "def f(x):\n\treturn x + 1  # comment",
    "<div class='a'>&nbsp;</div> https://example.org/?q=1",
)


@dataclass(frozen=True)
class Seed:
    """`files` of a folder by name, and which of them is to be changed."""

    name: str
    files: dict[str, bytes]
    changed: str

    @property
    def raw(self) -> bytes:
        return self.files[self.changed]


def _conformance(folder: Path, archives: Sequence[str] = CONFORMANCE) -> list[Path]:
    """Conformance fixtures, unpacked below `folder`."""
    for name in archives:
        with tarfile.open(DATA / "conformance" / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return sorted(path.parent for path in folder.glob("*/config.json"))


def _folder(path: Path) -> dict[str, bytes]:
    kept = ("config.json", "generation_config.json")
    return {p.name: p.read_bytes() for p in path.iterdir() if p.name in kept or "safetensors" in p.name}


def gguf_seeds(folder: Path, few: bool = False) -> list[Seed]:
    """Models with tokenizers of two kinds, in many formats and architectures."""
    tiny = write_tiny_model(folder / "tiny.gguf", context=64).read_bytes()
    spm = _as_sentencepiece(tiny)
    found = {"tiny": tiny, "spm": spm, "quantised": requantised(tiny, list(QUANTISED), Random(0))}
    from ..runtime.archs.test_gguf_archs import CASES

    paths = {path.name: path for path in _conformance(folder, ("latent",) if few else CONFORMANCE)}
    for name, (arch, extra) in CASES.items():
        if name in paths:
            found[name] = as_gguf(paths[name], folder / f"{name}.gguf", arch, **extra).read_bytes()
    # Those with tokenizers come up as often as all others together.
    both = [*found.items()] + [(name, found[name]) for name in ("tiny", "spm", "quantised")] * 8
    return [Seed(name, {"model.gguf": raw}, "model.gguf") for name, raw in both]


def _as_sentencepiece(raw: bytes) -> bytes:
    """The model with pieces and scores instead of merges."""
    parts = take_apart(raw)
    keys = dict(parts.keys)
    n = keys[b"tokenizer.ggml.tokens"].count
    pieces = [b"<unk>", b"<s>", b"</s>", *(f"<0x{b:02X}>".encode() for b in range(256))]
    pieces = [*pieces, "\u2581".encode(), b"a", "\u2581a".encode(), *(b"x%d" % i for i in range(n))][:n]
    types = [2, 3, 3, *[6] * 256, *[1] * n][:n]
    scores = Random(0).choices([-1.0, -2.5, 0.0], k=n)
    keys[b"tokenizer.ggml.model"] = Value(STRING, pack("<Q", 5) + b"llama")
    keys[b"tokenizer.ggml.tokens"] = Value(STRING, array=True, count=n, texts=pieces)
    keys[b"tokenizer.ggml.scores"] = Value(6, pack(f"<{n}f", *scores), array=True, count=n)
    keys[b"tokenizer.ggml.token_type"] = Value(5, pack(f"<{n}i", *types), array=True, count=n)
    return Parts(parts.version, list(keys.items()), parts.tensors, parts.data).pack()


def safetensors_seeds(folder: Path, few: bool = False) -> list[Seed]:
    """One file, and shards with an index, each in turn the one that changes."""
    paths = {path.name: path for path in _conformance(folder, ("fixtures",))}
    seeds = []
    for name in ("llama-bf16", "llama-f16", "qwen2", "llama-gqa-sharded"):
        files = _folder(paths[name])
        seeds += [Seed(f"{name}/{file}", files, file) for file in files if "safetensors" in file]
    return seeds


def config_seeds(folder: Path, few: bool = False) -> list[Seed]:
    seeds = []
    for path in _conformance(folder, ("latent",) if few else CONFORMANCE):
        files = _folder(path)
        seeds.append(Seed(path.name, files, "config.json"))
        if "generation_config.json" in files and not len(seeds) % 8:
            seeds.append(Seed(path.name, files, "generation_config.json"))
    return seeds


def tokenizer_json_seeds(folder: Path, few: bool = False) -> list[Seed]:
    """Real ones cut down to a few hundred entries, and the configuration beside them."""
    seeds = []
    settings = {
        "bos_token": {"content": "<s>"},
        "eos_token": "<|im_end|>",
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
    }
    for path in sorted((DATA / "tokenizers").glob(f"{'phi2' if few else '*'}/tokenizer.json.xz")):
        content = json.loads(lzma.decompress(path.read_bytes()))
        raw = json.dumps(_cut_down(content), ensure_ascii=False).encode()
        files = {"tokenizer.json": raw, "tokenizer_config.json": json.dumps(settings).encode()}
        seeds += [Seed(path.parent.name, files, "tokenizer.json")] * 3
        seeds.append(Seed(path.parent.name, files, "tokenizer_config.json"))
    return seeds


def _cut_down(content: dict[str, Any]) -> dict[str, Any]:
    model = content["model"]
    vocab = {piece: id for piece, id in model["vocab"].items() if id < KEPT_IDS or len(piece) == 1}
    vocab = {piece: id for id, piece in enumerate(sorted(vocab, key=vocab.__getitem__)[: 2 * KEPT_IDS])}
    merges = []
    for merge in model["merges"]:
        first, second = merge if isinstance(merge, list) else merge.split(" ")
        if first in vocab and second in vocab and first + second in vocab:
            merges.append(merge)
    model.update(vocab=vocab, merges=merges)
    content["added_tokens"] = [
        {**token, "id": len(vocab) + i} for i, token in enumerate(content["added_tokens"][:12])
    ]
    return content


def tokenizer_model_seeds(folder: Path, few: bool = False) -> list[Seed]:
    from sentencepiece import SentencePieceTrainer

    seeds = []
    for kind, more in (
        ("bpe", {"byte_fallback": True}),
        ("unigram", {}),
        ("bpe", {"add_dummy_prefix": False}),
    ):
        model = io.BytesIO()
        SentencePieceTrainer.train(
            sentence_iterator=iter(TRAINING * 5),
            model_writer=model,
            model_type=kind,
            vocab_size=400 if "byte_fallback" in more else 130,
            hard_vocab_limit=False,
            control_symbols=["[INST]"],
            user_defined_symbols=["<x>"],
            minloglevel=3,
            **more,
        )
        settings = json.dumps({"added_tokens_decoder": {"1": {"content": "<s>", "special": True}}}).encode()
        name = f"{kind} {' '.join(more)}"
        seeds.append(Seed(name, {"tokenizer.model": model.getvalue()}, "tokenizer.model"))
        both = {"tokenizer.model": model.getvalue(), "tokenizer_config.json": settings}
        seeds.append(Seed(name, both, "tokenizer.model"))
    return seeds


def tekken_seeds(folder: Path, few: bool = False) -> list[Seed]:
    words = [bytes([b]) for b in range(256)] + [b"he", b"ll", b"hell", b" hell", "é".encode(), b"12"]
    content: dict[str, Any] = {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?[\p{Lu}]*[\p{Ll}]+|\p{N}|\s*[\r\n/]+|\s+(?!\S)|\s+|.",
            "num_vocab_tokens": 512,
            "default_vocab_size": len(words) + 20,
            "default_num_special_tokens": 20,
            "version": "v7",
        },
        "vocab": [
            {"rank": i, "token_bytes": b64encode(w).decode(), "token_str": None} for i, w in enumerate(words)
        ],
    }
    special = [{"rank": i, "token_str": f"<{i}>", "is_control": True} for i in range(20)]
    special[1]["token_str"], special[2]["token_str"] = "<s>", "</s>"
    return [
        Seed("v3", {"tekken.json": json.dumps(content).encode()}, "tekken.json"),
        Seed(
            "v7", {"tekken.json": json.dumps({**content, "special_tokens": special}).encode()}, "tekken.json"
        ),
    ]


def template_seeds(folder: Path, few: bool = False) -> list[Seed]:
    cases = json.loads(lzma.decompress((DATA / "chat_templates" / "cases.json.xz").read_bytes()))
    templates = {name: case["template"] for name, case in cases.items()}
    # Long ones take most of the time and are much like short ones.
    short = [name for name in templates if len(templates[name]) < SHORT_TEMPLATE]
    names = [*templates, *short * 8]
    return [
        Seed(name, {"chat_template.jinja": templates[name].encode()}, "chat_template.jinja") for name in names
    ]
