"""Adapters applied to a model: files are opened, their changes summed, and added to the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ...quant.gguf.metadata import quoted
from ...quant.gguf.reader import MAGIC
from ...untrusted import open_file
from ..archs import ARCHS
from ..config.model_config import ModelConfig
from ..export.architectures import gguf_rules
from ..ops import Program
from ..weights.binding import Weights
from .additions import additions_of
from .control_vectors import summed_directions
from .expert_places import ExpertPlaces, stack_of_experts
from .low_rank import LowRank, joined
from .places import EMBEDDINGS, Places, check_layouts
from .stored import AdapterFile, Adapters, StoredAdapter


@dataclass(frozen=True)
class Adapted:
    """A program with adapters, their bytes, and their files with their scales, for the fingerprint.

    `notes` are lines for the user.
    """

    program: Program
    n_bytes: int
    files: tuple[tuple[Path, float], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Changes:
    """What adapters change in a model: matrices by name, low-rank or replaced as a whole.

    `files` are theirs, with their scales; `notes` lines for the user about what is left out.
    """

    low_rank: dict[str, LowRank]
    replaced: dict[str, QTensor]
    files: list[tuple[Path, float]]
    notes: list[str]


def open_adapter(path: Path) -> StoredAdapter:
    """The LoRA adapter in a GGUF file, in a folder of PEFT, or in its safetensors file.

    Raises FileNotFoundError, DamagedFile, UnsupportedModel (a DamagedFile), OSError.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such adapter")
    if path.is_file():
        with open_file(path, DamagedFile) as file:
            if file.read(len(MAGIC)) == MAGIC:
                from .gguf_lora import read_gguf_lora

                return read_gguf_lora(path)
    from .peft import read_peft

    return read_peft(path)


def adapt(
    program: Program,
    config: ModelConfig,
    weights: Weights,
    stored: Mapping[str, QTensor],
    chosen: Adapters,
) -> Adapted:
    """Add adapters to the program of a model, whose file has the tensors `stored`.

    An adapter with a scale of 0 is checked and changes nothing. Raises as `open_adapter` does, and
    DamagedFile for an adapter of another model, naming the tensor.
    """
    changes = summed_changes(config, stored, chosen.lora)
    files = changes.files
    additions = additions_of(changes.low_rank, changes.replaced, config, weights)
    if unused := additions.unused(program):
        raise UnsupportedModel(f"adapters of {quoted(min(unused))} are not supported")
    if chosen.control_vectors:
        directions, vectors = summed_directions(config, chosen.control_vectors, chosen.control_layers)
        streams = program.residual[:-1] if config.per_layer_input else program.residual
        additions = replace(additions, directions=directions, streams=streams)
        files += vectors
    adapted = additions.to(program) if files else program
    return Adapted(adapted, additions.n_bytes, tuple(files), tuple(changes.notes))


def summed_changes(
    config: ModelConfig, stored: Mapping[str, QTensor], adapters: Sequence[AdapterFile]
) -> Changes:
    """The sum of what adapters change in a model.

    An adapter with a scale of 0 is only checked. Raises as `adapt` does.
    """
    changes: dict[str, list[LowRank]] = {}
    files: list[tuple[Path, float]] = []
    replaced: dict[str, QTensor] = {}
    notes: list[str] = []
    for adapter in adapters:
        opened, n_beside = _text_part(open_adapter(adapter.path), config)
        if n_beside:
            notes.append(
                f"{opened.title} also changes what is beside the text model; not used: {n_beside} matrices"
            )
        found = changes_of(opened, config, stored)
        whole = replaced_by(adapter, opened, config, stored)
        if twice := set(whole) & set(replaced):
            raise UnsupportedModel(f"{opened.title}: two adapters replace tensor {quoted(min(twice))}")
        replaced |= whole
        if adapter.scale == 0:
            continue
        files += [(path, adapter.scale) for path in opened.paths]
        for name, change in found:
            changes.setdefault(name, []).append(change.scaled(adapter.scale))
    return Changes({name: joined(each) for name, each in changes.items()}, replaced, files, notes)


