"""The base of all lowerings: sizes, memory, and the launches of the step that is being lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ... import ops
from ...ops.fused import GatedMatMul
from ..abi.arguments import Region
from ..compile.kernel import Arguments, CudaKernel, Kernels, kernel, pack_arguments
from ..driver.allocator import Memory
from ..driver.device import Device
from ..driver.launch import Launch
from ..kernels.common.common import GELU, GELU_TANH, IDENTITY, RELU2, SILU, TANH
from ..weights.upload import Matrix
from .fusing import CudaOp, JoinedMatMul, joined_buffers, readers, stream_groups
from .tuning import BATCH_ROWS, Tuning

if TYPE_CHECKING:
    from .cards import CardGroup

DECODE_ROWS = 16  # the most rows of a step that decode kernels take; steps of more rows are prefill
FEW_ROWS = 8  # the most for which their products are faster than those with wgmma, on an H200
ACTIVATIONS = {
    "silu": SILU,
    "gelu_tanh": GELU_TANH,
    "gelu": GELU,
    "relu2": RELU2,
    "identity": IDENTITY,
    "tanh": TANH,
}


@dataclass(frozen=True)
class Capacity:
    """The largest step that the memory suffices for, and the KV cache's size; `cache_bits` is 32, 16,
    8 or 4.
    """

    n_pages: int
    page_size: int
    max_rows: int
    max_logits: int
    max_sequences: int
    cache_bits: int

    def rows(self, buffer: ops.Buffer) -> int:
        """Rows to allocate for a buffer: a multiple of DECODE_ROWS, since kernels may write behind
        the last row.
        """
        return -(-(self.max_logits if buffer.logits_rows else self.max_rows) // DECODE_ROWS) * DECODE_ROWS


@dataclass(frozen=True)
class InputAddresses:
    """Addresses of the inputs of a step, int32 arrays in GPU memory.

    `tokens`, `sequences` and `positions` have a number for each row, `logits_indices` the rows that get
    logits, and `table` the KV cache's pages of each sequence, `table_stride` bytes from one sequence to the
    next. `sums` is the number of the first sum over several cards.
    """

    tokens: int
    sequences: int
    positions: int
    logits_indices: int
    table: int
    table_stride: int
    sums: int = 0


@dataclass(frozen=True)
class QuantizedRows:
    """The address of a buffer's quantised rows, in the layout of `store_quantized`.

    With `norm` they are rows of the norm's input times its weight, and still to be divided by the root mean
    square, whose sums of squares are at `partials`, float32 [rows, width / 32].
    """

    address: int
    partials: int = 0
    norm: ops.RMSNorm | None = None


@dataclass(frozen=True)
class HostRows:
    """Rows in pinned memory of a mixture of experts that the host computes, and the addresses of the flags of
    a question and its answer: see `kernels.experts.exchange`."""

    x: Region
    experts: Region
    weights: Region
    out: Region
    asked: int
    answered: int


@dataclass(frozen=True)
class HostMixture:
    """A mixture of experts that the host computes behind the first `n_launches` launches of a step: where the
    `n_rows` rows of what it reads are (x, the experts, their weights), and where its output goes.
    """

    op: ops.MoE
    n_launches: int
    reads: tuple[Region, Region, Region]
    out: Region
    n_rows: int


@dataclass
class LaunchBuilder:
    """Turns the fused ops of a program into launches: what the lowerings of all kinds of ops share.

    `matrices` are the uploaded weights by `id` of their tensor. `by_length` collects the RoPE ops whose
    frequencies depend on the sequence's length, with the memory for these frequencies, by `id` of the op's
    table. `decode_rows` is the most rows of products with decode kernels. `row_inputs` is the memory, int32
    [rows], of inputs that few models have: `ends`, the length of each row's sequence, and `types`, its token
    type. `hosted` are the mixtures of experts, by `id` of the op, that the host computes, and `host_report`
    is the address of its word for errors, or 0. A step's are in `mixtures`, except, with that word, those of
    a step of few rows, whose launches wait for the host.

    While a step is lowered, these fields describe what earlier launches of the step have left behind:
    `_alias` maps names of buffers to the buffers that hold their contents, `_quantized` names to their
    quantised rows, `_f16_current` names to the scales of float16 copies that are current, `_angles_written`
    the tables of RoPE angles that are filled, and `_plans_written` the plans of splits that are made.
    """

    program: ops.Program
    cuda_ops: Sequence[CudaOp]
    capacity: Capacity
    device: Device
    kernels: Kernels
    memory: Memory
    matrices: Mapping[int, Matrix]
    inputs: InputAddresses
    tuning: Tuning = field(default_factory=Tuning)
    by_length: dict[int, tuple[ops.RoPE, Region]] = field(default_factory=dict)
    row_inputs: dict[str, Region] = field(default_factory=dict)
    group: CardGroup | None = None
    rank: int = 0
    hosted: Mapping[int, HostRows] = field(default_factory=dict)
    host_report: int = 0
    n_sums: int = field(default=0, init=False)
    mixtures: list[HostMixture] = field(default_factory=list, init=False)
    _launches: list[Launch] = field(default_factory=list, init=False)
    _scaled_sinks: dict[int, np.ndarray] = field(default_factory=dict, init=False)
    decode_rows: int = field(default=DECODE_ROWS, init=False)

    def __post_init__(self) -> None:
        alone = self.device.warpgroups and self.group is None
        self.decode_rows = FEW_ROWS if alone else DECODE_ROWS
        self._ones = np.ones(self.capacity.max_rows, np.float32)  # scales of rows that need none
        for streams in stream_groups(self.cuda_ops):
            sizes = [4 * b.width for b in streams]
            self.memory.slices([b.name for b in streams], self.capacity.rows(streams[0]), sizes)
        for buffers in sorted(joined_buffers(self.cuda_ops), key=lambda bs: [b.name for b in bs]):
            sizes = [4 * b.width for b in buffers]
            self.memory.slices([b.name for b in buffers], self.capacity.rows(buffers[0]), sizes)
        for b in self.program.buffers:
            self.region(b)
        for i, layer in enumerate(self.program.cache_layers):
            self.cache(i, layer)
        for i, state in enumerate(self.program.state_layers):
            self.state(i, state)

    def region(self, buffer: ops.Buffer) -> Region:
        """The float32 rows of a buffer."""
        return self.memory.rows(buffer.name, self.capacity.rows(buffer), 4 * buffer.width)

    def cache(self, i: int, layer: ops.CacheLayer) -> tuple[Region, Region]:
        """The keys and values of a layer: the same region if values are the first dimensions of keys."""
        bits, tokens = self.capacity.cache_bits, self.capacity.n_pages * self.capacity.page_size
        dims = padded_head_dim(layer.head_dim, bits)
        size = layer.kv_heads * (dims * bits // 8 + (dims // 16 if bits < 16 else 0))
        keys = self.memory.rows(f"keys {i}", tokens, size)
        return keys, keys if layer.value_dim == 0 else self.memory.rows(f"values {i}", tokens, size)

    def row_input(self, name: str) -> int:
        """The address of one of `row_inputs`."""
        if name not in self.row_inputs:
            self.row_inputs[name] = self.memory.rows(f"{name} of rows", 1, 4 * self.capacity.max_rows)
        return self.row_inputs[name].address

    def state(self, i: int, layer: ops.StateLayer) -> Region:
        """The states of a recurrent op, one row for each sequence."""
        size = 4 * int(np.prod(layer.shape, dtype=np.int64))
        return self.memory.rows(f"state {i}", self.capacity.max_sequences, size)

    def _begin(self, n_rows: int, n_logits: int, all_logits: bool, one_prompt: bool) -> None:
        """Start a step: see `Lowering.launches` for the parameters."""
        self._launches = []
        self.mixtures = []
        self._n_rows = {False: n_rows, True: n_logits}
        self._host_follows = bool(self.host_report) and n_rows <= DECODE_ROWS  # the launches of the step
        self._all_logits = all_logits
        self._one_prompt = one_prompt
        self._alias: dict[str, ops.Buffer] = {}
        self._quantized: dict[str, QuantizedRows] = {}
        self._f16_current: dict[str, int] = {}
        self._angles_written: set[str] = set()
        self._plans_written: set[str] = set()
        self.n_sums = 0

    def _at(self, buffer: ops.Buffer) -> Region:
        """The rows that hold the contents of a buffer in this step."""
        return self.region(self._resolve(buffer))

    def _resolve(self, buffer: ops.Buffer) -> ops.Buffer:
        """The buffer that holds the contents of `buffer` in this step."""
        return self._alias.get(buffer.name, buffer)

    def _emit(
        self,
        kernel: CudaKernel[Arguments],
        grid: Sequence[int],
        arguments: Arguments,
        shared: int = 0,
        label: str = "",
        cluster: int = 1,
    ) -> None:
        """Add a launch to the step. `arguments` is the kernel's argument record, or a list of its parameters
        where there are few; `shared` the bytes of shared memory; `label` is for profiles; `cluster` the
        blocks of a cluster."""
        # The first launch waits until the inputs of the step are copied, so that all kernels may read them at
        # any time; that behind the host's work waits for its result.
        follows = bool(self._launches) and len(self._launches) not in [m.n_launches for m in self.mixtures]
        early = self.device.capability >= (9, 0) and follows
        x, y, z = (*grid, 1, 1)[:3]
        function = self.kernels.function(kernel, shared)
        packed, name = pack_arguments(*arguments), f"{kernel.name} {label}".strip()
        self._launches.append(
            Launch(name, function, (x, y, z), kernel.threads, shared, packed, early, cluster)
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

    def _vector(self, values: np.ndarray | None) -> int:
        """The address of a float32 copy of an optional vector, or 0."""
        return 0 if values is None else self.memory.vector(values)

    def _invalidate(self, *buffers: ops.Buffer) -> None:
        """Forget the quantised and float16 copies of buffers that a launch writes."""
        for b in buffers:
            self._quantized.pop(self._resolve(b).name, None)
            self._f16_current.pop(self._resolve(b).name, None)

    def _read_only_by_matmuls(self, i: int, buffer: ops.Buffer) -> bool:
        """Whether only matrix products with block-quantised weights read what op number `i` writes to
        a buffer.
        """
        if buffer in self.program.boundary_out:
            return False
        all_readers = readers(self.cuda_ops, i, buffer)
        return bool(all_readers) and all(self._multiplies(r, buffer) for r in all_readers)

    def _multiplies(self, op: CudaOp, x: ops.Buffer) -> bool:
        """Whether an op that reads `x` is a product with block-quantised weights; or the selection of all
        rows, which is no launch, for such products."""
        if isinstance(op, ops.SelectRows) and self._all_logits:
            return self._read_only_by_matmuls(self.cuda_ops.index(op), op.out)
        if isinstance(op, JoinedMatMul) and op.weights[0].format.is_float:
            return False
        return isinstance(op, GatedMatMul | JoinedMatMul) and op.x == x

    def _padded_rows(self, buffer: ops.Buffer) -> int:
        """The constant TOKENS of kernels for the step's rows of a buffer."""
        return padded_rows(self._n_rows[buffer.logits_rows])

    def _quantized_address(self, buffer: ops.Buffer) -> int:
        """The address of room for the step's rows of a buffer in 8 bits: see `kernels.common.emit_codes`."""
        tokens, blocks = self._padded_rows(buffer), buffer.width // 32
        size = 16 * tokens * (4 * blocks + 4 * -(-blocks // 4))
        # Each number of rows has memory of its own, since the padding in between must stay zero.
        return self.memory.rows(f"{buffer.name} in 8 bits, {tokens} rows", 1, size).address

    def _f16_memory(self, x: ops.Buffer) -> tuple[Region, Region]:
        """Memory for a buffer's rows as float16 and for their scales; a block of `batch_matmul_sm90` reads up
        to BATCH_ROWS even if there are fewer."""
        name, rows = self._resolve(x).name, max(self.capacity.rows(self._resolve(x)), BATCH_ROWS)
        f16 = self.memory.rows(f"{name} as float16", rows, 2 * (-(-x.width // 128) * 128))
        return f16, self.memory.rows(f"{name}, scales", 1, 4 * rows)

    def _partials(self, buffer: ops.Buffer) -> int:
        """The address for the sums of squares of a buffer, float32 [rows, width / 32]."""
        return self.memory.rows(f"{buffer.name}, squares", DECODE_ROWS, 4 * (buffer.width // 32)).address


def padded_rows(n: int) -> int:
    """`n` rounded up to a power of two: the rows of the layout of `store_quantized`."""
    return 1 << (n - 1).bit_length()


def padded_head_dim(dims: int, bits: int = 16) -> int:
    """The dimensions of a head in a KV cache of so many bits, padded for loads of 16 bytes."""
    return -(-dims // (32 if bits < 16 else 8)) * (32 if bits < 16 else 8)
