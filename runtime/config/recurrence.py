"""Layers that keep a state instead of the past's keys and values: what a file says about them.

Three kinds. "conv" is LFM2's gated short convolution; "delta" the gated delta rule (Yang, Kautz,
Hatamizadeh 2024) of Qwen3-Next and Qwen3.5; "scan" Mamba-2 (Dao, Gu 2024). The last two have a
convolution in front of the recurrence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...quant.block import QTensor
from ...quant.errors import DamagedFile
from ..archs import Arch
from ..ops.recurrent import StateLayer
from .fields import Fields, UnsupportedModel
from .layers import Layer
from .names import Names

PARTS = 5  # of a Mamba projection: z, x, B, C, time step


@dataclass(frozen=True)
class Recurrence:
    """The recurrent part of a model's layers. Raises DamagedFile for sizes that do not fit together."""

    kind: Literal["conv", "delta", "scan"]
    taps: int  # of the convolution
    heads: int
    head_dim: int  # of a value, or of Mamba's x
    groups: int = 1  # of heads, that share keys and queries, or B and C
    state_size: int = 0  # of a key, or of B and C; 0: there is only the convolution
    tiled: bool = False  # heads h, h + groups, h + 2 · groups, … share, not those side by side
    norm_first: bool = False  # what comes out is normed, then gated; else the other way round
    part_scales: tuple[float, ...] = (1.0,) * PARTS  # of what Mamba's projection gives, by part

    @property
    def inner(self) -> int:
        """The width of what comes out."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """What the convolution goes over: q, k and v, or x, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def states(self) -> tuple[StateLayer, ...]:
        """What a layer keeps of a sequence."""
        conv = StateLayer((self.taps - 1, self.channels))
        if self.kind == "conv":
            return (conv,)
        sizes = (self.state_size, self.head_dim) if self.kind == "delta" else (self.head_dim, self.state_size)
        return conv, StateLayer((self.heads, *sizes))

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise DamagedFile(f"{self.heads} recurrent heads cannot share {self.groups} groups")

    def shapes(self, hidden: int) -> Mapping[str, tuple[int, ...]]:
        """The tensors of a layer."""
        return {
            "ssm_mix": (self.channels, hidden),
            "ssm_z": (self.inner, hidden),
            "ssm_x": (self.inner, hidden),
            "ssm_beta": (self.heads, hidden),
            "ssm_step": (self.heads, hidden),
            "ssm_conv1d": (self.channels, self.taps),
            "ssm_dt": (self.heads,),
            "ssm_a": (self.heads,),
            "ssm_d": (self.heads,),
            "ssm_norm": (self.head_dim if self.kind == "delta" else self.inner,),
            "ssm_out": (hidden, self.inner),
        }


@dataclass(frozen=True)
class Scales:
    """What some models multiply with on the way (muP): in front of and behind the parts of a layer."""

    attention_in: float = 1.0
    attention_out: float = 1.0
    key: float = 1.0
    recurrent_in: float = 1.0
    recurrent_out: float = 1.0
    gate: float = 1.0  # of the FFN
    down: float = 1.0


def by_tensors(
    layers: tuple[Layer, ...], arch: Arch, held: Mapping[str, QTensor], names: Names
) -> tuple[Layer, ...]:
    """`layers` with the parts that the file has tensors for, if `arch` has layers without some of them."""
    if not arch.recurrence:
        return layers

    def has(i: int, part: str) -> bool:
        stems = (stem for stem in arch.layer if stem.startswith(part) and not stem.endswith("norm"))
        return any(names(f"blk.{i}.{stem}.weight") in held for stem in stems)

    found = []
    for i, layer in enumerate(layers):
        parts = has(i, "attn_"), has(i, "ssm_"), layer.experts or has(i, "ffn_")
        attends, recurs, feeds = parts if any(parts) else (True, False, True)  # whose tensors will be missed
        found.append(replace(layer, attends=attends, recurs=recurs, feeds=feeds))
    return tuple(found)


def recurrence_from_gguf(keys: Fields, arch: Arch, layers: tuple[Layer, ...]) -> Recurrence | None:
    """None for a model without such layers. Raises DamagedFile."""
    if not arch.recurrence or not any(layer.recurs for layer in layers):
        return None
    if arch.recurrence == "conv":
        return Recurrence("conv", keys.integer("shortconv.l_cache"), 1, keys.integer("embedding_length"))
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if inner % heads:
        raise DamagedFile(f"{keys.source}: a width of {inner} does not divide into {heads} recurrent heads")
    return Recurrence(
        arch.recurrence,
        taps=keys.integer("ssm.conv_kernel"),
        heads=heads,
        head_dim=inner // heads,
        groups=keys.integer("ssm.group_count", 1),
        state_size=keys.integer("ssm.state_size"),
        tiled=arch.tiled_in_gguf,
        norm_first=arch.recurrence == "delta",
    )


def recurrence_from_hf(keys: Fields, arch: Arch, layers: tuple[Layer, ...]) -> Recurrence | None:
    """None for a model without such layers. Raises DamagedFile."""
    if not arch.recurrence or not any(layer.recurs for layer in layers):
        return None
    if arch.recurrence == "conv":
        return Recurrence("conv", keys.integer("conv_L_cache"), 1, keys.integer("hidden_size"))
    if arch.recurrence == "delta":
        return Recurrence(
            "delta",
            taps=keys.integer("linear_conv_kernel_dim"),
            heads=keys.integer("linear_num_value_heads"),
            head_dim=keys.integer("linear_value_head_dim"),
            groups=keys.integer("linear_num_key_heads"),
            state_size=keys.integer("linear_key_head_dim"),
            norm_first=True,
        )
    if keys.text("mamba_hidden_act", "silu") != "silu":
        raise UnsupportedModel("mamba_hidden_act other than silu is not supported")
    return Recurrence(
        "scan",
        taps=keys.integer("mamba_d_conv"),
        heads=keys.integer("mamba_n_heads"),
        head_dim=_mamba_head_dim(keys),
        groups=keys.integer("mamba_n_groups"),
        state_size=keys.integer("mamba_d_state"),
        norm_first=keys.flag("mamba_norm_before_gate", False),
        part_scales=keys.numbers("ssm_multipliers", PARTS) or (1.0,) * PARTS,
    )


def _mamba_head_dim(keys: Fields) -> int:
    given = keys.values.get("mamba_d_head")
    if not (isinstance(given, str) and given == "auto"):
        return keys.integer("mamba_d_head")
    inner, heads = keys.integer("mamba_expand") * keys.integer("hidden_size"), keys.integer("mamba_n_heads")
    if inner % heads:
        raise DamagedFile(f"{keys.source}: a width of {inner} does not divide into {heads} recurrent heads")
    return inner // heads


def scales_from_hf(keys: Fields) -> Scales:
    """Falcon-H1's multipliers. Raises DamagedFile."""
    gate, down = keys.numbers("mlp_multipliers", 2) or (1.0, 1.0)
    return Scales(
        attention_in=keys.number("attention_in_multiplier", 1.0),
        attention_out=keys.number("attention_out_multiplier", 1.0),
        key=keys.number("key_multiplier", 1.0),
        recurrent_in=keys.number("ssm_in_multiplier", 1.0),
        recurrent_out=keys.number("ssm_out_multiplier", 1.0),
        gate=gate,
        down=down,
    )
