"""What some models change from layer to layer: head sizes, FFN widths, and whose keys and values are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile
from ..archs import Arch
from .fields import Fields, UnsupportedModel
from .layers import Layer, ffn_width
from .moe import Experts
from .names import Names


def widths(keys: Fields, key: str, n_layers: int, default: int | None = None, low: int = 1) -> list[int]:
    """The integers from `low` on at `key`, one for each layer, of which a file may give only one for all;
    0 for a layer without that part. Raises DamagedFile."""
    values = keys.values.get(keys.prefix + key)
    if not isinstance(values, list | np.ndarray):
        return [keys.integer(key, default, low)] * n_layers
    if len(values) < n_layers or (isinstance(values, np.ndarray) and values.ndim != 1):
        raise keys.fail(key, f"a number, or {n_layers} of them")
    each = [v.item() if isinstance(v, np.generic) else v for v in list(values)[:n_layers]]
    return [Fields({key: v}, keys.source).integer(key, low=0) for v in each]


def usual_width(keys: Fields, key: str, n_layers: int, default: int | None = None, low: int = 1) -> int:
    """The first of `widths` that is not 0."""
    usual = next(filter(None, widths(keys, key, n_layers, default, low)), 0)
    if usual < low:
        raise keys.fail(key, "a number above 0 for any layer")
    return usual


def ffns_from_hf(keys: Fields, n_layers: int, default: int | None, experts: Experts | None) -> list[int]:
    """The widths of all layers' FFNs from config.json. Raises DamagedFile."""
    if isinstance(keys.values.get("intermediate_size"), list):
        return widths(keys, "intermediate_size", n_layers)
    return [ffn_width(keys, default, experts)] * n_layers


def full_sizes_from_hf(keys: Fields) -> tuple[int | None, int | None]:
    """Head size and number of key-value heads of layers without a window; None: as in the others.

    transformers 5 writes them as exceptions, layer by layer. Raises DamagedFile.
    """
    exceptions = keys.section("per_layer_config")
    if exceptions is None:
        same_values = keys.flag("attention_k_eq_v", False)
        heads = "num_global_key_value_heads" in keys and same_values
        return (
            keys.integer("global_head_dim") if "global_head_dim" in keys else None,
            keys.integer("num_global_key_value_heads") if heads else None,
        )
    entries = [exceptions.section(layer) or Fields({}, exceptions.source) for layer in exceptions.values]
    sizes = {
        tuple(entry.integer(key) if key in entry else None for key in ("head_dim", "num_key_value_heads"))
        for entry in entries
    }
    if len(sizes) > 1:
        raise UnsupportedModel(f"{exceptions.source} differs from layer to layer, which is not supported")
    return next(((head_dim, kv_heads) for head_dim, kv_heads in sizes), (None, None))


def varied_from_hf(
    keys: Fields, layers: tuple[Layer, ...], ffns: Sequence[int], full: tuple[int | None, int | None]
) -> tuple[Layer, ...]:
    """`layers` with what config.json says of each; `ffns` are their FFNs' widths, `full` as above.

    Raises DamagedFile, or UnsupportedModel for exceptions that are not those of the full layers.
    """
    exceptions = keys.section("per_layer_config")
    full_layers = {str(i) for i, layer in enumerate(layers) if not layer.window}
    if exceptions is not None and set(exceptions.values) != full_layers:
        raise UnsupportedModel(
            f"{exceptions.source} is supported for all layers without a window, and no other"
        )
    sources = _sources(keys, "num_kv_shared_layers", layers)
    same_values = keys.flag("attention_k_eq_v", False)
    double = keys.flag("use_double_wide_mlp", False)
    sparsity = keys.values.get("activation_sparsity_pattern")
    if not isinstance(sparsity, list):
        sparsity = [0.0 if sparsity is None else sparsity] * len(layers)
    if len(sparsity) != len(layers) or not all(type(s) in (int, float) and 0 <= s < 1 for s in sparsity):
        raise keys.fail("activation_sparsity_pattern", f"{len(layers)} numbers from 0 to below 1")
    if any(sparsity):
        from statistics import NormalDist  # only here: its import is a slow one

        deviations = [NormalDist().inv_cdf(s) if s else None for s in sparsity]
    else:
        deviations = [None] * len(layers)
    return tuple(
        replace(
            layer,
            head_dim=None if layer.window else full[0],
            kv_heads=None if layer.window else full[1],
            ffn=_other(ffns[i] * (2 if double and sources[i] is not None else 1), ffns[0]),
            kv_from=sources[i],
            values_are_keys=same_values and not layer.window and sources[i] is None,
            deviations=deviations[i],
        )
        for i, layer in enumerate(layers)
    )


def varied_from_gguf(
    keys: Fields, layers: tuple[Layer, ...], arch: Arch, held: Mapping[str, QTensor], names: Names
) -> tuple[Layer, ...]:
    """`layers` with what metadata and tensors say of each. Raises DamagedFile."""
    n = len(layers)
    ffns = widths(keys, "feed_forward_length", n, low=0)
    kv_heads = widths(keys, "attention.head_count_kv", n, keys.integer("attention.head_count"))
    ffn, heads = (next(filter(None, each), 0) for each in (ffns, kv_heads))
    local = keys.integer("attention.key_length_swa") if "attention.key_length_swa" in keys else None
    sources = _sources(keys, "attention.shared_kv_layers", layers)
    deviations = keys.values.get(f"{keys.prefix}activation_sparsity_scale", [-math.inf] * n)
    if not isinstance(deviations, list | np.ndarray) or len(deviations) != n:
        raise keys.fail("activation_sparsity_scale", f"{n} numbers")
    deviations = [float(d) if isinstance(d, float | np.floating) else math.nan for d in deviations]
    if any(math.isnan(d) or d == math.inf for d in deviations):
        raise keys.fail("activation_sparsity_scale", f"{n} numbers")
    return tuple(
        replace(
            layer,
            head_dim=local if layer.window else None,
            kv_heads=_other(kv_heads[i], heads),
            ffn=_other(ffns[i], ffn),
            kv_from=sources[i],
            values_are_keys=arch.values_from_keys
            and sources[i] is None
            and names(f"blk.{i}.attn_v.weight") not in held,
            deviations=deviations[i] if deviations[i] > -math.inf else None,
        )
        for i, layer in enumerate(layers)
    )


def _other(value: int, usual: int) -> int | None:
    return value if value not in (0, usual) else None


def _sources(keys: Fields, key: str, layers: tuple[Layer, ...]) -> list[int | None]:
    """Whose keys and values each layer reads: the last ones, as many as `key` says, those of the last layer
    before them that is of their kind, with a window or without; None: its own."""
    first = len(layers) - keys.integer(key, 0, low=0)
    sources: list[int | None] = [None] * len(layers)
    for i in range(max(first, 0), len(layers)):
        alike = [j for j in range(first) if bool(layers[j].window) == bool(layers[i].window)]
        if not alike:
            raise DamagedFile(
                f"{keys.source}: layer {i} shares keys and values with no earlier layer of its kind"
            )
        sources[i] = alike[-1]
    return sources
