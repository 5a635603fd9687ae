"""Machine: the interface of everything that runs the steps of a program."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .cache import Batch, PageTable
from .sampling.top_k import TopK
from .state import States


class Machine(Protocol):
    """A machine runs the steps of a program; see ReferenceMachine and CpuMachine."""

    @property
    def max_rows(self) -> int: ...  # rows a step at most

    @property
    def max_logits(self) -> int: ...  # rows of a step that may have logits, at most

    @property
    def states(self) -> States: ...  # of recurrent ops; without layers if the model has none

    @property
    def page_layout(
        self,
    ) -> str: ...  # how a page's bytes are to be read; pages of equal layouts are exchangeable

    def read_page(self, page: int) -> np.ndarray:
        """A copy of the keys and values of a page of the KV cache, in all layers: uint8 [bytes of a page]."""
        ...

    def write_page(self, page: int, content: np.ndarray) -> None:
        """Set the keys and values of a page to what `read_page` gave, on a machine of the same layout."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page of the KV cache, in all layers."""
        ...

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """Run the rows of `batch`; float32 logits [len(batch.logits_indices), vocab].

        They are valid until the next step.
        """
        ...

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """Run the rows of `batch`; the top k of the first `n_tokens` ids for each row in `logits_indices`.

        `k` is at most MAX_TOP_K; of fewer ids all are returned. Valid until the next step.
        """
        ...
