"""The pages of a pool of keys or values as bytes, for the host: to copy, save and restore them."""

from __future__ import annotations

import numpy as np

from .abi.sizes import PAGE_GROUP, pool_pages


class PagePool:
    """The pages of one layer's keys, or values, in its `memory`, which has room for `n_pages` pages.

    `pool[page]` is a view, uint8 [kv heads, bytes of a piece].
    """

    def __init__(self, memory: np.ndarray, n_pages: int, kv_heads: int) -> None:
        groups = pool_pages(n_pages) // PAGE_GROUP
        self._pieces = memory.reshape(-1).view(np.uint8).reshape(groups, kv_heads, PAGE_GROUP, -1)
        self.page_bytes = kv_heads * self._pieces.shape[3]

    def __getitem__(self, page: int) -> np.ndarray:
        return self._pieces[page // PAGE_GROUP, :, page % PAGE_GROUP]
