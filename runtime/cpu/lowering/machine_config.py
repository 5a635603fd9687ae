"""Sizes and types that a CPU machine is made with; the lowering of both step kinds reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import ops


@dataclass(frozen=True)
class MachineConfig:
    """The machine's capacity. `cache_type` is one of `sizes.CACHE_TYPES`."""

    n_pages: int  # pages of the KV cache
    page_size: int  # tokens a page
    n_threads: int
    max_rows: int  # rows of a step at most
    max_logits: int  # rows of a step whose logits are computed, at most
    cache_type: str  # element type of the KV cache
    states: tuple[np.ndarray, ...] = ()  # states of recurrent ops, float32 [sequences, …] each

    def rows(self, buffer: ops.Buffer) -> int:
        """The most rows that a buffer can have in a step."""
        return self.max_logits if buffer.logits_rows else self.max_rows
