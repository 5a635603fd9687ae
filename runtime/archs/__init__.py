"""The architectures: one row each. A row is data; what it says is done elsewhere, for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import gemma, gemma_n, hybrid, layer_norm, llama, mla, moe, post_norm
from .arch import Arch

FAMILIES = (llama, gemma, gemma_n, post_norm, layer_norm, moe, mla, hybrid)
ARCHS: Mapping[str, Arch] = MappingProxyType({row.name: row for family in FAMILIES for row in family.ROWS})

__all__ = ["ARCHS", "Arch"]
