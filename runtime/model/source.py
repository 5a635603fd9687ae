"""Opening a model's files, GGUF or Hugging Face: config, tensors and tokenizer, without loading weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.folder import Checkpoint
from ...quant.errors import DamagedFile, UnsupportedModel
from ...quant.foreign import HEAD_BYTES, foreign_kind
from ...quant.gguf.reader import MAGIC, GGUFFile
from ...tokenizer import Tokenizer, TokenizerError, tokenizer_from_gguf
from ...tokenizer import load_tokenizer as tokenizer_from_files
from ...tokenizer.errors import listed
from ...untrusted import open_file
from ..config.from_gguf import config_from_gguf
from ..config.from_hf import config_from_hf
from ..config.model_config import ModelConfig
from .tokenizer_kernel import tokenizer_kernel

if TYPE_CHECKING:
    from ..embedding.heads import ScoringHead
    from ..embedding.settings import EmbeddingSettings

NO_TOKENIZER = "none"  # `tokenizer.ggml.model` of GGUF files without a tokenizer
LONGEST_NAME = 1000  # characters
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")


@dataclass(frozen=True)
class Source:
    """A model's files, whichever kind they are."""

    path: Path
    name: str
    config: ModelConfig
    tensors: Mapping[str, QTensor]  # by their GGUF names or, of a folder, by those of its files
    tokenizer: Tokenizer | None
    end_ids: frozenset[int]  # tokens that end an answer
    paths: list[Path]  # the files that hold its configuration and weights
    n_bytes: int  # size of the weights' files
    held_bytes: int  # size of the weights in memory
    release: Callable[[QTensor], None]  # tells the files that a tensor will not be read again
    notes: tuple[str, ...] = ()  # lines for the user about what the files contradict themselves in
    embedding: EmbeddingSettings | None = None  # how its files want vectors to be made; None: they do not say
    head: ScoringHead | None = None  # of a model that makes scores
    beside: frozenset[str] = frozenset()  # tensors that `embedding` and `head` are made of
    adapters: tuple[tuple[Path, float], ...] = ()  # files of adapters, with their scales
    builtin: str = ""  # the family of the built-in chat template, given where the files have no template


def open_source(path: Path, text: bool = True) -> Source:
    """Open a GGUF file or a folder without loading its weights; with `text` false, without its tokenizer.

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
    called = [
        _name(file.metadata, f"general.{key}") for key in ("name", "basename", "finetune", "architecture")
    ]
    return Source(
        path=path,
        name=called[0] or path.stem,
        config=config,
        tensors=file.tensors,
        tokenizer=tokenizer,
        end_ids=tokenizer.end_ids if tokenizer else frozenset(),
        paths=file.paths,
        n_bytes=file.n_bytes,
        held_bytes=file.n_bytes,
        release=file.release,
        notes=_notes(tokenizer, config.vocab_size, path.stem),
        **_vectors_of_gguf(file, config),
        builtin=_complete(tokenizer, [path.stem, *called], ()),
    )


def _open_folder(path: Path, text: bool) -> Source:
    folder = Checkpoint.open(path)
    config = config_from_hf(
        folder.config, folder.tensors
    )  # first: other kinds of models have other tokenizers
    has_tokenizer = text and any((path / name).exists() for name in TOKENIZER_FILES)
    tokenizer = tokenizer_from_files(path) if has_tokenizer else None
    text_config = folder.config.get("text_config")  # of a model that takes images or sound too
    ends = named_ends(folder.generation_config) | named_ends(folder.config) | named_ends(text_config)
    called = [_name(folder.config, key) for key in ("_name_or_path", "model_type")]
    return Source(
        path=path,
        name=path.resolve().name,
        config=config,
        tensors=folder.tensors,
        tokenizer=tokenizer,
        end_ids=ends | (tokenizer.end_ids if tokenizer else frozenset()),
        paths=[path / "config.json", *folder.paths],
        n_bytes=folder.n_bytes,
        held_bytes=sum(tensor.n_bytes for tensor in folder.tensors.values()),
        release=folder.release,
        notes=_notes(tokenizer, config.vocab_size, path.resolve().name),
        **_vectors_of_folder(path, folder, config),
        builtin=_complete(tokenizer, [*_folder_names(path), *called], ends),
    )


def _vectors_of_gguf(file: GGUFFile, config: ModelConfig) -> dict[str, Any]:
    """The fields of a Source that are about vectors and scores."""
    if not config.no_text and f"{file.metadata['general.architecture']}.pooling_type" not in file.metadata:
        return {}
    from ..embedding.gguf import dense_tensors, settings_of_gguf  # only for models that make vectors
    from ..embedding.heads import head_of_gguf

    head = head_of_gguf(file.metadata, file.tensors)
    return {
        "embedding": settings_of_gguf(file.metadata, file.tensors),
        "head": head,
        "beside": frozenset(dense_tensors(file.tensors)) | (head.tensors if head else frozenset()),
    }


def _vectors_of_folder(path: Path, folder: Checkpoint, config: ModelConfig) -> dict[str, Any]:
    if not config.no_text and not (path / "modules.json").exists():
        return {}
    from ..embedding.folder import settings_of_folder
    from ..embedding.heads import head_of_folder

    head = head_of_folder(folder.config, folder.tensors) if config.no_text else None
    return {
        "embedding": settings_of_folder(path),
        "head": head,
        "beside": head.tensors if head else frozenset(),
    }


def check_writes_text(config: ModelConfig) -> None:
    """Raise UnsupportedModel, which says what the model is for, if it writes no text."""
    if config.no_text:
        raise UnsupportedModel(config.no_text)


def _notes(tokenizer: Tokenizer | None, n_embeddings: int, name: str) -> tuple[str, ...]:
    """What the user should know about a tokenizer for a model with `n_embeddings` rows in its table."""
    if tokenizer is None:
        return ()
    beyond = [text for id in range(n_embeddings, tokenizer.vocab_size) if (text := tokenizer.token_text(id))]
    if not beyond:
        return tokenizer.notes
    line = f"{name} has {n_embeddings} embeddings, but {tokenizer.vocab_size} tokens; it cannot read "
    return (*tokenizer.notes, line + listed(beyond))


def check_embedded(
    name: str, tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray, n_embeddings: int
) -> None:
    """Raise TokenizerError for a token among `ids` that a model cannot read.

    `name` is the model's, `n_embeddings` the number of rows in its table.
    """
    if len(ids) and (beyond := int(max(ids))) >= n_embeddings:
        beyond = next(int(id) for id in ids if id >= n_embeddings)
        raise TokenizerError(
            f"{name} cannot read the token {tokenizer.token_text(beyond)[:80]!a} ({beyond}): "
            f"its embedding table has {n_embeddings} rows"
        )


def _name(metadata: Mapping[str, Any], key: str) -> str:
    """A name in a file's metadata, at most LONGEST_NAME characters of it; "" if there is none."""
    value = metadata.get(key)
    return value[:LONGEST_NAME] if isinstance(value, str) else ""


