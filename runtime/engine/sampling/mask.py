"""Mask: the tokens that may be drawn, in the form that costs the sampler least."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from .top_k import GROUPS, TopK, largest_if_finite

SPARE = 24  # logits that are looked at beyond those that are needed: a mask may ban some
FEW = 4096  # allowed ids at most, whose logits are gathered faster than anything else is done about a mask


class Mask:
    """The ids that may be drawn, of the first `n_tokens` ones: `bits`, uint8 [at least n_tokens / 8] without
    others.

    Most masks are of two kinds: few ids are allowed between the values of a form, and most of the vocabulary
    within a string. The likeliest ids tell then what is drawn, so that nothing is done about all the others.
    """

    def __init__(self, bits: np.ndarray, n_tokens: int) -> None:
        self._bits = bits
        self.n_tokens = n_tokens
        words = bits if len(bits) % 8 else np.ascontiguousarray(bits).view(np.uint64)
        self.n_allowed = int(np.bitwise_count(words).sum(dtype=np.int64))

    @property
    def few(self) -> bool:
        """Whether the ids that may be drawn are few."""
        return self.n_allowed <= min(FEW, self.n_tokens // 2)

    def allows(self, id_: int) -> bool:
        """Whether an id may be drawn."""
        return bool(self._bits[id_ >> 3] >> (id_ & 7) & 1)

    def among(self, ids: np.ndarray) -> np.ndarray:
        """Which of `ids` may be drawn: bool [n]."""
        return (self._bits[ids >> 3] >> (ids & 7).astype(np.uint8) & 1).astype(bool)

    @cached_property
    def allowed(self) -> np.ndarray | None:
        """The ids that may be drawn, int [n], ascending; None if these are most of the vocabulary: few logits
        are gathered faster than all are changed, and few are changed faster than most are gathered."""
        return _set_bits(self._bits) if 2 * self.n_allowed <= self.n_tokens else None

    @cached_property
    def banned(self) -> np.ndarray:
        """The ids that may not be drawn, int [n], ascending."""
        banned = _set_bits(~self._bits)
        return banned[: banned.searchsorted(self.n_tokens)]


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
    mask = Mask(used, n_tokens)
    if mask.few:
        _ = mask.allowed  # which is found here: while the machine runs
    return mask


def best_allowed(logits: np.ndarray, mask: Mask) -> int | None:
    """The id with the largest logit that a mask allows, the lowest of equals; None if it takes longer to
    find, or is not finite."""
    if mask.few and (ids := mask.allowed) is not None and len(ids):
        best = int(ids[logits[ids].argmax()])
    elif not mask.allows(best := int(logits.argmax())):
        return None
    return best if math.isfinite(logits[best]) else None


def top_k_allowed(logits: np.ndarray, mask: Mask, k: int) -> TopK | None:
    """The `k` largest of the logits that a mask allows, or all of them if they are fewer; None if it takes
    longer to find them than to strike out the others, or if they are not finite."""
    if mask.n_allowed < 2:
        return None
    if mask.few and (ids := mask.allowed) is not None:
        values = logits[ids]
        order = np.argsort(-values, kind="stable")[:k]
        return TopK(ids[order], values[order]) if np.isfinite(values.max()) else None
    for n in (k + SPARE, GROUPS // 4):
        if n < k or (ids := largest_if_finite(logits, n)) is None:
            return None
        ids = ids[mask.among(ids)][:k]
        if len(ids) == k:
            return TopK(ids, logits[ids])
    return None


def _set_bits(bits: np.ndarray) -> np.ndarray:
    """The places of the set bits of uint8 [n]: int [m]. Only bytes that have some are unpacked."""
    places = np.flatnonzero(bits != 0)  # of booleans: ten times as fast
    flags = np.unpackbits(bits[places], bitorder="little").view(bool)
    return (8 * places[:, None] + np.arange(8)).ravel()[flags]
