"""A model's files, of either kind, as the rest of the program wants to see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...quant.block import QTensor
from ...quant.checkpoint.folder import Checkpoint
from ...quant.gguf.reader import MAGIC, GGUFFile
from ...tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf
from ..config.from_gguf import config_from_gguf
from ..config.from_hf import config_from_hf
from ..config.model_config import ModelConfig
from .tokenizer_kernel import token_kernel

NO_TOKENIZER = "none"  # `tokenizer.ggml.model` of files that have none
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")


@dataclass(frozen=True)
class Source:
    """What a model's files say, whichever kind they are."""

    path: Path
    name: str
    config: ModelConfig
    tensors: Mapping[str, QTensor]
    tokenizer: Tokenizer | None
    end_ids: frozenset[int]
    n_bytes: int  # of its files
    held_bytes: int  # of its weights in memory
    release: Callable[[QTensor], None]
    builtin: str = ""  # the family whose chat template the tokenizer was given, as the files have none


def open_source(path: Path, text: bool = True) -> Source:
    """Open a GGUF file or a folder without loading its weights; without its tokenizer if not for `text`.

    Raises FileNotFoundError, DamagedFile or UnsupportedModel (a DamagedFile), TokenizerError.
    """
    if path.is_dir():
        return _open_folder(path, text)
    file = GGUFFile.open(path)
    config = config_from_gguf(file.metadata, file.tensors)
    kind = file.metadata.get("tokenizer.ggml.model")
    has_tokenizer = text and not (isinstance(kind, str) and kind == NO_TOKENIZER)
    has_tokenizer = has_tokenizer and any(key.startswith("tokenizer.ggml.") for key in file.metadata)
    tokenizer = tokenizer_from_gguf(file.metadata) if has_tokenizer else None
    name = file.metadata.get("general.name")
    called = [file.metadata.get(f"general.{key}") for key in ("name", "basename", "finetune", "architecture")]
    return Source(
        path=path,
        name=name if isinstance(name, str) and name else path.stem,
        config=config,
        tensors=file.tensors,
        tokenizer=tokenizer,
        end_ids=tokenizer.end_ids if tokenizer else frozenset(),
        n_bytes=file.n_bytes,
        held_bytes=file.n_bytes,
        release=file.release,
        builtin=_complete(tokenizer, [path.stem, *called], ()),
    )


def _open_folder(path: Path, text: bool) -> Source:
    folder = Checkpoint.open(path)
    has_tokenizer = text and any((path / name).exists() for name in TOKENIZER_FILES)
    tokenizer = load_tokenizer(path) if has_tokenizer else None
    config = config_from_hf(folder.config, folder.tensors)
    text_config = folder.config.get("text_config")  # where a model also sees or hears
    ends = named_ends(folder.generation_config) | named_ends(folder.config) | named_ends(text_config)
    called = [folder.config.get(key) for key in ("_name_or_path", "model_type")]
    return Source(
        path=path,
        name=path.resolve().name,
        config=config,
        tensors=folder.tensors,
        tokenizer=tokenizer,
        end_ids=ends | (tokenizer.end_ids if tokenizer else frozenset()),
        n_bytes=folder.n_bytes,
        held_bytes=sum(tensor.n_bytes for tensor in folder.tensors.values()),
        release=folder.release,
        builtin=_complete(tokenizer, [*_folder_names(path), *called], ends),
    )


def _folder_names(path: Path) -> list[str]:
    """What a folder is called; in a cache of the Hub that is a hash, and one above it names the model."""
    names = [folder.name for folder in (path.resolve(), *path.resolve().parents)]
    return [names[0], *(name for name in names[1:3] if name.startswith("models--"))]


def _complete(tokenizer: Tokenizer | None, called: Iterable[object], ends: Iterable[int]) -> str:
    """Let a tokenizer encode as fast as it can, and give a chat model without a template a built-in one; the
    name of its family, or ""."""
    if tokenizer is not None:
        tokenizer.accelerate(token_kernel())
    if tokenizer is None or tokenizer.chat_template:
        return ""
    from ...tokenizer.chat.builtin import builtin_template

    names = [name for name in called if isinstance(name, str)]
    eos = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    family = builtin_template(tokenizer, names, [*ends, *eos])
    if family is None:
        return ""
    tokenizer.chat_templates = {**tokenizer.chat_templates, "default": family.template}
    return family.name


def named_ends(config: Any) -> frozenset[int]:
    """`eos_token_id` of a Hugging Face configuration: a number, a list of them, or nothing."""
    value = config.get("eos_token_id") if isinstance(config, Mapping) else None
    values = value if isinstance(value, list) else [value]
    return frozenset(id_ for id_ in values if type(id_) is int)


def is_gguf(path: Path) -> bool:
    """Whether a file is one, by its first bytes."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