def _folder_names(path: Path) -> list[str]:
    """The names of a folder: its own and, in huggingface-hub's cache, that of the repository's folder.

    In that cache a model's own folder is named after a commit.
    """
    names = [folder.name for folder in (path.resolve(), *path.resolve().parents)]
    return [names[0], *(name for name in names[1:3] if name.startswith("models--"))]


def _complete(tokenizer: Tokenizer | None, called: Iterable[str], ends: Iterable[int]) -> str:
    """Give a tokenizer its compiled kernel and, if it has no chat template, the built-in one of its family.

    The family is known by the model's names (`called`) and by the tokens that end an answer (`ends`). Returns
    the family's name, or "" if no template was given.
    """
    if tokenizer is not None:
        tokenizer.accelerate(tokenizer_kernel())
    if tokenizer is None or tokenizer.chat_template:
        return ""
    from ...tokenizer.chat.builtin import builtin_template

    names = [name for name in called if name]
    eos = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    family = builtin_template(tokenizer, names, [*ends, *eos])
    if family is None:
        return ""
    tokenizer.chat_templates = {**tokenizer.chat_templates, "default": family.template}
    return family.name


def named_ends(config: Any) -> frozenset[int]:
    """The ids in `eos_token_id` of a Hugging Face configuration, which may be a number, a list or missing."""
    value = config.get("eos_token_id") if isinstance(config, Mapping) else None
    values = value if isinstance(value, list) else [value]
    return frozenset(id_ for id_ in values if type(id_) is int)


def _head(path: Path) -> bytes:
    """The first bytes of a file. DamagedFile for a device or a pipe; OSError."""
    with open_file(path, DamagedFile) as file:
        return file.read(HEAD_BYTES)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file (its tensors are not needed), a Hugging Face folder, a tokenizer.json
    or a SentencePiece tokenizer.model.

    Raises FileNotFoundError, DamagedFile for a broken GGUF file or one that has no tokenizer at all,
    TokenizerError for anything else.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    head = _head(path) if path.is_file() else b""
    if head.startswith(MAGIC):
        tokenizer = tokenizer_from_gguf(GGUFFile.open(path, tensors=False).metadata)
    elif head and (kind := foreign_kind(head, "JSON")):
        raise DamagedFile(f"{path.name}: is {kind}")
    else:
        tokenizer = tokenizer_from_files(path)
    tokenizer.accelerate(tokenizer_kernel())
    return tokenizer
