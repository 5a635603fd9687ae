"""The KV cache in GPU memory: the type of its numbers, and the content of its pages."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from .. import ops
from .abi.arguments import Region
from .driver.device import Device
from .lowering.program import Lowering
from .lowering.support import matrices

CACHE_BITS = {"f16": 16, "f32": 32, "q8_0": 8, "q4_0": 4}  # of a number in the KV cache, by its type


def cache_type(program: ops.Program, kv_type: str) -> str:
    """The KV cache's number type, one of `CACHE_BITS`. Raises ValueError for an unknown `kv_type`."""
    if kv_type == "auto":
        products = [op for op in program.ops if not isinstance(op, ops.Embed | ops.AddPositions)]
        floats = (w.format.is_float for op in products for group in matrices(op) for w in group[:1])
        return "f32" if all(floats) else "f16"
    if kv_type not in CACHE_BITS:
        raise ValueError(
            f"the CUDA machine keeps keys and values alike, as {', '.join(CACHE_BITS)}, not as {kv_type}"
        )
    return kv_type


class DevicePages:
    """The pages of a KV cache whose memory `lowering` has; the device must be in use (`Device.use`)."""

    def __init__(self, kv_type: str, page_size: int, device: Device, lowering: Lowering) -> None:
        self._kv_type, self._page_size = kv_type, page_size
        self._device, self._lowering = device, lowering

    @cached_property
    def _regions(self) -> list[tuple[Region, ...]]:
        """The keys and the values of each layer, once where they are the same."""
        layers = enumerate(self._lowering.program.cache_layers)
        return [tuple(dict.fromkeys(self._lowering.cache(i, layer))) for i, layer in layers]

    @cached_property
    def _parts(self) -> list[tuple[int, int]]:
        """(address of page 0, bytes of a page) of the keys and the values of each layer."""
        return [(r.address, self._page_size * r.stride) for layer in self._regions for r in layer]

    @property
    def n_bytes(self) -> tuple[int, ...]:
        """Bytes of a page's keys and values, for each layer."""
        return tuple(sum(self._page_size * r.stride for r in layer) for layer in self._regions)

    @property
    def layout(self) -> str:
        """How a page's bytes are to be read."""
        return f"cuda {self._kv_type}, {self._page_size} tokens {[size for _, size in self._parts]}"

    def read(self, page: int) -> np.ndarray:
        """A copy of the keys and values of a page in all layers, uint8 [bytes of a page]."""
        content, at = np.empty(sum(size for _, size in self._parts), np.uint8), 0
        for address, size in self._parts:
            self._device.download(content[at : at + size], address + page * size)
            at += size
        self._device.wait()
        return content

    def write(self, page: int, content: np.ndarray) -> None:
        """Set the keys and values of a page to what `read` gave."""
        at = 0
        for address, size in self._parts:
            self._device.upload(address + page * size, content[at : at + size])
            at += size
        self._device.wait()

    def copy(self, source: int, target: int) -> None:
        """Copy the keys and values of a page, in all layers."""
        for address, size in self._parts:
            self._device.copy(address + target * size, address + source * size, size)
