"""Reading a model's rotary embeddings from config.json, or from GGUF metadata and tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..archs import Arch
from .metadata import Metadata, show
from .rope import (
    DynamicNTK,
    Llama3Scaling,
    LongRope,
    Rope,
    Yarn,
    longrope_attention_factor,
    ntk_base,
    yarn_attention_factor,
)

SUPPORTED = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
MAX_HEAD_DIM = 1 << 16  # a bound on memory: some kinds of scaling make a number for each dimension
SUPPORTED_IN_GGUF = ("none", "linear", "yarn", "longrope")


def rope_from_hf(
    config: Metadata, head_dim: int, arch: Arch, full_head_dim: int | None = None
) -> tuple[Rope, Rope]:
    """The RoPE of layers with full attention and that of layers with a sliding window, from config.json.

    `full_head_dim` is the length of a head of layers with full attention, if it is another than `head_dim`.

    Published files have `rope_theta` and `rope_scaling` (with `rope_local_base_freq` for sliding
    layers that differ); transformers 5 writes `rope_parameters`, with one entry a layer type where
    these differ.
    """
    base, parameters = config.number("rope_theta", arch.rope_base), config.section("rope_parameters")
    full = _from_entry(config, rope_entry(config), base, full_head_dim or head_dim, arch)
    if arch.local_rope_base is None and not arch.local_rope_unscaled:
        return full, full
    entry = None  # an entry without layer types is for layers with full attention
    if parameters is not None and "sliding_attention" in parameters:
        entry = parameters.section("sliding_attention")
    if arch.local_rope_base is not None:
        base = config.number("rope_local_base_freq", arch.local_rope_base)
    elif entry is None:
        base = full.base
    return full, _from_entry(config, entry, base, head_dim, arch)


def rope_entry(config: Metadata) -> Metadata:
    """What config.json says about the RoPE of layers with full attention, empty if it says nothing.

    People add `rope_scaling` to files of transformers 5 too, beside `rope_parameters`: then both count, as in
    transformers. Raises DamagedFile if they contradict each other.
    """
    entries = [entry for key in ("rope_parameters", "rope_scaling") if (entry := config.section(key))]
    entries = [entry.section("full_attention") or entry for entry in entries]
    values: dict[str, Any] = {}
    for entry in entries:
        added = {key: value for key, value in entry.values.items() if value is not None}
        if "type" in added:
            added.setdefault("rope_type", added["type"])
        if _same(added.get("rope_type"), "su"):  # LongRoPE's first name
            added["rope_type"] = "longrope"
        if _same(values.get("rope_type"), "default") and "rope_type" in added:
            values = {key: value for key, value in values.items() if key not in ("rope_type", "type")}
        for key in values.keys() & added.keys() - {"type"}:
            if not _same(values[key], added[key]):
                raise DamagedFile(
                    f"{config.source}: {key} is {show(values[key])} in rope_parameters, but "
                    f"{show(added[key])} in rope_scaling"
                )
        values |= added
    return Metadata(values, entries[0].source if entries else config.source)


def _same(value: object, other: object) -> bool:
    """Whether two values of config.json mean the same; 4 and 4.0 do."""
    numbers = isinstance(value, int | float) and isinstance(other, int | float)
    return value == other if numbers else repr(value) == repr(other)


def _from_entry(config: Metadata, entry: Metadata | None, base: float, head_dim: int, arch: Arch) -> Rope:
    """The RoPE of one entry of `rope_scaling` or `rope_parameters`, all of whose keys are optional."""
    part = arch.rotary_factor
    if head_dim > MAX_HEAD_DIM:
        raise DamagedFile(f"{config.source}: heads of {head_dim} dimensions; at most {MAX_HEAD_DIM} are read")
    if "rotary_dim" in config:
        part = config.integer("rotary_dim", high=head_dim) / head_dim
    part = config.number("partial_rotary_factor", part, high=1.0)
    entry = entry or Metadata({}, config.source)
    part = entry.number("partial_rotary_factor", part, high=1.0)
    dims = int(head_dim * part)
    interleaved = config.flag("rope_interleave", arch.interleaved_in_hf)
    rope = Rope(entry.number("rope_theta", base), dims, interleaved)
    kind = entry.text("rope_type", entry.text("type", "default"))
    if kind == "proportional":  # the lowest frequencies of the whole head are 0
        still = head_dim // 2 - int(part * head_dim // 2)
        divisors = (1.0,) * (head_dim // 2 - still) + (math.inf,) * still
        return replace(rope, dims=head_dim, divisors=divisors, factor=entry.number("factor", 1.0))
    if kind == "default":
        return rope
    if kind == "linear":
        return replace(rope, factor=entry.number("factor"))
    if kind == "dynamic" and "alpha" in entry:  # HunYuan calls a constant NTK base dynamic
        return replace(rope, base=ntk_base(rope.base, dims, entry.number("alpha")))
    if kind == "dynamic":
        trained = config.integer("max_position_embeddings")
        return replace(rope, scaling=DynamicNTK(entry.number("factor"), trained))
    if kind == "llama3":
        scaling = Llama3Scaling(
            entry.number("factor"),
            entry.number("low_freq_factor"),
            entry.number("high_freq_factor"),
            entry.number("original_max_position_embeddings"),
        )
        return replace(rope, scaling=scaling)
    if kind not in ("yarn", "longrope"):
        raise UnsupportedModel(
            f"RoPE scaling {show(kind)} is not supported; supported are {', '.join(SUPPORTED)}"
        )
    trained = config.integer("max_position_embeddings")
    original = config.integer("original_max_position_embeddings", trained)
    original = entry.integer("original_max_position_embeddings", original)
    factor = entry.number("factor", trained / original)
    if kind == "yarn" and "short_factor" not in entry:
        beta = entry.number("beta_fast", 32.0), entry.number("beta_slow", 1.0)
        scales = entry.number("mscale", 0.0, zero=True), entry.number("mscale_all_dim", 0.0, zero=True)
        return replace(
            rope,
            scaling=Yarn(factor, original, *beta, entry.flag("truncate", arch.yarn_truncates)),
            attention_factor=entry.number("attention_factor", yarn_attention_factor(factor, *scales)),
        )
    short, long = (_factors(entry, key, dims // 2) for key in ("short_factor", "long_factor"))
    return replace(
        rope,
        divisors=short,
        scaling=LongRope(long, original),
        attention_factor=entry.number("attention_factor", longrope_attention_factor(factor, original)),
    )


def _factors(entry: Metadata, key: str, n: int) -> tuple[float, ...]:
    """A list of `n` divisors of the frequencies."""
    values = entry.values.get(key)
    numbers = values if isinstance(values, list) else []
    if len(numbers) != n or not all(type(v) in (int, float) and 0 < v < 1e30 for v in numbers):
        raise entry.fail(key, f"a list of {n} numbers above 0")
    return tuple(float(v) for v in numbers)


def rope_from_gguf(
    metadata: Metadata, tensors: Mapping[str, QTensor], head_dim: int, arch: Arch
) -> tuple[Rope, Rope]:
    """The RoPE of layers with full attention and that of layers with a sliding window, from GGUF metadata.

    The divisors of Llama 3's scaling are the tensor `rope_freqs.weight`, those of LongRoPE
    `rope_factors_short.weight` and `rope_factors_long.weight`.
    """
    dims = metadata.integer("rope.dimension_count", int(head_dim * arch.rotary_factor), high=head_dim)
    # Older files have only the factor, and no rope.scaling.type.
    old = metadata.number("rope.scale_linear", 1.0, zero=True)
    factor = metadata.number("rope.scaling.factor", old, zero=True) or 1.0
    kind = metadata.text("rope.scaling.type", "none" if factor == 1.0 else "linear")
    if kind not in SUPPORTED_IN_GGUF:
        raise UnsupportedModel(
            f"RoPE scaling {show(kind)} is not supported; supported are {', '.join(SUPPORTED_IN_GGUF)}"
        )
    plain = Rope(metadata.number("rope.freq_base", arch.rope_base), dims, arch.interleaved_in_gguf)
    attention_factor = metadata.number("rope.scaling.attn_factor", 1.0)
    full = replace(plain, attention_factor=attention_factor)
    trained = metadata.integer("context_length")
    original = metadata.integer("rope.scaling.original_context_length", trained)
    if "rope_freqs.weight" in tensors:
        full = replace(full, divisors=_divisors(tensors, "rope_freqs.weight", dims // 2))
    if "rope_factors_long.weight" in tensors:
        short = _divisors(tensors, "rope_factors_short.weight", dims // 2)
        long = _divisors(tensors, "rope_factors_long.weight", dims // 2)
        full = replace(full, divisors=short, scaling=LongRope(long, original))
    elif kind == "longrope":
        raise DamagedFile("tensor rope_factors_long.weight is missing")
    elif kind == "linear":
        full = replace(full, factor=factor)
    elif kind == "yarn":
        beta = (
            metadata.number("rope.scaling.yarn_beta_fast", 32.0),
            metadata.number("rope.scaling.yarn_beta_slow", 1.0),
        )
        scale = metadata.number("rope.scaling.yarn_log_multiplier", 0.0, zero=True) / arch.yarn_log_unit
        # With multi-head latent attention the scores are scaled instead, and mscale / mscale_all is 1.
        mscale = yarn_attention_factor(factor, scale if arch.yarn_log_unit != 1.0 else 1.0, scale)
        mscale = metadata.number("rope.scaling.yarn_attn_factor", mscale)
        full = replace(
            full,
            scaling=Yarn(factor, original, *beta, arch.yarn_truncates),
            attention_factor=attention_factor * mscale,
        )
    if arch.local_rope_unscaled:
        return full, plain
    if arch.local_rope_base is None:
        return full, full
    local_dims = metadata.integer("attention.key_length_swa", head_dim)
    dims = dims if local_dims == head_dim else local_dims
    return full, replace(
        plain,
        base=metadata.number("rope.freq_base_swa", arch.local_rope_base),
        dims=metadata.integer("rope.dimension_count_swa", dims, high=local_dims),
    )


def _divisors(tensors: Mapping[str, QTensor], name: str, n: int) -> tuple[float, ...]:
    """The `n` divisors of frequencies in the tensor `name`. Raises DamagedFile."""
    if name not in tensors:
        raise DamagedFile(f"tensor {name} is missing")
    if tensors[name].shape != (n,):
        raise DamagedFile(f"tensor {name} has shape {tensors[name].shape}, but the model needs {(n,)}")
    return tuple(tensors[name].dequantize().tolist())
