"""Recurrent mixers: layers with a state of fixed size instead of a KV cache, and what a file says about them.

There are three kinds. "short_conv" is LFM2's gated short convolution; "gated_delta" the gated delta rule
(Yang, Kautz, Hatamizadeh 2024) of Qwen3-Next and Qwen3.5; "mamba2" is Mamba-2 (Dao, Gu 2024). The last two
have a causal convolution in front of the recurrence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..archs import Arch
from ..ops import StateLayer
from .layers import Layer
from .metadata import Metadata
from .tensor_names import TensorNames

PARTS = 5  # of Mamba's input projection: z, x, B, C, time step


@dataclass(frozen=True)
class RecurrentConfig:
    """The recurrent mixer of a model's layers. Raises DamagedFile for sizes that do not fit together."""

    kind: Literal["short_conv", "gated_delta", "mamba2"]
    taps: int  # kernel size of the convolution
    heads: int
    head_dim: int  # of a value, or of Mamba's x
    groups: int = 1  # of heads that share a key and a query, or B and C
    state_size: int = 0  # length of a key, or of B and C; 0: the mixer is only a convolution
    tiled: bool = False  # heads h, h + groups, h + 2 · groups, … make a group, not consecutive heads
    norm_first: bool = False  # the output is normed and then gated, not gated and then normed
    part_scales: tuple[float, ...] = (1.0,) * PARTS  # of the parts of Mamba's input projection

    @property
    def inner(self) -> int:
        """The width of the output, in front of the output projection."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """The channels of the convolution: q, k and v, or x, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def states(self) -> tuple[StateLayer, ...]:
        """The states of a layer: that of the convolution, then that of the recurrence if there is one."""
        conv = StateLayer((self.taps - 1, self.channels))
        if self.kind == "short_conv":
            return (conv,)
        key_first = self.kind == "gated_delta"
        sizes = (self.state_size, self.head_dim) if key_first else (self.head_dim, self.state_size)
        return conv, StateLayer((self.heads, *sizes))

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise DamagedFile(f"{self.heads} recurrent heads cannot share {self.groups} groups")

    def shapes(self, hidden: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes of a layer's tensors by stem, (outputs, inputs) for a matrix."""
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
            "ssm_norm": (self.head_dim if self.kind == "gated_delta" else self.inner,),
            "ssm_out": (hidden, self.inner),
        }


@dataclass(frozen=True)
class Multipliers:
    """Constant factors in front of and behind the blocks of a layer (muP), as in Falcon-H1."""

    attention_in: float = 1.0
    attention_out: float = 1.0
    key: float = 1.0
    recurrent_in: float = 1.0
    recurrent_out: float = 1.0
    gate: float = 1.0  # of the FFN
    down: float = 1.0  # of the FFN


def mixers_by_tensors(
    layers: tuple[Layer, ...], arch: Arch, tensors: Mapping[str, QTensor], names: TensorNames
) -> tuple[Layer, ...]:
    """`layers` with the blocks whose tensors the file has, for an `arch` with recurrent layers."""
    if not arch.recurrence:
        return layers

    def has(i: int, block: str) -> bool:
        stems = (stem for stem in arch.layer if stem.startswith(block) and not stem.endswith("norm"))
        return any(names(f"blk.{i}.{stem}.weight") in tensors for stem in stems)

    result = []
    for i, layer in enumerate(layers):
        blocks = has(i, "attn_"), has(i, "ssm_"), layer.is_moe or has(i, "ffn_")
        # For a layer without any tensors, binding reports those of attention and FFN as missing.
        attention, recurrence, ffn = blocks if any(blocks) else (True, False, True)
        result.append(replace(layer, has_attention=attention, has_recurrence=recurrence, has_ffn=ffn))
    return tuple(result)


def recurrent_from_gguf(keys: Metadata, arch: Arch, layers: tuple[Layer, ...]) -> RecurrentConfig | None:
    """The mixer of a GGUF file; None for a model without recurrent layers. Raises DamagedFile."""
    if not arch.recurrence or not any(layer.has_recurrence for layer in layers):
        return None
    if arch.recurrence == "short_conv":
        taps, hidden = keys.integer("shortconv.l_cache"), keys.integer("embedding_length")
        return RecurrentConfig("short_conv", taps, heads=1, head_dim=hidden)
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    return RecurrentConfig(
        arch.recurrence,
        taps=keys.integer("ssm.conv_kernel"),
        heads=heads,
        head_dim=_head_dim(keys, inner, heads),
        groups=keys.integer("ssm.group_count", 1),
        state_size=keys.integer("ssm.state_size"),
        tiled=arch.tiled_in_gguf,
        norm_first=arch.recurrence == "gated_delta",
    )


def recurrent_from_hf(keys: Metadata, arch: Arch, layers: tuple[Layer, ...]) -> RecurrentConfig | None:
    """The mixer of a Hugging Face checkpoint; None for a model without recurrent layers.

    Raises DamagedFile, or UnsupportedModel for another activation than SiLU.
    """
    if not arch.recurrence or not any(layer.has_recurrence for layer in layers):
        return None
    if arch.recurrence == "short_conv":
        taps, hidden = keys.integer("conv_L_cache"), keys.integer("hidden_size")
        return RecurrentConfig("short_conv", taps, heads=1, head_dim=hidden)
    if arch.recurrence == "gated_delta":
        return RecurrentConfig(
            "gated_delta",
            taps=keys.integer("linear_conv_kernel_dim"),
            heads=keys.integer("linear_num_value_heads"),
            head_dim=keys.integer("linear_value_head_dim"),
            groups=keys.integer("linear_num_key_heads"),
            state_size=keys.integer("linear_key_head_dim"),
            norm_first=True,
        )
    if keys.text("mamba_hidden_act", "silu") != "silu":
        raise UnsupportedModel("mamba_hidden_act other than silu is not supported")
    return RecurrentConfig(
        "mamba2",
        taps=keys.integer("mamba_d_conv"),
        heads=keys.integer("mamba_n_heads"),
        head_dim=_mamba_head_dim(keys),
        groups=keys.integer("mamba_n_groups"),
        state_size=keys.integer("mamba_d_state"),
        norm_first=keys.flag("mamba_norm_before_gate", False),
        part_scales=keys.numbers("ssm_multipliers", PARTS) or (1.0,) * PARTS,
    )


def _mamba_head_dim(keys: Metadata) -> int:
    d_head = keys.values.get("mamba_d_head")
    if not (isinstance(d_head, str) and d_head == "auto"):
        return keys.integer("mamba_d_head")
    inner = keys.integer("mamba_expand") * keys.integer("hidden_size")
    return _head_dim(keys, inner, keys.integer("mamba_n_heads"))


def _head_dim(keys: Metadata, inner: int, heads: int) -> int:
    if inner % heads:
        raise DamagedFile(f"{keys.source}: a width of {inner} does not divide into {heads} recurrent heads")
    return inner // heads


def multipliers_from_hf(keys: Metadata) -> Multipliers:
    """Falcon-H1's multipliers in config.json. Raises DamagedFile."""
    gate, down = keys.numbers("mlp_multipliers", 2) or (1.0, 1.0)
    return Multipliers(
        attention_in=keys.number("attention_in_multiplier", 1.0),
        attention_out=keys.number("attention_out_multiplier", 1.0),
        key=keys.number("key_multiplier", 1.0),
        recurrent_in=keys.number("ssm_in_multiplier", 1.0),
        recurrent_out=keys.number("ssm_out_multiplier", 1.0),
        gate=gate,
        down=down,
    )
