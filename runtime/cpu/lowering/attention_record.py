"""The KV cache pools of a layer, and the ATTENTION fields that prefill and decode share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....quant.errors import UnsupportedModel
from ... import ops
from ..abi.sizes import pool_bytes, pool_pages, rotated, rotation_block
from ..arena import Arena, Region
from .base import MachineConfig


def kv_pools(arena: Arena, op: ops.Attend, config: MachineConfig) -> tuple[Region, Region]:
    """The pools of keys and of values of the layer of an attention op."""
    key_bytes, value_bytes = pool_bytes(config.cache_type, op.head_dim, config.page_size)
    pages = pool_pages(config.n_pages) * op.kv_heads
    keys = arena.rows(f"keys {op.layer}", 1, pages * key_bytes)
    return keys, arena.rows(f"values {op.layer}", 1, pages * value_bytes)


def sequence_ends(arena: Arena, max_rows: int) -> Region:
    """int32 [max_rows]: the length of each row's sequence, which the machine writes before a step."""
    return arena.rows("sequence ends", 1, 4 * max_rows)


def attention_fields(
    arena: Arena, config: MachineConfig, op: ops.Attend, keys: Region, values: Region, **matrices: Region
) -> dict[str, Any]:
    """The ATTENTION fields of an op, its pools and its `matrices` (q, k, v, out).

    Raises UnsupportedModel if values have more dimensions than keys.
    """
    if op.value_dim > op.head_dim:
        raise UnsupportedModel(f"values of {op.value_dim} dimensions and keys of only {op.head_dim}")
    block = rotation_block(op.head_dim, op.value_dim)
    rotates_keys, rotates_values = rotated(config.cache_type)
    fields: dict[str, Any] = {
        "keys": keys.address,
        "values": values.address,
        "heads": op.heads,
        "kv_heads": op.kv_heads,
        "head_dim": op.head_dim,
        "value_step": op.head_dim if op.v is op.k else op.value_dim,
        "value_dim": op.value_dim,
        "key_rotation": block if rotates_keys else 0,
        "value_rotation": block if rotates_values else 0,
        "append": op.append,
        "window": op.window,
        "scale": op.scale,
        "softcap": op.softcap,
    }
    if op.layer in config.key_offsets:
        fields["key_offsets"] = arena.vector(config.key_offsets[op.layer].reshape(-1))
    if op.layer in config.key_balance:
        factors = config.key_balance[op.layer].reshape(-1)
        fields["key_factors"], fields["query_factors"] = arena.vector(factors), arena.vector(1 / factors)
    if op.sinks is not None:  # the kernels' scores are powers of two
        fields["sinks"] = arena.vector(op.sinks * np.float32(np.log2(np.e)))
    for name, region in matrices.items():
        fields |= {name: region.address, f"{name}_stride": region.stride}
    return fields
