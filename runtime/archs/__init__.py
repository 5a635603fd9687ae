"""The architectures: one row each.

A row is data; `config/` reads it, and no other code knows the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import encoders, gated_delta, gemma, gemma_n, layer_norm, llama, mamba, mla, moe, post_norm, short_conv
from .arch import Arch

FAMILIES = (
    llama,
    gemma,
    gemma_n,
    post_norm,
    layer_norm,
    moe,
    mla,
    short_conv,
    gated_delta,
    mamba,
    encoders,
)
ARCHS: Mapping[str, Arch] = MappingProxyType({row.name: row for family in FAMILIES for row in family.ROWS})

__all__ = ["ARCHS", "Arch"]
