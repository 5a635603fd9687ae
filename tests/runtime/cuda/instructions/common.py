"""What the kernels of several files here use."""

from __future__ import annotations

import numpy as np

from kukri.runtime.cuda.compile.stage import device
from kukri.runtime.cuda.ptx import (
    store_int,
)


@device
def store_words(to, a, b, c, d):
    """Store four words."""
    store_int(to, a)
    store_int(to + 4, b)
    store_int(to + 8, c)
    store_int(to + 12, d)


def halves(words: np.ndarray) -> np.ndarray:
    """Two halves of each word, [..., 2]."""
    return np.ascontiguousarray(words)[..., None].view(np.float16)
