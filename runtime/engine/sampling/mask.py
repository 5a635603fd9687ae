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
    flags = np.zeros(n_tokens, bool)
    n = min(n_tokens, 8 * len(bits))
    flags[:n] = np.unpackbits(bits, count=n, bitorder="little")
    if 2 * np.count_nonzero(flags) <= n_tokens:
        return Mask(np.flatnonzero(flags), None)
    return Mask(None, np.flatnonzero(~flags))
