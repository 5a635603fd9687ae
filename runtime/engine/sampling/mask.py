"""Mask: the tokens that may be drawn, in the form that costs the sampler least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Mask(NamedTuple):
    """The ids that may be drawn, or where these are most of the vocabulary, the others: int [n], ascending.

    Few logits are gathered faster than all are changed, and few are changed faster than most are gathered.
    """

    allowed: np.ndarray | None
    banned: np.ndarray | None


def mask_of(bits: np.ndarray | None, n_tokens: int) -> Mask | None:
    """The mask of the first `n_tokens` ids for packed bits, uint8, the lowest of a byte first; ids beyond
    these are banned. None: all ids may be drawn."""
    if bits is None:
        return None
    n_bytes = -(-n_tokens // 8)
    used = bits[:n_bytes]
    if len(bits) < n_bytes or n_tokens % 8:
        used = np.zeros(n_bytes, np.uint8)
        used[: len(bits)] = bits[:n_bytes]
        used[-1] &= (1 << (n_tokens - 8 * (n_bytes - 1))) - 1
    words = used if n_bytes % 8 else np.ascontiguousarray(used).view(np.uint64)
    if 2 * int(np.bitwise_count(words).sum(dtype=np.int64)) <= n_tokens:
        return Mask(_set_bits(used), None)
    banned = _set_bits(~used)
    return Mask(None, banned[: banned.searchsorted(n_tokens)])


def _set_bits(bits: np.ndarray) -> np.ndarray:
    """The places of the set bits of uint8 [n]: int [m]. Only bytes that have some are unpacked."""
    places = np.flatnonzero(bits != 0)  # of booleans: ten times as fast
    flags = np.unpackbits(bits[places], bitorder="little").view(bool)
    return (8 * places[:, None] + np.arange(8)).ravel()[flags]
