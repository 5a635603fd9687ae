"""Converting a model to GGUF: metadata and tensors of the file, from a GGUF file or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.folder import Checkpoint
from ...quant.gguf.gathered import GatheredTensor, file_order_key
from ...quant.gguf.reader import GGUFFile
from ...quant.recipes.recipes import ModelShape
from ...tokenizer.readers.export import tokenizer_metadata
from ..config.from_hf import config_from_hf
from ..export.architectures import gguf_rules
from ..export.model import export_model
from ..weights.binding import Weights
from .source import NO_TOKENIZER, TOKENIZER_FILES, named_ends

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
    """A number, or the first number of an array; `default` for None and for an empty array."""
    if isinstance(value, np.ndarray | list):
        value = value[0] if len(value) else default
    return default if value is None else int(value)


def open_convertible(path: Path, name: str) -> Convertible:
    """Open a GGUF file or a Hugging Face folder, whose model is called `name` in messages and metadata.

    Raises FileNotFoundError, DamagedFile or UnsupportedModel (a DamagedFile), TokenizerError.
    """
    return _open_folder(path, name) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Convertible:
    file = GGUFFile.open(path)
    file.will_read()
    kept = {key: value for key, value in file.metadata.items() if key not in _OF_QUANTISATION}
    tensors = [
        GatheredTensor(name, file.tensors[name].shape, (file.tensors[name],))
        for name in sorted(file.tensors, key=file_order_key)
    ]
    return Convertible(kept, dict(file.types), tensors, True, file.paths, file.release, [])


def _open_folder(path: Path, name: str) -> Convertible:
    folder = Checkpoint.open(path)
    folder.will_read()
    config = config_from_hf(folder.config, folder.tensors)
    weights = Weights(config, folder.tensors)
    exported = export_model(config, weights, folder.config)
    architecture = exported.metadata["general.architecture"]
    notes = []
    if weights.skipped:
        notes.append(f"{name} is more than a text model; not converted: {', '.join(sorted(weights.skipped))}")
    window = exported.metadata.get(f"{architecture}.attention.sliding_window")
    if window and gguf_rules(architecture).window_ignored:
        notes.append(f"llama.cpp does not read the sliding window of {architecture} files ({window} tokens)")
    if any((path / file).exists() for file in TOKENIZER_FILES):
        ends = named_ends(folder.generation_config) | named_ends(folder.config)
        ends |= named_ends(folder.config.get("text_config"))
        words = tokenizer_metadata(path, config.vocab_size, architecture, sorted(ends))
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
    try:
        about = gguf.Metadata.load(None, path, name, n_weights)
        about.name = about.name or name
        if about.size_label is None:
            about.size_label = gguf.size_label(*_counts(tensors))
        about.set_gguf_meta_model(writer)
    except Exception:  # noqa: BLE001 - a model card with invalid YAML or values; a model runs without this metadata
        writer.add_name(name)
    found: Mapping[str, Any] = writer.kv_data[0]
    values = {key: entry.value for key, entry in found.items()}
    types = {key: int(entry.type) for key, entry in found.items() if not isinstance(entry.value, list)}
    return values, types


def _counts(tensors: list[GatheredTensor]) -> tuple[int, int, int, int]:
    """Numbers of weights: in all, outside of experts, and in one expert of each layer; number of experts."""
    stacks = [tensor for tensor in tensors if "_exps." in tensor.name and len(tensor.shape) > 2]
    count = stacks[0].shape[0] if stacks else 0
    of_experts = sum(tensor.n_weights for tensor in stacks)
    total = sum(tensor.n_weights for tensor in tensors)
    return total, total - of_experts, of_experts // count if count else 0, count
