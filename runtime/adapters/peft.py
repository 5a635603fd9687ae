"""LoRA adapters of PEFT: a folder with adapter_config.json and adapter_model.safetensors.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"; Kalajdzievski 2023, "A Rank
Stabilization Scaling Factor for Fine-Tuning with LoRA". Names and keys are those of PEFT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...quant.block import QTensor
from ...quant.checkpoint.folder import float_tensors
from ...quant.checkpoint.json_files import read_object
from ...quant.errors import DamagedFile, UnsupportedModel
from ...quant.gguf.metadata import quoted
from ...quant.mapped_file import MappedFile
from ...untrusted import Limits
from .stored import MAX_RANK, StoredAdapter, StoredPair

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_CONFIG_LIMITS = Limits(n_bytes=1 << 20, n_marks=1 << 16)
_MOST_PATTERN = 200  # characters of a pattern of alpha_pattern
_MOST_NAME = 120  # characters of a name that is matched with one
_MOST_REPEATS = 2  # repetitions without end in a pattern, whose cost is a power of the name's length

# Keys of the configuration that, if they are set, change what the factors mean.
_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "alora_invocation_tokens": "activated LoRA (aLoRA)",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "layer_replication": "replicated layers",
    "trainable_token_indices": "trained tokens",
}
# Starts of `init_lora_weights` that change the model's own weights, so that factors fit changed ones only.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_peft(path: Path) -> StoredAdapter:
    """The adapter in a folder, or in the folder of a file adapter_model.safetensors.

    Raises FileNotFoundError, DamagedFile, or UnsupportedModel (a DamagedFile) for another kind than LoRA.
    """
    folder = path if path.is_dir() else path.parent
    name = folder.resolve().name
    if not (folder / CONFIG).exists():
        raise DamagedFile(f"{name}: is no adapter: it has no {CONFIG}")
    weights = folder / WEIGHTS if path.is_dir() else path
    if not weights.exists():
        pickled = (folder / "adapter_model.bin").exists()
        raise DamagedFile(
            f"{name}: holds pickled weights (adapter_model.bin); only safetensors are read"
            if pickled
            else f"{name}: has no {WEIGHTS}"
        )
    config = read_object(folder / CONFIG, _CONFIG_LIMITS, folder)
    _check_kind(config, name)
    tensors = float_tensors(MappedFile(weights, folder))
    pairs, replaced = _pairs(tensors, config, name)
    base = config.get("base_model_name_or_path")
    return StoredAdapter(
        title=name,
        from_gguf=False,
        base=base if isinstance(base, str) else "",
        paths=(folder / CONFIG, weights),
        pairs=pairs,
        replaced=replaced,
    )


def _check_kind(config: Mapping[str, Any], name: str) -> None:
    """Raise UnsupportedModel for an adapter that is not plain LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{name}: is an adapter of type {quoted(str(kind))}; only LoRA is supported")
    for key, what in _REFUSED.items():
        if config.get(key):
            raise UnsupportedModel(
                f"{name}: {what} ({key}) is not supported; merge the adapter into its model with PEFT's "
                "merge_and_unload"
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise UnsupportedModel(
            f"{name}: init_lora_weights {quoted(start)} changed the model's own weights; save the adapter "
            "with PEFT's path_initial_model_for_weight_conversion, or merge it"
        )


def _pairs(
    tensors: Mapping[str, QTensor], config: Mapping[str, Any], name: str
) -> tuple[dict[str, StoredPair], dict[str, QTensor]]:
    """The pairs by the names of their modules, and the tensors that belong to none."""
    parts: dict[str, dict[str, QTensor]] = {}
    replaced: dict[str, QTensor] = {}
    for key, tensor in tensors.items():
        module, found, rest = key.removeprefix("base_model.model.").partition(".lora_")
        if not found:
            replaced[_plain_name(module).removesuffix(".weight")] = tensor
            continue
        words = rest.split(".")  # "A", maybe the adapter's name, maybe "weight" or "bias"
        part = f"{words[0]} bias" if words[-1] == "bias" else words[0]
        if part == "magnitude_vector":
            raise UnsupportedModel(f"{name}: tensor {quoted(key)} is of DoRA, which is not supported")
        if part in parts.setdefault(module, {}):
            raise DamagedFile(f"{name}: tensor {quoted(key)} is there twice")
        parts[module][part] = tensor
    scale_of = _Scales(config, name)
    pairs = {}
    for module, found_parts in parts.items():
        down, up = (_part(found_parts, part) for part in "AB")
        if down is None or up is None:
            raise DamagedFile(f"{name}: {quoted(module)} has no pair of lora_A and lora_B")
        if unknown := set(found_parts) - {"A", "B", "B bias", "embedding_A", "embedding_B"}:
            raise UnsupportedModel(f"{name}: {quoted(module)} has lora_{min(unknown)}, which is not known")
        if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
            raise DamagedFile(
                f"{name}: tensors {quoted(down.name)} {down.shape} and {quoted(up.name)} {up.shape} are no "
                "factors of a matrix"
            )
        rank, scale = scale_of(module, down.shape[0])
        bias = found_parts.get("B bias")
        pairs[module] = StoredPair(quoted(module), down, up, rank, scale, bias)
    if not pairs:
        raise DamagedFile(f"{name}: has no tensors of LoRA")
    return pairs, replaced


def _part(parts: Mapping[str, QTensor], part: str) -> QTensor | None:
    return parts.get(part) or parts.get(f"embedding_{part}")


def _plain_name(module: str) -> str:
    """The model's own name of a tensor that PEFT has wrapped."""
    for wrapper in (".modules_to_save.default", ".modules_to_save", ".base_layer"):
        module = module.replace(wrapper, "")
    return module


class _Scales:
    """alpha / rank of each module, or alpha / √rank with `use_rslora`, as the configuration has it."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self._name = name
        self._root = bool(config.get("use_rslora"))
        self._rank = self._number(config.get("r", 8), "r")
        self._alpha = self._number(config.get("lora_alpha", 8), "lora_alpha")
        self._alphas = self._patterns(config, "alpha_pattern")
        self._ranks = self._patterns(config, "rank_pattern")

    def __call__(self, module: str, rows: int) -> tuple[int, float]:
        """Rank and scale of a module whose `down` has so many rows: its rank, or that times the experts."""
        rank = int(self._matched(self._ranks, module, self._rank))
        if not 1 <= rank <= MAX_RANK or rows % rank:
            raise DamagedFile(
                f"{self._name}: {quoted(module)} has a lora_A of {rows} rows, but {CONFIG} says rank {rank}"
            )
        alpha = self._matched(self._alphas, module, self._alpha)
        return rank, alpha / (math.sqrt(rank) if self._root else rank)

    def _number(self, value: Any, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
            raise DamagedFile(f"{self._name}: {CONFIG}: {key} must be a number, not {quoted(str(value))}")
        return float(value)

    def _patterns(self, config: Mapping[str, Any], key: str) -> list[tuple[re.Pattern[str], float]]:
        """Patterns and their values. A stranger's pattern must not take long to match."""
        values = config.get(key) or {}
        if not isinstance(values, dict):
            raise DamagedFile(f"{self._name}: {CONFIG}: {key} must be an object")
        found = []
        for text, value in values.items():
            repeats = len(re.findall(r"(?<!\\)[*+{]", text))
            if len(text) > _MOST_PATTERN or repeats > _MOST_REPEATS or re.search(r"\)[*+{?]", text):
                raise UnsupportedModel(
                    f"{self._name}: {CONFIG}: the pattern {quoted(text)} of {key} is too complex"
                )
            try:
                pattern = re.compile(rf"(.*\.)?({text})$")
            except re.error as problem:
                raise DamagedFile(f"{self._name}: {CONFIG}: {key}: {quoted(text)}: {problem}") from None
            found.append((pattern, self._number(value, key)))
        return found

    @staticmethod
    def _matched(patterns: list[tuple[re.Pattern[str], float]], module: str, default: float) -> float:
        """The value of the first pattern that the module's name ends with."""
        short = module[-_MOST_NAME:]
        return next((value for pattern, value in patterns if pattern.match(short)), default)
