"""What a step is told: tokens, positions, the block table, in one piece of memory on either side."""

from __future__ import annotations

import numpy as np

from ..engine.cache import Batch, PageTable
from .compile.kernel import Kernels
from .driver.allocator import Memory
from .driver.device import Device
from .driver.launch import Launch
from .driver.mapped import copy_words
from .lowering.base import Inputs, Layout


class StepInputs:
    """`at`: where the card finds them.

    With `mapped` the card fetches them with a kernel, else they are copied.
    """

    def __init__(
        self, layout: Layout, device: Device, memory: Memory, kernels: Kernels, mapped: bool
    ) -> None:
        sizes = {
            "tokens": layout.max_rows,
            "sequences": layout.max_rows,
            "positions": layout.max_rows,
            "logits_indices": layout.max_logits,
            "table": layout.max_sequences * layout.n_pages,
        }
        self._device, self._kernels, self._mapped = device, kernels, mapped
        self._pinned = device.pinned(4 * sum(sizes.values()))
        self._address = memory.zeros(self._pinned.nbytes)
        words, addresses, at = self._pinned.view(np.int32), {}, 0
        words[:] = 0
        fields: dict[str, np.ndarray] = {}
        for name, size in sizes.items():
            addresses[name], fields[name] = self._address + 4 * at, words[at : at + size]
            at += size
        self._fields = fields
        self._table = fields["table"].reshape(layout.max_sequences, layout.n_pages)
        self.at = Inputs(**addresses, table_stride=4 * layout.n_pages)

    def write(self, batch: Batch, table: PageTable) -> None:
        """Those of the next step. `table` has no more sequences and pages than there is room for."""
        n, fields = len(batch.tokens), self._fields
        fields["tokens"][:n] = batch.tokens
        fields["sequences"][:n] = batch.sequences
        fields["positions"][:n] = batch.positions
        fields["logits_indices"][: len(batch.logits_indices)] = batch.logits_indices
        sequences, pages = table.blocks.shape
        self._table[:sequences, :pages] = table.blocks

    def send(self) -> None:
        """Put what brings them to the card into the stream."""
        if self._mapped:
            self._device.launch(self.fetch())
        else:
            self._device.upload(self._address, self._pinned)

    def fetch(self) -> Launch:
        """The kernel that does it; the launch behind it must not begin before it is done."""
        return copy_words(self._kernels, self._pinned.ctypes.data, self._address, self._pinned.nbytes)
