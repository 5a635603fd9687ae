"""The embedding settings of a Hugging Face folder, as sentence-transformers writes them.

modules.json lists the modules that a text goes through; each has a folder with its config.json and, if it has
weights, model.safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.folder import tensors_of_file
from ...quant.checkpoint.json_files import read_object
from ...quant.errors import DamagedFile, UnsupportedModel
from ...untrusted import Limits, parse_json, read_file
from ..config.metadata import Metadata, show
from .pooling import MODES
from .settings import EmbeddingSettings
from .stages import Dense, LayerNorm, Normalize, Stage

MODULES = "modules.json"
_LIMITS = Limits(n_bytes=1 << 20, n_marks=1 << 14)
MAX_MODULES = 32
MAX_PROMPTS, LONGEST_PROMPT = 1000, 1 << 16  # characters
_ACTIVATIONS = {  # names of PyTorch's classes, without their modules → `stages.ACTIVATIONS`
    "Identity": "identity",
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}


def settings_of_folder(folder: Path) -> EmbeddingSettings | None:
    """The settings that a folder states; None for one without modules.json.

    Raises DamagedFile, or UnsupportedModel for a module that is not known.
    """
    if not (folder / MODULES).exists():
        return None
    pooling: tuple[str, ...] = ("mean",)
    stages: list[Stage] = []
    skip_prompt, transformer = False, ""
    for kind, path in _modules(folder):
        match kind:
            case "Transformer":
                transformer = path
            case "Pooling":
                config = _config(folder, path)
                pooling, skip_prompt = _pooling(config), not config.flag("include_prompt", True)
            case "Dense":
                stages.append(_dense(folder, path))
            case "LayerNorm":
                tensors = tensors_of_file(folder / path / "model.safetensors", folder)
                weight, bias = (_values(tensors, f"norm.{name}", path) for name in ("weight", "bias"))
                stages.append(LayerNorm(weight, bias))
            case "Normalize":
                stages.append(Normalize())
            case "Dropout":
                pass
            case _:
                raise UnsupportedModel(f"{MODULES}: a module {show(kind)} is not supported")
    prompts, default = _prompts(folder)
    limits = _read(folder / transformer / "sentence_bert_config.json", folder)
    return EmbeddingSettings(
        pooling=pooling,
        stages=tuple(stages),
        prompts=prompts,
        default_prompt=default,
        skip_prompt=skip_prompt,
        max_tokens=limits.integer("max_seq_length") if "max_seq_length" in limits else None,
        lowercase=limits.flag("do_lower_case", False),
    )


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """(class without its module, folder) of each module."""
    raw = read_file(folder / MODULES, _LIMITS.n_bytes, DamagedFile, folder)
    listed = parse_json(raw, MODULES, _LIMITS.n_marks, DamagedFile)
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_MODULES:
        raise DamagedFile(f"{MODULES}: is not a list of 1 to {MAX_MODULES} modules")
    for entry in listed:
        if not isinstance(entry, dict):
            raise DamagedFile(f"{MODULES}: {show(entry)} is not a module")
        module = Metadata(entry, MODULES)
        yield module.text("type").rpartition(".")[2], module.text("path", "")


def _read(path: Path, folder: Path) -> Metadata:
    """A JSON object in a file of the folder; empty if there is no such file."""
    values = read_object(path, _LIMITS, folder) if path.exists() else {}
    return Metadata(values, path.name)


def _config(folder: Path, path: str) -> Metadata:
    return Metadata(read_object(folder / path / "config.json", _LIMITS, folder), f"{path}/config.json")


def _pooling(config: Metadata) -> tuple[str, ...]:
    """The modes: a name or a list of them, or flags in older files."""
    modes = config.values.get("pooling_mode")
    if modes is None:
        flags = {f"pooling_mode_{mode}{_ENDINGS.get(mode, '')}": mode for mode in MODES}
        modes = [mode for key, mode in flags.items() if config.flag(key, False)]
    chosen = [modes] if isinstance(modes, str) else modes
    if not isinstance(chosen, list) or not chosen or not set(map(str, chosen)) <= set(MODES):
        raise config.fail("pooling_mode", f"one or more of {', '.join(MODES)}")
    return tuple(dict.fromkeys(chosen))


_ENDINGS = {"cls": "_token", "max": "_tokens", "mean": "_tokens", "weightedmean": "_tokens"}


def _dense(folder: Path, path: str) -> Dense:
    config = _config(folder, path)
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"{path}: the activation {show(name)} is not supported")
    if not (folder / path / "model.safetensors").exists():
        raise DamagedFile(f"{path}: has no model.safetensors; pickled weights are not read")
    tensors = tensors_of_file(folder / path / "model.safetensors", folder)
    weight = _values(tensors, "linear.weight", path)
    bias = _values(tensors, "linear.bias", path) if config.flag("bias", True) else None
    shape = config.integer("out_features"), config.integer("in_features")
    if weight.shape != shape or (bias is not None and bias.shape != shape[:1]):
        raise DamagedFile(f"{path}: linear.weight has shape {weight.shape}, but config.json says {shape}")
    return Dense(weight, bias, _ACTIVATIONS[name])


def _values(tensors: Mapping[str, QTensor], name: str, path: str) -> np.ndarray:
    """A tensor of a module's file in float32."""
    if name not in tensors:
        raise DamagedFile(f"{path}: tensor {name} is missing")
    values: np.ndarray = tensors[name].dequantize()
    return values


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    """The prompts by name, and the name of the default one."""
    config: Any = _read(folder / "config_sentence_transformers.json", folder)
    section = config.section("prompts")
    prompts = dict(section.values) if section else {}
    if len(prompts) > MAX_PROMPTS or not all(
        isinstance(text, str) and len(text) <= LONGEST_PROMPT for text in prompts.values()
    ):
        raise config.fail("prompts", f"up to {MAX_PROMPTS} texts by name")
    default = config.text("default_prompt_name", "") or None
    if default is not None and default not in prompts:
        raise config.fail("default_prompt_name", "the name of a prompt")
    return prompts, default
