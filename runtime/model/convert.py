"""Converting a model to GGUF: metadata and tensors of the file, from a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.folder import Checkpoint
from ...quant.errors import DamagedFile
from ...quant.gguf.gathered import GatheredTensor, file_order_key
from ...quant.gguf.reader import GGUFFile
from ...quant.recipes.recipes import ModelShape
from ...tokenizer.readers.export import tokenizer_metadata
from ...untrusted import read_file
from ..adapters.adapt import summed_changes
from ..adapters.merge import merged_tensors, merged_weights
from ..adapters.stored import AdapterFile
from ..config.from_gguf import config_from_gguf
from ..config.from_hf import config_from_hf
from ..config.reading import check_gguf_kind
from ..export.architectures import gguf_rules
from ..export.model import export_model
from ..weights.binding import Weights
from .source import NO_TOKENIZER, TOKENIZER_FILES, check_writes_text, named_ends

MAX_CARD_BYTES = 1 << 22  # of a README.md
MAX_FRONT = 1 << 16  # characters of the YAML in front of it, which take half a second to parse
_ALIAS = re.compile(r"[\s,:\[{-]\*\w")

# Metadata of the source that states its quantisation; the new file states its own.
_OF_QUANTISATION = ("general.file_type", "general.quantization_version", "general.quantized_by")


@dataclass(frozen=True)
class Convertible:
    """A model that can be written as a GGUF file."""

    metadata: dict[str, Any]  # see `write_gguf`
    types: dict[str, int]  # the GGUF value types of metadata that do not have the type of their Python value
    tensors: list[GatheredTensor]  # in the order of the file
    is_gguf: bool  # whether the source is a GGUF file, whose tensors may keep their formats
    paths: list[Path]  # the source's files
    release: Callable[[QTensor], None]  # tells the files that a tensor will not be read again
    notes: list[str]  # lines for the user about what the new file lacks

    @property
    def n_bytes(self) -> int:
        """Size of the source's tensors."""
        return sum(tensor.n_source_bytes for tensor in self.tensors)

    @property
    def model_shape(self) -> ModelShape:
        """What recipes need: architecture, layers, query heads a key-value head, experts."""
        name = self.metadata["general.architecture"]
        queries = _first(self.metadata.get(f"{name}.attention.head_count"), 0)
        keys = _first(self.metadata.get(f"{name}.attention.head_count_kv"), queries)
        layers, experts = (
            _first(self.metadata.get(f"{name}.{key}"), 0) for key in ("block_count", "expert_count")
        )
        return ModelShape(name, layers, queries // keys if keys else 0, experts)


def _first(value: Any, default: int) -> int:
    """A number, or the first number of an array; `default` for anything else."""
    if isinstance(value, np.ndarray) and value.size:
        value = value.flat[0].item()
    return int(value) if isinstance(value, int) else default


def open_convertible(path: Path, name: str, adapters: Sequence[AdapterFile] = ()) -> Convertible:
    """Open a GGUF file or a Hugging Face folder, whose model is called `name` in messages and metadata.

    LoRA `adapters` are merged into its weights. Raises FileNotFoundError, DamagedFile or UnsupportedModel (a
    DamagedFile), TokenizerError.
    """
    return _open_folder(path, name, adapters) if path.is_dir() else _open_gguf(path, adapters)


def _open_gguf(path: Path, adapters: Sequence[AdapterFile]) -> Convertible:
    file = GGUFFile.open(path)
    check_gguf_kind(file.metadata, len(file.tensors))
    if not isinstance(file.metadata.get("general.architecture"), str):
        raise DamagedFile(f"{path.name}: its metadata has no general.architecture")
    file.will_read()
    kept = {key: value for key, value in file.metadata.items() if key not in _OF_QUANTISATION}
    stated, embedding = (
        f"{kept.get('general.architecture')}.vocab_size",
        file.tensors.get("token_embd.weight"),
    )
    if stated in kept and embedding:
        kept[stated] = embedding.shape[0]
    stored, notes = file.tensors, list[str]()
    if adapters:
        config = config_from_gguf(file.metadata, stored)
        changes = summed_changes(config, stored, adapters)
        stored, notes = {**stored, **merged_tensors(stored, config, changes)}, changes.notes
    tensors = [
        GatheredTensor(name, stored[name].shape, (stored[name],))
        for name in sorted(stored, key=file_order_key)
    ]
    return Convertible(kept, dict(file.types), tensors, True, file.paths, file.release, notes)


def _open_folder(path: Path, name: str, adapters: Sequence[AdapterFile]) -> Convertible:
    folder = Checkpoint.open(path)
    folder.will_read()
    config = config_from_hf(folder.config, folder.tensors)
    check_writes_text(config)
    weights, notes = Weights(config, folder.tensors), list[str]()
    if adapters:
        changes = summed_changes(config, folder.tensors, adapters)
        weights, notes = merged_weights(weights, config, changes), changes.notes
    exported = export_model(config, weights, folder.config)
    architecture = exported.metadata["general.architecture"]
    if weights.skipped:
        notes.append(f"{name} is more than a text model; not converted: {', '.join(sorted(weights.skipped))}")
    window = exported.metadata.get(f"{architecture}.attention.sliding_window")
    if window and gguf_rules(architecture).window_ignored:
        notes.append(f"llama.cpp does not read the sliding window of {architecture} files ({window} tokens)")
    if any((path / file).exists() for file in TOKENIZER_FILES):
        ends = named_ends(folder.generation_config) | named_ends(folder.config)
        ends |= named_ends(folder.config.get("text_config"))
        words, lost = tokenizer_metadata(path, config.vocab_size, architecture, sorted(ends))
        notes += lost
    else:
        words = {"tokenizer.ggml.model": NO_TOKENIZER}
        notes.append(f"{name} has no tokenizer, and so will the file")
    about, types = _about(path, name, exported.tensors, architecture)
    metadata = {"general.architecture": architecture, **about, **exported.metadata, **words}
    return Convertible(metadata, types, exported.tensors, False, folder.paths, folder.release, notes)


def _about(
    path: Path, name: str, tensors: list[GatheredTensor], architecture: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """The metadata `general.…` and the types of its values, from the model card and the folder's name.

    The `gguf` package reads the card, and guesses name, version and size from the name.
    """
    import logging

    import gguf

    logging.getLogger("gguf").setLevel(logging.ERROR)
    n_weights = sum(tensor.n_weights for tensor in tensors)
    writer = gguf.GGUFWriter(None, architecture)
    writer.add_type("model")
    if not _is_card_plain(path):
        writer.add_name(name)
        return _values_and_types(writer)
    try:
        about = gguf.Metadata.load(None, path, name, n_weights)
        about.name = about.name or name
        if about.size_label is None:
            about.size_label = gguf.size_label(*_counts(tensors))
        about.set_gguf_meta_model(writer)
    except Exception:  # noqa: BLE001 - a model card with invalid YAML or values; a model runs without this metadata
        writer.add_name(name)
    return _values_and_types(writer)


def _values_and_types(writer: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """The metadata that a gguf.GGUFWriter has been given, and the GGUF types of single values."""
    found: Mapping[str, Any] = writer.kv_data[0]
    values = {key: entry.value for key, entry in found.items()}
    types = {key: int(entry.type) for key, entry in found.items() if not isinstance(entry.value, list)}
    return values, types


def _is_card_plain(folder: Path) -> bool:
    """Whether the YAML in front of README.md is short and has no aliases, by which YAML multiplies what it
    holds. DamagedFile for a README.md of over MAX_CARD_BYTES, and for a link that leads out of the folder."""
    try:
        card = read_file(folder / "README.md", MAX_CARD_BYTES, DamagedFile, folder)
    except FileNotFoundError:
        return True
    lines = card.decode(errors="replace").splitlines()
    if lines[:1] != ["---"]:
        return True
    front = "\n".join(takewhile("---".__ne__, lines[1:]))
    return len(front) <= MAX_FRONT and not _ALIAS.search(front)


def _counts(tensors: list[GatheredTensor]) -> tuple[int, int, int, int]:
    """Numbers of weights: in all, outside of experts, and in one expert of each layer; number of experts."""
    stacks = [tensor for tensor in tensors if "_exps." in tensor.name and len(tensor.shape) > 2]
    count = stacks[0].shape[0] if stacks else 0
    of_experts = sum(tensor.n_weights for tensor in stacks)
    total = sum(tensor.n_weights for tensor in tensors)
    return total, total - of_experts, of_experts // count if count else 0, count