def _text_part(adapter: StoredAdapter, config: ModelConfig) -> tuple[StoredAdapter, int]:
    """An adapter without what it changes in the vision or audio part of a model, and how much that is."""
    beside = ARCHS[config.arch].hf_skip
    if adapter.from_gguf or not beside:
        return adapter, 0
    pairs = {name: pair for name, pair in adapter.pairs.items() if not name.startswith(beside)}
    return replace(adapter, pairs=pairs), len(adapter.pairs) - len(pairs)


def changes_of(
    adapter: StoredAdapter, config: ModelConfig, stored: Mapping[str, QTensor]
) -> list[tuple[str, LowRank]]:
    """The changes that an adapter makes to the matrices of a model, by their names.

    Raises DamagedFile for an adapter of another model.
    """
    check_base(adapter, config)
    check_layouts(config, adapter.from_gguf, adapter.title)
    places = Places(config, stored, adapter.from_gguf)
    experts = ExpertPlaces(config, adapter.from_gguf)
    found: list[tuple[str, LowRank]] = []
    single: dict[str, dict[int, LowRank]] = {}  # changes of single experts by the name of their stack
    try:
        for name, pair in adapter.pairs.items():
            if expert_place := experts.find(name, pair):
                for stack, change in expert_place.changes(pair):
                    if expert_place.expert is None:
                        found.append((stack, change))
                    else:
                        single.setdefault(stack, {})[expert_place.expert] = change
            elif place := places[name]:
                found += places.changes(pair, place)
            else:
                raise DamagedFile(
                    f"tensor {pair.name} has no place in a {config.arch} model of {config.n_layers} layers"
                )
    except DamagedFile as problem:
        raise DamagedFile(f"{adapter.title}: {problem}") from None
    n_experts = config.moe.n_experts if config.moe else 0
    found += ((stack, stack_of_experts(each, n_experts)) for stack, each in single.items())
    return found


def replaced_by(
    adapter: AdapterFile, opened: StoredAdapter, config: ModelConfig, stored: Mapping[str, QTensor]
) -> dict[str, QTensor]:
    """The embeddings and the output matrix that an adapter brings along (modules_to_save), by name.

    Raises UnsupportedModel for any other tensor, and for a scale that is not 1; DamagedFile for another
    shape than the model's, which an adapter has that was trained with more tokens.
    """
    found: dict[str, QTensor] = {}
    if not opened.replaced:
        return found
    places = Places(config, stored, opened.from_gguf)
    for name, tensor in opened.replaced.items():
        place, what = places[name], f"{opened.title}: tensor {quoted(name)}"
        inside = place.parts[0][0] if place else ""
        if inside not in (EMBEDDINGS, "output.weight"):
            raise UnsupportedModel(
                f"{what} replaces one of the model's (modules_to_save), which is supported for embeddings "
                "and output matrix only; merge the adapter with PEFT's merge_and_unload"
            )
        if tensor.shape != (config.vocab_size, config.hidden):
            raise DamagedFile(
                f"{what} has shape {tensor.shape}, but the model's is ({config.vocab_size}, {config.hidden})"
            )
        if adapter.scale not in (0, 1):
            raise UnsupportedModel(
                f"{what} replaces the model's, so that the scale must be 1, not {adapter.scale}"
            )
        found[inside] = tensor
    return found if adapter.scale else {}


def check_base(adapter: StoredAdapter, config: ModelConfig) -> None:
    """Raise DamagedFile for a GGUF adapter of another architecture."""
    own = ARCHS[config.arch].gguf
    rules = gguf_rules(own)
    known = {own, rules.attention_only_name, rules.moe_name}
    if adapter.from_gguf and own and adapter.base not in known:
        raise DamagedFile(
            f"{adapter.title}: is an adapter of {quoted(adapter.base)} models, but the model is {own}"
        )
