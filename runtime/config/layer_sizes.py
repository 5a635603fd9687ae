"""Sizes that differ between layers: heads, FFN widths, and the layers that share keys and values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..archs import Arch
from .layers import Layer
from .metadata import Metadata
from .moe import MoEConfig
from .tensor_names import TensorNames


def widths(keys: Metadata, key: str, n_layers: int, default: int | None = None, low: int = 1) -> list[int]:
    """The integer of each layer at `key`, from `low` up; 0 for a layer without that block.

    A file has one number for all layers or a list. Raises DamagedFile.
    """
    values = keys.values.get(keys.prefix + key)
    if not isinstance(values, list | np.ndarray):
        return [keys.integer(key, default, low)] * n_layers
    if len(values) < n_layers or (isinstance(values, np.ndarray) and values.ndim != 1):
        raise keys.fail(key, f"a number, or {n_layers} of them")
    each = [v.item() if isinstance(v, np.generic) else v for v in list(values)[:n_layers]]
    return [Metadata({key: v}, keys.source).integer(key, low=0) for v in each]


def first_width(keys: Metadata, key: str, n_layers: int, default: int | None = None, low: int = 1) -> int:
    """The first of `widths` that is not 0. Raises DamagedFile if it is below `low`."""
    width = next(filter(None, widths(keys, key, n_layers, default, low)), 0)
    if width < low:
        raise keys.fail(key, "a number above 0 for any layer")
    return width


def ffns_from_hf(keys: Metadata, n_layers: int, default: int | None, moe: MoEConfig | None) -> list[int]:
    """The FFN width of each layer from config.json. Raises DamagedFile."""
    if isinstance(keys.values.get("intermediate_size"), list):
        return widths(keys, "intermediate_size", n_layers)
    return [_ffn_width(keys, default, moe)] * n_layers


def _ffn_width(keys: Metadata, default: int | None, moe: MoEConfig | None) -> int:
    """The width of a dense FFN; for a model without dense layers the width of an expert.

    With LFM2's `block_auto_adjust_ff_dim` the width is 2/3 of the key's value, rounded up.
    """
    width = keys.integer("intermediate_size", default or (moe.width if moe else None))
    if not keys.flag("block_auto_adjust_ff_dim", False):
        return width
    width = 2 * width // 3
    if "block_ffn_dim_multiplier" in keys:
        unit = keys.integer("block_multiple_of")
        width = -(-int(keys.number("block_ffn_dim_multiplier") * width) // unit) * unit
    return width


def full_sizes_from_hf(keys: Metadata) -> tuple[int | None, int | None]:
    """Head size and number of key-value heads of layers without a window; None: as in the other layers.

    transformers 5 writes them as exceptions, layer by layer. Raises DamagedFile.
    """
    exceptions = keys.section("per_layer_config")
    if exceptions is None:
        has_heads = "num_global_key_value_heads" in keys and keys.flag("attention_k_eq_v", False)
        return (
            keys.integer("global_head_dim") if "global_head_dim" in keys else None,
            keys.integer("num_global_key_value_heads") if has_heads else None,
        )
    entries = [exceptions.section(layer) or Metadata({}, exceptions.source) for layer in exceptions.values]
    sizes = {
        tuple(entry.integer(key) if key in entry else None for key in ("head_dim", "num_key_value_heads"))
        for entry in entries
    }
    if len(sizes) > 1:
        raise UnsupportedModel(f"{exceptions.source} differs from layer to layer, which is not supported")
    return next(((head_dim, kv_heads) for head_dim, kv_heads in sizes), (None, None))


def sized_layers_from_hf(
    keys: Metadata, layers: tuple[Layer, ...], ffns: Sequence[int], full: tuple[int | None, int | None]
) -> tuple[Layer, ...]:
    """`layers` with their sizes in config.json; `ffns` from `ffns_from_hf`, `full` from `full_sizes_from_hf`.

    Raises DamagedFile, or UnsupportedModel for exceptions other than those of all layers without a window.
    """
    exceptions = keys.section("per_layer_config")
    full_layers = {str(i) for i, layer in enumerate(layers) if not layer.window}
    if exceptions is not None and set(exceptions.values) != full_layers:
        raise UnsupportedModel(
            f"{exceptions.source} is supported for all layers without a window, and no other"
        )
    sources = _kv_sources(keys, "num_kv_shared_layers", layers)
    values_are_keys = keys.flag("attention_k_eq_v", False)
    double = keys.flag("use_double_wide_mlp", False)  # the FFN of layers that share keys and values
    std_multipliers = _std_multipliers_from_hf(keys, len(layers))
    return tuple(
        replace(
            layer,
            head_dim=None if layer.window else full[0],
            kv_heads=None if layer.window else full[1],
            ffn=_if_other(ffns[i] * (2 if double and sources[i] is not None else 1), ffns[0]),
            kv_from=sources[i],
            values_are_keys=values_are_keys and not layer.window and sources[i] is None,
            std_multiplier=std_multipliers[i],
        )
        for i, layer in enumerate(layers)
    )


def _std_multipliers_from_hf(keys: Metadata, n_layers: int) -> list[float | None]:
    """`Layer.std_multiplier` of each layer; config.json has the share of gates that are set to 0."""
    sparsity = keys.values.get("activation_sparsity_pattern")
    if not isinstance(sparsity, list):
        sparsity = [0.0 if sparsity is None else sparsity] * n_layers
    if len(sparsity) != n_layers or not all(type(s) in (int, float) and 0 <= s < 1 for s in sparsity):
        raise keys.fail("activation_sparsity_pattern", f"{n_layers} numbers from 0 to below 1")
    if not any(sparsity):
        return [None] * n_layers
    from statistics import NormalDist  # imported here because it is slow to import

    return [NormalDist().inv_cdf(s) if s else None for s in sparsity]


def sized_layers_from_gguf(
    keys: Metadata,
    layers: tuple[Layer, ...],
    arch: Arch,
    tensors: Mapping[str, QTensor],
    names: TensorNames,
) -> tuple[Layer, ...]:
    """`layers` with their sizes in the metadata and tensors of a GGUF file. Raises DamagedFile."""
    n = len(layers)
    ffns = widths(keys, "feed_forward_length", n, low=0)
    kv_heads = widths(keys, "attention.head_count_kv", n, keys.integer("attention.head_count"))
    ffn, heads = (next(filter(None, each), 0) for each in (ffns, kv_heads))
    local = keys.integer("attention.key_length_swa") if "attention.key_length_swa" in keys else None
    sources = _kv_sources(keys, "attention.shared_kv_layers", layers)
    std_multipliers = _std_multipliers_from_gguf(keys, n)
    return tuple(
        replace(
            layer,
            head_dim=local if layer.window else None,
            kv_heads=_if_other(kv_heads[i], heads),
            ffn=_if_other(ffns[i], ffn),
            kv_from=sources[i],
            values_are_keys=arch.values_from_keys
            and sources[i] is None
            and names(f"blk.{i}.attn_v.weight") not in tensors,
            std_multiplier=std_multipliers[i],
        )
        for i, layer in enumerate(layers)
    )


def _std_multipliers_from_gguf(keys: Metadata, n_layers: int) -> list[float | None]:
    """`Layer.std_multiplier` of each layer; a GGUF file has -infinity for layers without sparsity."""
    key = "activation_sparsity_scale"
    values = keys.values.get(f"{keys.prefix}{key}", [-math.inf] * n_layers)
    if not isinstance(values, list | np.ndarray) or len(values) != n_layers:
        raise keys.fail(key, f"{n_layers} numbers")
    numbers = [float(v) if isinstance(v, float | np.floating) else math.nan for v in values]
    if any(math.isnan(v) or v == math.inf for v in numbers):
        raise keys.fail(key, f"{n_layers} numbers")
    return [v if v > -math.inf else None for v in numbers]


def _if_other(value: int, default: int) -> int | None:
    """`value`, or None if it is `default`, or 0 for a layer without that block."""
    return value if value not in (0, default) else None


def _kv_sources(keys: Metadata, key: str, layers: tuple[Layer, ...]) -> list[int | None]:
    """The layer whose keys and values each layer shares; None: it has its own.

    The number at `key` is how many layers at the end share. Each shares with the last layer before them of
    its kind, which is whether it has a sliding window. Raises DamagedFile if that layer has no attention.
    """
    first = len(layers) - keys.integer(key, 0, low=0)
    sources: list[int | None] = [None] * len(layers)
    for i in range(max(first, 0), len(layers)):
        same_kind = [j for j in range(first) if bool(layers[j].window) == bool(layers[i].window)]
        if not same_kind:
            raise DamagedFile(
                f"{keys.source}: layer {i} shares keys and values with no earlier layer of its kind"
            )
        sources[i] = source = same_kind[-1]
        if layers[i].has_attention and not layers[source].has_attention:
            raise DamagedFile(
                f"{keys.source}: layer {i} shares the keys and values of layer {source}, "
                "which has no attention"
            )
    return sources
