"""Layer: what differs between the layers of a model; the sliding window and RoPE of each layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...quant.errors import UnsupportedModel
from ..archs import Arch
from .metadata import Metadata, show
from .rope import Rope

LAYER_TYPES = {  # spellings of config.json → whether the layer has the sliding window
    "full_attention": False,
    "attention": False,
    "sliding_attention": True,
}
RECURRENT_TYPES = ("conv", "mamba", "linear_attention")  # spellings for layers with a recurrent mixer


@dataclass(frozen=True)
class Layer:
    """What may differ between layers."""

    rope: Rope | None  # None: no rotary embeddings
    window: int = 0  # sliding window of attention, in tokens; 0: attention to all
    is_moe: bool = False  # the FFN is a mixture of experts
    head_dim: int | None = None  # None: the model's, as with the next two
    kv_heads: int | None = None
    ffn: int | None = None
    kv_from: int | None = None  # the earlier layer whose keys and values it shares; None: it has its own
    values_are_keys: bool = False  # values are the keys in front of norm and rotation
    std_multiplier: float | None = None  # see ops.GaussianTopK, over the gate of the FFN; None: not used
    has_attention: bool = True
    has_recurrence: bool = False  # see ModelConfig.recurrence
    has_ffn: bool = True
    has_attn_norm: bool = True  # in front of attention, in a model that has this norm


def layers_from_gguf(
    keys: Metadata, arch: Arch, ropes: tuple[Rope, Rope], is_moe: list[bool]
) -> tuple[Layer, ...]:
    """The layers of a GGUF file.

    `ropes` are those of layers with full attention and with a sliding window; `is_moe` says for each layer
    whether it has experts. Raises DamagedFile.
    """
    n_layers = len(is_moe)
    window = keys.integer("attention.sliding_window", 0, low=0)
    pattern = keys.values.get(f"{keys.prefix}attention.sliding_window_pattern")
    if arch.window_in_gguf == "none":
        windows = [0] * n_layers
    elif arch.window_in_gguf == "all":
        windows = [window] * n_layers
    elif isinstance(pattern, list | np.ndarray):  # one truth value a layer
        slides = list(pattern)
        if len(slides) != n_layers or not all(isinstance(s, bool | np.bool_) for s in slides):
            raise keys.fail("attention.sliding_window_pattern", f"{n_layers} truth values or a number")
        windows = [window if slide else 0 for slide in slides]
    else:
        period = keys.integer("attention.sliding_window_pattern", arch.window_period)
        windows = _periodic(window, period, n_layers, arch.window_first_full)
    rotates = arch.nope != "switch" or keys.flag("rope.scaling.finetuned", True)
    return _layers(windows, ropes, _rotating(arch, windows, rotates), is_moe, arch.first_norm)


def layers_from_hf(
    keys: Metadata, arch: Arch, ropes: tuple[Rope, Rope], is_moe: list[bool]
) -> tuple[Layer, ...]:
    """The layers of a Hugging Face checkpoint; arguments as for `layers_from_gguf`.

    Raises DamagedFile, or UnsupportedModel for an unknown layer type.
    """
    n_layers = len(is_moe)
    windows = _windows_hf(keys, arch, n_layers)
    rotates = arch.nope != "switch" or keys.text("position_embedding_type", "none") == "rope"
    rotating = _rotating(arch, windows, rotates)
    if arch.nope == "period":
        interval = keys.integer("no_rope_layer_interval", arch.nope_period)
        rotating = [bool((i + 1) % interval) for i in range(n_layers)]
        if "no_rope_layers" in keys:  # despite its name 1 where there is RoPE
            rotating = [bool(flag) for flag in _per_layer(keys, "no_rope_layers", n_layers)]
    return _layers(windows, ropes, rotating, is_moe, arch.first_norm)


def _windows_hf(keys: Metadata, arch: Arch, n_layers: int) -> list[int]:
    """The sliding window of each layer, 0 for full attention, from config.json."""
    window = keys.integer("sliding_window", 0, low=0)
    types = None
    if "layer_types" in keys:
        types = _per_layer(keys, "layer_types", n_layers)
        known = (*LAYER_TYPES, *(RECURRENT_TYPES if arch.recurrence else ()))
        if strange := [t for t in types if not isinstance(t, str) or t not in known]:
            raise UnsupportedModel(
                f"layer type {show(strange[0])} is not supported; supported are {', '.join(known)}"
            )
    switched = arch.window in ("from", "named")
    if arch.window == "none" or (switched and not keys.flag("use_sliding_window", False)):
        return [0] * n_layers
    if types is not None:
        return [window if LAYER_TYPES.get(t) else 0 for t in types]
    if arch.window == "all":
        return [window] * n_layers
    if arch.window == "named":
        raise UnsupportedModel("use_sliding_window without layer_types is not supported")
    if arch.window == "from":
        first = keys.integer("max_window_layers", low=0)
        return [0 if i < first else window for i in range(n_layers)]
    pattern = keys.values.get("sliding_window_pattern")
    if isinstance(pattern, str):  # a letter for each layer, repeated
        if not pattern or set(pattern) - set("LG"):
            raise keys.fail("sliding_window_pattern", "a word of L (local) and G (global), or a number")
        return [window if pattern[i % len(pattern)] == "L" else 0 for i in range(n_layers)]
    period = keys.integer("_sliding_window_pattern", arch.window_period)
    period = keys.integer("sliding_window_pattern", period, low=0 if not window else 1)
    return _periodic(window, period, n_layers, arch.window_first_full) if window else [0] * n_layers


def _per_layer(keys: Metadata, key: str, n_layers: int) -> list[Any]:
    """A list with a value for each layer. Raises DamagedFile."""
    values = keys.values[key]
    if not isinstance(values, list) or len(values) != n_layers:
        raise keys.fail(key, f"a list of {n_layers}")
    return values


def _periodic(window: int, period: int, n_layers: int, first_full: bool) -> list[int]:
    """The window of each layer, where every `period`-th layer has full attention, the first or last of each
    period."""
    return [window if (i + (not first_full)) % period else 0 for i in range(n_layers)]


def _rotating(arch: Arch, windows: list[int], rotates: bool) -> list[bool]:
    """Whether each layer has RoPE; `rotates` says whether any layer has it."""
    if arch.nope == "period":
        return [bool((i + 1) % arch.nope_period) for i in range(len(windows))]
    if arch.nope == "full" and any(windows):
        return [window > 0 for window in windows]
    return [rotates and arch.nope != "all"] * len(windows)


def _layers(
    windows: list[int],
    ropes: tuple[Rope, Rope],
    rotating: list[bool],
    is_moe: list[bool],
    first_norm: bool,
) -> tuple[Layer, ...]:
    full, local = ropes
    has_norms = [first_norm, *([True] * len(windows))][: len(windows)]
    return tuple(
        Layer((local if window else full) if rotates else None, window, experts, has_attn_norm=has_norm)
        for window, rotates, experts, has_norm in zip(windows, rotating, is_moe, has_norms, strict=True)
    )


def seen_both_ways(layers: tuple[Layer, ...], causal: bool) -> tuple[Layer, ...]:
    """`layers` with windows as `ops.Attend` has them.

    A file states how many tokens a window has in all; half of them are on each side.
    """
    if causal:
        return layers
    return tuple(replace(layer, window=layer.window // 2 + 1 if layer.window else 0) for layer in layers)
