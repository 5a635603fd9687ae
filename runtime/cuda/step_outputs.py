"""The outputs of a step (logits, or the top k of them) and their way to the host."""

from __future__ import annotations

import numpy as np

from ..engine.sampling.top_k import MAX_TOP_K, TopK
from .abi.arguments import Region
from .compile.kernel import Kernels
from .copies import copy_rows, copy_words
from .driver.device import Device
from .lowering.program import Lowering
from .step import TopKRequest
from .top_k import MAX_ROWS, TopKKernels, TopKPlan, read_top_k

MAPPED_LOGITS = 1 << 20  # up to this many bytes of logits are copied by a kernel, more by the driver


class StepOutputs:
    """Logits and the top k of a step's rows in pinned memory."""

    def __init__(self, max_logits: int, device: Device, lowering: Lowering, kernels: Kernels) -> None:
        self._device, self._lowering, self._kernels = device, lowering, kernels
        self._buffer = lowering.program.logits
        logits = device.pinned(4 * max_logits * self._buffer.width).view(np.float32)
        self._logits = logits.reshape(max_logits, -1)
        self._top_k = device.pinned(8 * MAX_ROWS * MAX_TOP_K).view(np.int32).reshape(MAX_ROWS, -1)
        self._top_k_out = Region(self._top_k.ctypes.data, self._top_k.strides[0])
        self._top_k_kernels = TopKKernels(lowering.memory, kernels, device.capability)

    def logits(self, n_logits: int) -> np.ndarray:
        """What `fetch_logits` has brought, float32 [n_logits, vocab]."""
        return self._logits[:n_logits]

    def fetch_logits(self, n_logits: int) -> None:
        """Enqueue a copy of logits: by a kernel, which starts sooner, if they are few bytes."""

        def launch(address: int, rows: np.ndarray) -> None:
            self._device.launch(copy_words(self._kernels, address, rows.ctypes.data, rows.nbytes))

        def copy(address: int, rows: np.ndarray) -> None:
            self._device.download(rows, address)

        rows = self._logits[:n_logits]
        small = rows.nbytes <= MAPPED_LOGITS
        copy_rows(launch if small else copy, self._lowering.region(self._buffer), rows)

    def top_k(self, n_logits: int, k: int, request: TopKRequest) -> list[TopK]:
        """The top `k` of each row, which the launches of `top_k_plan` have selected for `request`."""
        return read_top_k(self._top_k[:n_logits], request.k, k, request.n_tokens)

    def top_k_plan(self, n_logits: int, request: TopKRequest) -> TopKPlan:
        """The launches that select what `request` asks for and write it to pinned memory."""
        logits, plan = self._lowering.region(self._buffer), self._top_k_kernels.plan
        return self._kernels.complete(
            lambda: plan(logits, n_logits, request.k, request.n_tokens, self._top_k_out)
        )
