"""A description of a model from its files, without loading it; also for models that cannot be run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ...quant.block import QTensor
from ...quant.checkpoint.folder import Checkpoint
from ...quant.checkpoint.json_files import CONFIG_LIMITS, read_object
from ...quant.gguf.reader import GGUFFile
from ...quant.gguf.string_array import StringArray

LONGEST_TEXT = 1000  # characters of a name or a licence


@dataclass(frozen=True)
class Description:
    """`quant` is the recipe the file states, or else the format that most weights are in; `formats` maps
    formats to the share of the weights stored in them. "" and 0: not stated."""

    name: str
    architecture: str
    n_params: int
    n_bytes: int  # of the tensors
    n_layers: int
    hidden: int
    context: int
    quant: str
    formats: dict[str, float]
    tokenizer: str
    vocab_size: int
    chat_template: bool
    licence: str
    paths: tuple[Path, ...]

    @property
    def bits_per_weight(self) -> float:
        return self.n_bytes * 8 / self.n_params if self.n_params else 0.0


def describe(path: Path) -> Description:
    """Read the description of a GGUF file or a Hugging Face folder.

    DamagedFile if it is neither, or its files are damaged; OSError.
    """
    return _describe_folder(path) if path.is_dir() else _describe_gguf(path)


def _describe_gguf(path: Path) -> Description:
    file = GGUFFile.open(path)
    data = file.metadata
    architecture = _text(data, "general.architecture")
    tokens = data.get("tokenizer.ggml.tokens")
    kinds = [_text(data, "tokenizer.ggml.model"), _text(data, "tokenizer.ggml.pre")]
    return Description(
        name=_text(data, "general.name") or path.stem,
        architecture=architecture,
        n_layers=_number(data, f"{architecture}.block_count"),
        hidden=_number(data, f"{architecture}.embedding_length"),
        context=_number(data, f"{architecture}.context_length"),
        tokenizer=" ".join(kind for kind in kinds if kind),
        vocab_size=len(tokens) if isinstance(tokens, list | StringArray) else 0,
        chat_template=bool(_text(data, "tokenizer.chat_template")),
        licence=_text(data, "general.license"),
        paths=tuple(file.paths),
        **_weights(file.tensors.values(), _recipe(data)),
    )


def _describe_folder(path: Path) -> Description:
    folder = Checkpoint.open(path)
    config = folder.config
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    kinds = ("tokenizer.json", "tokenizer.model", "vocab.json")
    return Description(
        name=path.resolve().name,
        architecture=_text(config, "model_type"),
        n_layers=_number(text, "num_hidden_layers"),
        hidden=_number(text, "hidden_size"),
        context=_number(text, "max_position_embeddings"),
        tokenizer=next((kind for kind in kinds if (path / kind).exists()), ""),
        vocab_size=_number(text, "vocab_size"),
        chat_template=_has_template(path),
        licence="",
        paths=tuple(folder.paths),
        **_weights(folder.tensors.values(), folder.packing),
    )


def _recipe(data: Mapping[str, Any]) -> str:
    """The name of general.file_type: "Q4_K_M"."""
    import gguf

    try:
        name = gguf.LlamaFileType(data["general.file_type"]).name
    except (KeyError, ValueError):
        return ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _weights(tensors: Iterable[QTensor], recipe: str) -> dict[str, Any]:
    n_bytes = 0
    by_format: Counter[str] = Counter()
    for tensor in tensors:
        by_format[tensor.format.name] += prod(tensor.shape)
        n_bytes += tensor.n_bytes
    n_params = by_format.total()
    shares = {name: n / n_params for name, n in by_format.most_common()} if n_params else {}
    quant = recipe or next(iter(shares), "")
    return {"n_params": n_params, "n_bytes": n_bytes, "formats": shares, "quant": quant}


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").exists() or (folder / "chat_template.json").exists():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.exists() and bool(read_object(settings, CONFIG_LIMITS, folder).get("chat_template"))


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def _number(data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    return value if isinstance(value, int) else 0


def human_count(n: int) -> str:
    """134515008 → "134.5 M"."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.2f} {unit}" if unit == "B" else f"{n / size:.1f} {unit}"
    return str(n)
