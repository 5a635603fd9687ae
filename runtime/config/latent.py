"""Latent attention: keys and values of all heads are made of one short vector, which is all that is cached.

DeepSeek-AI 2024, "DeepSeek-V2" (multi-head latent attention). The matrix that makes keys of the latent is
taken into the queries, and the one that makes values into the output: attention itself then is that of one
key-value head, whose keys are latent and shared rotated part, and whose values are the latent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile
from ..archs import Arch
from ..ops import Attend, Buffer, HeadMatMul
from ..weights.tensors import rows_of, turned
from .fields import Fields
from .names import Names
from .rope import yarn_growth

NORM_EPS = 1e-6  # of the latents' norms, whatever the model's others have


@dataclass(frozen=True)
class Latent:
    """The sizes of latent attention. A head's query and key are a `plain` part and one that is rotated."""

    rank: int  # of the latent that keys and values are made of
    query_rank: int  # of the one that queries are made of; 0: they are projected at once
    plain: int
    rotated: int  # of keys it is the same for all heads
    value: int

    @property
    def head_dim(self) -> int:
        return self.plain + self.rotated

    @property
    def cached(self) -> int:
        """Numbers that a layer keeps of each token."""
        return self.rank + self.rotated


def latent_from_hf(keys: Fields, arch: Arch) -> Latent | None:
    """None for a model with keys and values for each head. Raises DamagedFile."""
    if not is_latent(arch):
        return None
    return Latent(
        rank=keys.integer("kv_lora_rank"),
        query_rank=keys.integer("q_lora_rank", 0, low=0),
        plain=keys.integer("qk_nope_head_dim"),
        rotated=keys.integer("qk_rope_head_dim"),
        value=keys.integer("v_head_dim"),
    )


def latent_from_gguf(keys: Fields, arch: Arch) -> Latent | None:
    """Like `latent_from_hf`. Files without `*_length_mla` are from before those were the latent's lengths."""
    if not is_latent(arch):
        return None
    length = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
    rotated = keys.integer("rope.dimension_count")
    if rotated >= length:
        raise keys.fail("rope.dimension_count", f"a number below {length}")
    return Latent(
        rank=keys.integer("attention.kv_lora_rank"),
        query_rank=keys.integer("attention.q_lora_rank", 0, low=0),
        plain=length - rotated,
        rotated=rotated,
        value=keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
    )


def is_latent(arch: Arch) -> bool:
    return "attn_kv_a_mqa" in arch.layer


def score_growth_from_hf(entry: Fields) -> float:
    """What YaRN multiplies scores by, for queries and keys each once, instead of cos and sin.

    `entry` is that of the RoPE scaling. Raises DamagedFile.
    """
    scale = entry.number("mscale_all_dim", 0.0, zero=True)
    kind = entry.text("rope_type", entry.text("type", "default"))
    return yarn_growth(entry.number("factor"), scale) ** 2 if scale and kind != "default" else 1.0


def score_growth_from_gguf(keys: Fields, arch: Arch) -> float:
    """Like `score_growth_from_hf`."""
    scale = keys.number("rope.scaling.yarn_log_multiplier", 0.0, zero=True) / arch.yarn_log_unit
    if not scale or keys.text("rope.scaling.type", "none") != "yarn":
        return 1.0
    return yarn_growth(keys.number("rope.scaling.factor"), scale) ** 2


class HeadTensors:
    """The matrices of one layer's heads: `keys` (rank, plain) take queries to the latent, and `values`
    (value, rank) take what attention gives from it.

    Files have them apart, with all heads in one tensor of two or three dimensions, or as the rows of one
    matrix, (plain + value, rank) for each head; then those of keys are turned, and kept as floats. `used` are
    the names of the tensors in the file. Raises DamagedFile.
    """

    def __init__(
        self, layer: int, latent: Latent, heads: int, names: Names, held: Mapping[str, QTensor]
    ) -> None:
        key_name, value_name = (names(f"blk.{layer}.{stem}.weight") for stem in ("attn_k_b", "attn_v_b"))
        self.used = {key_name, value_name}
        if key_name != value_name:
            self.keys = _of_heads(held, key_name, (heads, latent.rank, latent.plain))
            self.values = _of_heads(held, value_name, (heads, latent.value, latent.rank))
            return
        rows = latent.plain + latent.value
        both = _of_heads(held, key_name, (heads * rows, latent.rank), heads)
        self.keys = tuple(turned(rows_of(tensor, 0, latent.plain)) for tensor in both)
        self.values = tuple(rows_of(tensor, latent.plain, rows) for tensor in both)


def _of_heads(
    held: Mapping[str, QTensor], name: str, shape: tuple[int, ...], heads: int | None = None
) -> tuple[QTensor, ...]:
    """The matrices that the tensor `name` is made of: along its first axis, or of `heads` equal parts."""
    if name not in held:
        raise DamagedFile(f"tensor {name} is missing")
    tensor = held[name]
    if tensor.shape not in (shape, (int(np.prod(shape[:-1])), shape[-1])):
        raise DamagedFile(f"tensor {name} has shape {tensor.shape}, but the model needs {shape}")
    heads = heads or shape[0]
    n_rows = int(np.prod(shape[:-1])) // heads
    parts = [tensor.data[h * n_rows : (h + 1) * n_rows] for h in range(heads)]
    return tuple(replace(tensor, shape=(n_rows, shape[-1]), data=part) for part in parts)


def attend_latent(
    latent: Latent, heads: HeadTensors, q: Buffer, k: Buffer, out: Buffer, layer: int, scale: float
) -> list[HeadMatMul | Attend]:
    """Attention of rotated queries [rows, heads · head_dim] over latents and rotated keys [rows, cached].

    `out` is [rows, heads · value]; `layer` is that of the cache.
    """
    n = len(heads.keys)
    absorbed = Buffer("latent q", n * latent.cached)
    attended = Buffer("latent a", n * latent.rank)
    attend = Attend(
        *(absorbed, k, k, attended),  # attended [rows, heads * rank]
        layer=layer,
        heads=n,
        kv_heads=1,
        head_dim=latent.cached,
        scale=scale,
    )
    return [
        HeadMatMul(q, absorbed, heads.keys),  # absorbed [rows, heads * (rank + rotated)]
        attend,
        HeadMatMul(attended, out, heads.values),  # out [rows, heads * value]
    ]
