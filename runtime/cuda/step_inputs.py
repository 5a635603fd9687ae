"""The inputs of a step (tokens, sequences, positions, block table, rows with logits) and their way to the
GPU.
"""

from __future__ import annotations

import numpy as np

from ..engine.cache import Batch, PageTable
from .compile.kernel import Kernels
from .copies import copy_words
from .driver.allocator import Memory
from .driver.device import Device
from .driver.launch import Launch
from .lowering.base import Capacity, InputAddresses
from .lowering.program import Lowering


class StepInputs:
    """Step inputs in one block of pinned memory, and their copy in GPU memory at `addresses`.

    The GPU fetches the block with a kernel, which starts sooner than a copy by the driver.
    """

    def __init__(self, capacity: Capacity, device: Device, memory: Memory, kernels: Kernels) -> None:
        sizes = {
            "tokens": capacity.max_rows,
            "sequences": capacity.max_rows,
            "positions": capacity.max_rows,
            "logits_indices": capacity.max_logits,
            "sums": 1,
            "table": capacity.max_sequences * capacity.n_pages,
        }
        self._device, self._kernels = device, kernels
        self._pinned = device.pinned(4 * sum(sizes.values()))
        self._address = memory.zeros(self._pinned.nbytes)
        words, addresses, at = self._pinned.view(np.int32), {}, 0
        words[:] = 0
        fields: dict[str, np.ndarray] = {}
        for name, size in sizes.items():
            addresses[name], fields[name] = self._address + 4 * at, words[at : at + size]
            at += size
        self._fields = fields
        self._table = fields["table"].reshape(capacity.max_sequences, capacity.n_pages)
        self.addresses = InputAddresses(**addresses, table_stride=4 * capacity.n_pages)

    def write(self, batch: Batch, table: PageTable) -> None:
        """Set the inputs of the next step; `table` must not have more sequences or pages than the
        capacity.
        """
        n, fields = len(batch.tokens), self._fields
        fields["tokens"][:n] = batch.tokens
        fields["sequences"][:n] = batch.sequences
        fields["positions"][:n] = batch.positions
        fields["logits_indices"][: len(batch.logits_indices)] = batch.logits_indices
        sequences, pages = table.blocks.shape
        self._table[:sequences, :pages] = table.blocks

    def number_sums(self, first: int) -> None:
        """Set the number of the next step's first sum over several cards."""
        self._fields["sums"][0] = first

    def send(self) -> None:
        """Enqueue the copy to GPU memory."""
        self._device.launch(self.fetch())

    def fetch(self) -> Launch:
        """The launch of the copy. The next launch must not start before this one has ended."""
        return copy_words(self._kernels, self._pinned.ctypes.data, self._address, self._pinned.nbytes)


def upload_rare_inputs(device: Device, lowering: Lowering, batch: Batch) -> None:
    """Upload the inputs of a step that few models have: RoPE frequencies that depend on the lengths of the
    sequences, where these end, and the types of tokens.
    """
    if lowering.by_length:
        lengths = batch.sequence_lengths()
        for op, region in lowering.by_length.values():
            rows = np.zeros((len(lengths), region.stride // 4), np.float32)
            rows[:, : len(op.inv_freq)] = op.frequencies(lengths)
            device.upload(region.address, rows)
            device.wait()
    if lowering.row_inputs:
        values = {"ends": batch.sequence_lengths, "types": batch.types_of_rows}
        for name, region in lowering.row_inputs.items():
            device.upload(region.address, np.ascontiguousarray(values[name](), np.int32))
            device.wait()
