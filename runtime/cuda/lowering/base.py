"""What all launches are made with: the step's sizes, its memory, and which buffers are in 8 bits already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from ... import ops
from ...ops.fused import GatedMatMul
from ..compile.arguments import Region
from ..compile.kernel import Arguments, CudaKernel, Kernels, kernel, pack_arguments
from ..driver.allocator import Memory
from ..driver.device import Device
from ..driver.launch import Launch
from ..kernels.common.common import GELU, GELU_TANH, IDENTITY, RELU2, SILU, TANH
from ..weights.upload import Matrix
from .fusing import FusedOp, JoinedMatMul, joined_buffers, readers, stream_groups
from .tuning import Shapes

FEW = 16  # rows that products take at once in 8 bits
ACTIVATIONS = {
    "silu": SILU,
    "gelu_tanh": GELU_TANH,
    "gelu": GELU,
    "relu2": RELU2,
    "identity": IDENTITY,
    "tanh": TANH,
}


@dataclass(frozen=True)
class Layout:
    """The machine's sizes. `cache_bits` of a number in the cache: 32, 16, 8, 4; see `kernels/cache.py`."""

    n_pages: int
    page_size: int
    max_rows: int
    max_logits: int
    max_sequences: int
    cache_bits: int

    def rows(self, buffer: ops.Buffer) -> int:
        """Rows that there is room for: products may write some behind the last."""
        return -(-(self.max_logits if buffer.logits_rows else self.max_rows) // FEW) * FEW


@dataclass(frozen=True)
class Inputs:
    """Where a step finds what it is told: int32 arrays on the card. `table_stride` is in bytes."""

    tokens: int
    sequences: int
    positions: int
    logits_indices: int
    table: int
    table_stride: int


@dataclass(frozen=True)
class Coded:
    """A buffer in 8 bits; with `partials` still to be divided by a root mean square, as said by `norm`."""

    address: int
    partials: int = 0
    norm: ops.RMSNorm | None = None


@dataclass
class Launches:
    """Turns `found`, the fused ops of a program, into launches on one card: what its parts share."""

    program: ops.Program
    found: Sequence[FusedOp]
    layout: Layout
    device: Device
    kernels: Kernels
    memory: Memory
    matrices: Mapping[int, Matrix]
    inputs: Inputs
    shapes: Shapes = field(default_factory=Shapes)
    by_length: dict[int, tuple[ops.RoPE, Region]] = field(default_factory=dict)
    _launches: list[Launch] = field(default_factory=list, init=False)
    _scaled_sinks: dict[int, np.ndarray] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for streams in stream_groups(self.found):
            sizes = [4 * b.width for b in streams]
            self.memory.slices([b.name for b in streams], self.layout.rows(streams[0]), sizes)
        for buffers in sorted(joined_buffers(self.found), key=lambda bs: [b.name for b in bs]):
            sizes = [4 * b.width for b in buffers]
            self.memory.slices([b.name for b in buffers], self.layout.rows(buffers[0]), sizes)
        for b in self.program.buffers:
            self.region(b)
        for layer, at in enumerate(self.program.cache_layers):
            self.cache(layer, at)
        for layer, kept in enumerate(self.program.state_layers):
            self.state(layer, kept)

    def region(self, buffer: ops.Buffer) -> Region:
        return self.memory.rows(buffer.name, self.layout.rows(buffer), 4 * buffer.width)

    def cache(self, layer: int, at: ops.CacheLayer) -> tuple[Region, Region]:
        """Keys and values of a layer; the same where values are the beginnings of keys."""
        bits, tokens = self.layout.cache_bits, self.layout.n_pages * self.layout.page_size
        dims = padded(at.head_dim, bits)
        size = at.kv_heads * (dims * bits // 8 + (dims // 16 if bits < 16 else 0))
        keys = self.memory.rows(f"keys {layer}", tokens, size)
        return keys, keys if at.value_dim == 0 else self.memory.rows(f"values {layer}", tokens, size)

    def state(self, layer: int, kept: ops.StateLayer) -> Region:
        """What a recurrent op keeps, a row a sequence."""
        size = 4 * int(np.prod(kept.shape, dtype=np.int64))
        return self.memory.rows(f"state {layer}", self.layout.max_sequences, size)

    def _begin(self, n_rows: int, n_logits: int, all_logits: bool, one_prompt: bool) -> None:
        """Nothing is launched yet, nothing is in 8 bits."""
        self._launches = []
        self._n = {False: n_rows, True: n_logits}
        self._all_wanted = all_logits
        self._one_prompt = one_prompt
        self._alias: dict[str, ops.Buffer] = {}
        self._coded: dict[str, Coded] = {}
        self._halved: set[str] = set()
        self._turned: set[str] = set()

    def _at(self, buffer: ops.Buffer) -> Region:
        return self.region(self._real(buffer))

    def _real(self, buffer: ops.Buffer) -> ops.Buffer:
        return self._alias.get(buffer.name, buffer)

    def _emit(
        self,
        what: CudaKernel[Arguments],
        grid: Sequence[int],
        arguments: Arguments,
        shared: int = 0,
        label: str = "",
    ) -> None:
        """Add a launch to the step. `arguments` is the kernel's argument record, or a list of its parameters
        where there are few; `shared` the bytes of shared memory; `label` is for profiles."""
        # The first one begins when what the step is told is there: then all may read that at any time.
        early = self.device.capability >= (9, 0) and bool(self._launches)
        x, y, z = (*grid, 1, 1)[:3]
        function = self.kernels.function(what, shared)
        packed = pack_arguments(*arguments)
        self._launches.append(
            Launch(f"{what.name} {label}".strip(), function, (x, y, z), what.threads, shared, packed, early)
        )

    @overload
    def _kernel(
        self, function: Callable[[Arguments], None], threads: int, **constants: int | float | str
    ) -> CudaKernel[Arguments]: ...

    @overload
    def _kernel(
        self, function: Callable[..., None], threads: int, **constants: int | float | str
    ) -> CudaKernel[Any]: ...

    def _kernel(
        self, function: Callable[..., None], threads: int, **constants: int | float | str
    ) -> CudaKernel[Any]:
        """A kernel for blocks of `threads` threads, by its function."""
        return kernel(function, threads, PDL=int(self.device.capability >= (9, 0)), **constants)

    def _wrote(self, *buffers: ops.Buffer) -> None:
        for b in buffers:
            self._coded.pop(self._real(b).name, None)
            self._halved.discard(self._real(b).name)

    def _only_products(self, i: int, buffer: ops.Buffer) -> bool:
        """Whether what an op writes is read by products with block-quantised weights only."""
        found = readers(self.found, i, buffer)
        return bool(found) and all(
            (isinstance(r, GatedMatMul) or (isinstance(r, JoinedMatMul) and not r.weights[0].format.is_float))
            and r.x == buffer
            for r in found
        )

    def _tokens(self, buffer: ops.Buffer) -> int:
        """TOKENS, as kernels have it: for how many rows the step's few are laid out in 8 bits."""
        return room(self._n[buffer.logits_rows])

    def _codes(self, buffer: ops.Buffer) -> int:
        """The address of room for the step's rows of a buffer in 8 bits: see `kernels.common.emit_codes`."""
        tokens, blocks = self._tokens(buffer), buffer.width // 32
        size = 16 * tokens * (4 * blocks + 4 * -(-blocks // 4))
        # Memory of its own for each layout: what lies between its parts must stay zeros.
        return self.memory.rows(f"{buffer.name} in 8 bits, {tokens} rows", 1, size).address

    def _partials(self, buffer: ops.Buffer) -> int:
        return self.memory.rows(f"{buffer.name}, squares", FEW, 4 * (buffer.width // 32)).address


def room(n: int) -> int:
    """For how many rows `n` of them are laid out in 8 bits."""
    return 1 << (n - 1).bit_length()


def padded(dims: int, bits: int = 16) -> int:
    """Dimensions of a head in a cache of so many bits."""
    return -(-dims // (32 if bits < 16 else 8)) * (32 if bits < 16 else 8)
