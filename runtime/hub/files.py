"""Choosing the files of a model among those of a repository or a folder, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The first of these that a repository has is taken where no quantisation is asked for.
PREFERRED = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K",
    "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "MXFP4", "NVFP4", "BF16", "F16", "F32",
)  # fmt: skip

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(I?Q\d_K(?:_[A-Z]+)?|IQ\d_[A-Z]+|Q\d_[01]|MXFP4|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9]|_\d)",
    re.IGNORECASE,
)
_NOT_A_MODEL = re.compile(r"(?<![a-z0-9])(mmproj|imatrix)(?![a-z0-9])", re.IGNORECASE)

_CHECKPOINT_FILES = frozenset(
    {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
        "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
        "chat_template.json", "model.safetensors.index.json",
    }
)  # fmt: skip
_MORE_TEMPLATES = re.compile(r"additional_chat_templates/[^/]+\.jinja")


def quant_of(path: str) -> str:
    """The quantisation that a file name states ("Q4_K_M"), or ""."""
    found = _QUANT.findall(path)
    return re.sub(r"^FP(?=16|32)", "F", found[-1].upper()) if found else ""


def stem(path: str) -> str:
    """The file name of `path` without folder, ending and shard number."""
    return _SHARD.sub("", path).rsplit("/", 1)[-1].removesuffix(".gguf").removesuffix(".GGUF")


def gguf_models(paths: Iterable[str]) -> dict[str, list[str]]:
    """The GGUF models among `paths`: name (the path without shard number) → its files in order.

    A split model is left out unless all its shards are among them.
    """
    models: dict[str, list[str]] = {}
    shards: dict[str, int] = {}
    for path in sorted(paths):
        if not path.lower().endswith(".gguf") or _NOT_A_MODEL.search(path.rsplit("/", 1)[-1]):
            continue
        name = _SHARD.sub("", path)
        models.setdefault(name, []).append(path)
        if cut := _SHARD.search(path):
            shards[name] = int(cut.group(2))
    return {name: files for name, files in models.items() if len(files) == shards.get(name, 1)}


def choose_gguf(paths: Iterable[str], quant: str | None) -> list[str]:
    """The files of the GGUF model whose quantisation or file name is `quant`; empty if there is none.

    None takes the model whose quantisation comes first in PREFERRED. Of several models with the same
    quantisation the one with the shortest name is taken.
    """
    models = gguf_models(paths)
    if quant is not None:
        wanted = quant.lower()
        models = {n: f for n, f in models.items() if wanted in (quant_of(n).lower(), stem(n).lower())}
    if not models:
        return []
    rank = {name: i for i, name in enumerate(PREFERRED)}
    best = min(models, key=lambda n: (rank.get(quant_of(n), len(rank)), len(n), n))
    return models[best]


def choose_checkpoint(paths: Iterable[str]) -> list[str]:
    """The files of a Hugging Face checkpoint among `paths`; empty without config.json and safetensors.

    Only JSON, text and safetensors are taken, never pickles, which can run code.
    """
    paths = list(paths)
    root = [path for path in paths if "/" not in path]
    weights = [path for path in root if path.endswith(".safetensors")]
    weights = [path for path in weights if path.startswith("model")] or weights
    if not weights or "config.json" not in root:
        return []
    templates = [path for path in paths if _MORE_TEMPLATES.fullmatch(path)]
    return sorted([path for path in root if path in _CHECKPOINT_FILES] + weights + templates)
