"""What differs between the layers of a model: sliding windows, and which layers rotate how, if at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..archs import Arch
from .fields import Fields, UnsupportedModel, show
from .moe import Experts
from .rope import Rope

LAYER_TYPES = {  # spellings of config.json → whether the layer has the sliding window
    "full_attention": False,
    "attention": False,
    "sliding_attention": True,
}
RECURRENT_TYPES = ("conv", "mamba", "linear_attention")  # of architectures that have such layers


@dataclass(frozen=True)
class Layer:
    """What may differ between layers."""

    rope: Rope | None  # None: positions are not told apart, but by causality
    window: int = 0  # sliding window of attention, in tokens; 0: all
    experts: bool = False  # its FFN is a mixture of experts
    head_dim: int | None = None  # where these differ from the model's
    kv_heads: int | None = None
    ffn: int | None = None
    kv_from: int | None = None  # the earlier layer whose keys and values it reads; it has none of its own
    values_are_keys: bool = False  # its values are its keys, before norm and rotation
    # Only gates of the FFN so many standard deviations above their mean take part; None: all do.
    deviations: float | None = None
    attends: bool = True
    recurs: bool = False  # see ModelConfig.recurrence
    feeds: bool = True  # has an FFN


def layers_from_gguf(
    keys: Fields, arch: Arch, ropes: tuple[Rope, Rope], experts: list[bool]
) -> tuple[Layer, ...]:
    """The layers of a GGUF file; `ropes` of full and of sliding ones, `experts` for each whether it has them.

    Raises DamagedFile.
    """
    n_layers = len(experts)
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
        windows = _periodic(
            window, keys.integer("attention.sliding_window_pattern", arch.window_period), n_layers
        )
    rotates = arch.nope != "switch" or keys.flag("rope.scaling.finetuned", True)
    return _layers(windows, ropes, _rotating(arch, windows, rotates), experts)


def layers_from_hf(
    keys: Fields, arch: Arch, ropes: tuple[Rope, Rope], experts: list[bool]
) -> tuple[Layer, ...]:
    """The layers of a Hugging Face checkpoint; arguments as for `layers_from_gguf`.

    Raises DamagedFile, or UnsupportedModel for layers that are no attention.
    """
    n_layers = len(experts)
    windows = _windows_hf(keys, arch, n_layers)
    rotates = arch.nope != "switch" or keys.text("position_embedding_type", "none") == "rope"
    rotating = _rotating(arch, windows, rotates)
    if arch.nope == "period":
        interval = keys.integer("no_rope_layer_interval", arch.nope_period)
        rotating = [bool((i + 1) % interval) for i in range(n_layers)]
        if "no_rope_layers" in keys:  # despite its name 1 where there is RoPE
            rotating = [bool(flag) for flag in _per_layer(keys, "no_rope_layers", n_layers)]
    return _layers(windows, ropes, rotating, experts)


def ffn_width(keys: Fields, default: int | None, experts: Experts | None) -> int:
    """The width of a dense FFN from config.json; of a model that has none, any. Raises DamagedFile.

    LFM2 (`block_auto_adjust_ff_dim`) says how to work it out from what it names.
    """
    width = keys.integer("intermediate_size", default or (experts.width if experts else None))
    if not keys.flag("block_auto_adjust_ff_dim", False):
        return width
    width = 2 * width // 3
    if "block_ffn_dim_multiplier" in keys:
        unit = keys.integer("block_multiple_of")
        width = -(-int(keys.number("block_ffn_dim_multiplier") * width) // unit) * unit
    return width


def _windows_hf(keys: Fields, arch: Arch, n_layers: int) -> list[int]:
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
    if isinstance(pattern, str):  # a letter a layer, over and over
        if not pattern or set(pattern) - set("LG"):
            raise keys.fail("sliding_window_pattern", "a word of L (local) and G (global), or a number")
        return [window if pattern[i % len(pattern)] == "L" else 0 for i in range(n_layers)]
    period = keys.integer("_sliding_window_pattern", arch.window_period)
    period = keys.integer("sliding_window_pattern", period, low=0 if not window else 1)
    return _periodic(window, period, n_layers) if window else [0] * n_layers


def _per_layer(keys: Fields, key: str, n_layers: int) -> list[Any]:
    values = keys.values[key]
    if not isinstance(values, list) or len(values) != n_layers:
        raise keys.fail(key, f"a list of {n_layers}")
    return values


def _periodic(window: int, period: int, n_layers: int) -> list[int]:
    """Every `period`-th layer is full."""
    return [window if (i + 1) % period else 0 for i in range(n_layers)]


def _rotating(arch: Arch, windows: list[int], rotates: bool) -> list[bool]:
    """Which layers have RoPE; `rotates`: whether any does."""
    if arch.nope == "period":
        return [bool((i + 1) % arch.nope_period) for i in range(len(windows))]
    if arch.nope == "full" and any(windows):
        return [window > 0 for window in windows]
    return [rotates and arch.nope != "all"] * len(windows)


def _layers(
    windows: list[int], ropes: tuple[Rope, Rope], rotating: list[bool], experts: list[bool]
) -> tuple[Layer, ...]:
    full, local = ropes
    return tuple(
        Layer((local if window else full) if turns else None, window, has_experts)
        for window, turns, has_experts in zip(windows, rotating, experts, strict=True)
    )
