"""Multi-head latent attention (MLA): its sizes, and what YaRN does to its scores.

Keys and values of all heads are up-projections of one short latent vector, which is all that is cached.
DeepSeek-AI 2024, "DeepSeek-V2".
"""

from __future__ import annotations

from dataclasses import dataclass

from ..archs import Arch
from .metadata import Metadata
from .rope import yarn_mscale


@dataclass(frozen=True)
class MLAConfig:
    """The sizes of multi-head latent attention.

    A head's query and key are `nope_dim` dimensions without position and `rope_dim` with rotary embeddings.
    """

    kv_rank: int  # of the latent of keys and values
    q_rank: int  # of the latent of queries; 0: one projection makes them from the layer's input
    nope_dim: int
    rope_dim: int  # all heads share this part of the key
    value_dim: int

    @property
    def head_dim(self) -> int:
        """The length of a query and a key."""
        return self.nope_dim + self.rope_dim

    @property
    def cache_width(self) -> int:
        """The number of values that a layer caches for each token."""
        return self.kv_rank + self.rope_dim


def mla_from_hf(keys: Metadata, arch: Arch) -> MLAConfig | None:
    """The sizes in config.json; None for a model with keys and values of each head. Raises DamagedFile."""
    if not has_mla(arch):
        return None
    return MLAConfig(
        kv_rank=keys.integer("kv_lora_rank"),
        q_rank=keys.integer("q_lora_rank", 0, low=0),
        nope_dim=keys.integer("qk_nope_head_dim"),
        rope_dim=keys.integer("qk_rope_head_dim"),
        value_dim=keys.integer("v_head_dim"),
    )


def mla_from_gguf(keys: Metadata, arch: Arch) -> MLAConfig | None:
    """The sizes in GGUF metadata; None for a model with keys and values of each head. Raises DamagedFile.

    Older files have no keys `*_length_mla`; their `key_length` and `value_length` are the lengths of a head.
    """
    if not has_mla(arch):
        return None
    length = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
    rope_dim = keys.integer("rope.dimension_count")
    if rope_dim >= length:
        raise keys.fail("rope.dimension_count", f"a number below {length}")
    return MLAConfig(
        kv_rank=keys.integer("attention.kv_lora_rank"),
        q_rank=keys.integer("attention.q_lora_rank", 0, low=0),
        nope_dim=length - rope_dim,
        rope_dim=rope_dim,
        value_dim=keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
    )


def has_mla(arch: Arch) -> bool:
    """Whether the layers of `arch` project their input to a latent of keys and values."""
    return "attn_kv_a_mqa" in arch.layer


def yarn_score_scale_from_hf(entry: Metadata) -> float:
    """The factor of the scores with YaRN: its mscale for queries and for keys, instead of one of cos and sin.

    `entry` is the RoPE scaling of config.json. Raises DamagedFile.
    """
    scale = entry.number("mscale_all_dim", 0.0, zero=True)
    kind = entry.text("rope_type", entry.text("type", "default"))
    return yarn_mscale(entry.number("factor"), scale) ** 2 if scale and kind != "default" else 1.0


def yarn_score_scale_from_gguf(keys: Metadata, arch: Arch) -> float:
    """Like `yarn_score_scale_from_hf`, from GGUF metadata."""
    scale = keys.number("rope.scaling.yarn_log_multiplier", 0.0, zero=True) / arch.yarn_log_unit
    if not scale or keys.text("rope.scaling.type", "none") != "yarn":
        return 1.0
    return yarn_mscale(keys.number("rope.scaling.factor"), scale) ** 2
