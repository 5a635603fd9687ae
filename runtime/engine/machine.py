"""Machine: the interface of everything that runs the steps of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ..ops import Buffer, Program
from .cache import Batch, PageTable
from .observing import Observed, Tap
from .sampling.top_k import TopK
from .state import States


class Machine(Protocol):
    """A machine runs the steps of a program; see ReferenceMachine and CpuMachine."""

    @property
    def program(self) -> Program: ...

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

    @property
    def kv_type(self) -> str: ...  # of the numbers in the KV cache: "f16"

    @property
    def page_bytes(self) -> tuple[int, ...]: ...  # of a page's keys and values, for each layer of the cache

    def observe(self, batch: Batch, table: PageTable, taps: Sequence[Tap]) -> Observed:
        """Run the rows of `batch` like `step`, in pieces, and copy what the taps ask for in between.

        The kernels are those of a prefill step, whatever the number of rows.
        """
        ...

    def finish(self, at: int, values: Mapping[Buffer, np.ndarray]) -> np.ndarray:
        """Float32 logits [rows, vocab] of rows whose buffers hold `values`, float32 [rows, width] each, in
        front of op number `at`, behind which no op reads other rows, the cache or states.

        They are valid until the next step; there may be up to `max_logits` rows.
        """
        ...
