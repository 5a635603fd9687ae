"""From a program to launches: of a step of so many rows, of which so many are wanted.

Everything that changes from step to step lies in the card's memory, so that the launches of a step can be
captured in a graph once and run again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...quant.block import QTensor
from .. import ops
from ..fields import UnsupportedModel
from .driver import Device, Launch
from .fusing import (
    GATES,
    FusedOp,
    GatedMatMul,
    JoinedMatMul,
    PreparedAttend,
    joined_buffers,
    readers,
    turn_key,
    writes,
)
from .kernel import Kernel, Kernels, kernel, pack_arguments
from .kernels.common import GELU, GELU_TANH, IDENTITY, RELU2, SILU, TANH
from .memory import Memory, Region
from .tuning import Shape, matvec_shape
from .weights import Matrix

FEW = 8  # rows that products take at once in 8 bits
SPANS = 64  # blocks that share a row's context at most
SPAN = 64  # tokens that a block takes at least
PREPARE_WARPS = 4
ATTEND_WARPS = 4
ACTIVATIONS = {
    "silu": SILU,
    "gelu_tanh": GELU_TANH,
    "gelu": GELU,
    "relu2": RELU2,
    "identity": IDENTITY,
    "tanh": TANH,
}
LOG2_E = math.log2(math.e)
RAW_WORDS = {
    "Q4_0": 5,
    "Q4_1": 5,
    "Q5_0": 6,
    "Q5_1": 6,
    "Q8_0": 9,
    "Q2_K": 4,
    "Q3_K": 5,
    "Q4_K": 8,
    "Q5_K": 9,
}
RAW_WORDS |= {"Q6_K": 8, "IQ4_NL": 5, "IQ4_XS": 6, "MXFP4": 5}


@dataclass(frozen=True)
class Layout:
    """The machine's sizes. `cache_bits`: 16 or 32 of a number in the cache."""

    n_pages: int
    page_size: int
    max_rows: int
    max_wanted: int
    max_sequences: int
    cache_bits: int

    def rows(self, buffer: ops.Buffer) -> int:
        """Rows that there is room for: products may write some behind the last."""
        return -(-(self.max_wanted if buffer.wanted else self.max_rows) // FEW) * FEW


@dataclass(frozen=True)
class Inputs:
    """Where a step finds what it is told: int32 arrays on the card. `table_stride` is in bytes."""

    tokens: int
    sequences: int
    positions: int
    wanted: int
    table: int
    table_stride: int


@dataclass(frozen=True)
class Coded:
    """A buffer in 8 bits; with `partials` still to be divided by a root mean square, as said by `norm`."""

    region: Region
    partials: int = 0
    norm: ops.RMSNorm | None = None


@dataclass
class Lowering:
    """Turns `found`, the fused ops of a program, into launches on one card."""

    program: ops.Program
    found: Sequence[FusedOp]
    layout: Layout
    device: Device
    kernels: Kernels
    memory: Memory
    matrices: Mapping[int, Matrix]
    inputs: Inputs
    shapes: Mapping[tuple[str, int, int, int], Shape] = field(default_factory=dict)  # measured: see `_shape`
    by_length: dict[int, tuple[ops.RoPE, Region]] = field(default_factory=dict)
    _launches: list[Launch] = field(default_factory=list, init=False)
    _scaled_sinks: dict[int, np.ndarray] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for buffers in sorted(joined_buffers(self.found), key=lambda bs: [b.name for b in bs]):
            sizes = [4 * b.width for b in buffers]
            self.memory.slices([b.name for b in buffers], self.layout.rows(buffers[0]), sizes)
        for b in self.program.buffers:
            self.region(b)
        for layer, at in enumerate(self.program.cache_layers):
            self.cache(layer, at)

    def region(self, buffer: ops.Buffer) -> Region:
        return self.memory.rows(buffer.name, self.layout.rows(buffer), 4 * buffer.width)

    def cache(self, layer: int, at: ops.CacheLayer) -> tuple[Region, Region]:
        """Keys and values of a layer."""
        if at.value_dim is not None and at.value_dim != at.head_dim:
            raise UnsupportedModel("the CUDA machine has no latent attention yet")
        tokens = self.layout.n_pages * self.layout.page_size
        size = at.kv_heads * padded(at.head_dim) * self.layout.cache_bits // 8
        return tuple(self.memory.rows(f"{what} {layer}", tokens, size) for what in ("keys", "values"))  # type: ignore[return-value]

    def launches(
        self, n_rows: int, n_wanted: int, all_wanted: bool, one_prompt: bool = False
    ) -> list[Launch]:
        """Those of a step; `all_wanted`: every row is, in order; `one_prompt`: rows follow each other."""
        self._one_prompt = one_prompt
        self._launches = []
        self._n = {False: n_rows, True: n_wanted}
        self._alias: dict[str, ops.Buffer] = {}
        self._all_wanted = all_wanted
        self._coded: dict[str, Coded] = {}
        self._halved: set[str] = set()
        self._turned: set[str] = set()
        for i, op in enumerate(self.found):
            if self._rows_of(op) > 0:
                self._lower(i, op)
        return self._launches

    def _rows_of(self, op: FusedOp) -> int:
        if isinstance(op, PreparedAttend):
            return self._n[False]
        out = writes(op)[0]
        return self._n[out.wanted]

    def _at(self, buffer: ops.Buffer) -> Region:
        return self.region(self._real(buffer))

    def _real(self, buffer: ops.Buffer) -> ops.Buffer:
        return self._alias.get(buffer.name, buffer)

    def _emit(
        self,
        what: Kernel,
        grid: Sequence[int],
        arguments: Sequence[int | float],
        shared: int = 0,
        label: str = "",
    ) -> None:
        early = self.device.capability >= (9, 0)
        x, y, z = (*grid, 1, 1)[:3]
        function = self.kernels.function(what, shared)
        packed = pack_arguments(*arguments)
        self._launches.append(
            Launch(f"{what.name} {label}".strip(), function, (x, y, z), what.threads, shared, packed, early)
        )

    def _kernel(self, module: str, name: str, threads: int, **constants: int | float | str) -> Kernel:
        return kernel(module, name, threads, PDL=int(self.device.capability >= (9, 0)), **constants)

    def _wrote(self, *buffers: ops.Buffer) -> None:
        for b in buffers:
            self._coded.pop(self._real(b).name, None)
            self._halved.discard(self._real(b).name)

    def _lower(self, i: int, op: FusedOp) -> None:
        match op:
            case ops.Embed():
                self._embed(op)
            case ops.RMSNorm():
                self._rms_norm(i, op)
            case ops.LayerNorm():
                self._norm(op, op.bias, mean=1, size=op.x.width // op.groups, each=1)
            case JoinedMatMul():
                self._matmul(i, op)
            case GatedMatMul():
                self._gated_matmul(i, op)
            case PreparedAttend():
                self._prepare(op)
                self._attend(i, op.attend)
            case ops.Attend():
                self._append(op)
                self._attend(i, op)
            case ops.RoPE():
                self._rope(op)
            case ops.SelectRows():
                self._select(op)
            case _:
                self._pointwise(op)

    # Rows

    def _embed(self, op: ops.Embed) -> None:
        matrix, out = self.matrices[id(op.table)], self._at(op.out)
        n, inputs = self._n[op.out.wanted], self.inputs
        table = [inputs.tokens, matrix.address, matrix.row_bytes]
        rest = [matrix.n_out, out.address, out.stride, float(op.scale)]
        if op.table.format.is_float:
            what = self._kernel("rows", "embed_floats", 128, FLOAT=matrix.float_kind)
            self._emit(what, (-(-matrix.width // 128), n), [*table, matrix.width, *rest])
        else:
            what = self._kernel("rows", "embed", 128, FORMAT=op.table.format.name)
            self._emit(what, (-(-matrix.blocks // 128), n), [*table, matrix.blocks, *rest])
        self._wrote(op.out)

    def _select(self, op: ops.SelectRows) -> None:
        if self._all_wanted:
            self._alias[op.out.name] = self._real(op.x)
            return
        x, out = self._at(op.x), self._at(op.out)
        arguments = [self.inputs.wanted, x.address, x.stride, out.address, out.stride, op.x.width]
        self._emit(
            self._kernel("rows", "select_rows", 128), (-(-op.x.width // 128), self._n[True]), arguments
        )
        self._wrote(op.out)

    # Norms

    def _rms_norm(self, i: int, op: ops.RMSNorm) -> None:
        if self._lazy(i, op):
            attached = self._coded.get(self._real(op.x).name + " normed")
            if attached is None or attached.norm is not op:
                attached = self._quantize_normed(op)
            self._wrote(op.out)
            self._coded[self._real(op.out).name] = attached
            return
        each = op.groups * len(op.weight) > op.x.width
        self._norm(op, None, mean=0, size=op.x.width // op.groups if each else len(op.weight), each=int(each))

    def _lazy(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether a norm's result is only needed in 8 bits, and can be made without looking at the whole
        row.
        """
        few = self._n[op.x.wanted] <= FEW
        whole = op.groups == 1 and len(op.weight) == op.x.width and op.x.width % 32 == 0
        return few and whole and self._only_products(i, op.out)

    def _only_products(self, i: int, buffer: ops.Buffer) -> bool:
        """Whether what an op writes is read by products with block-quantised weights only."""
        found = readers(self.found, i, buffer)
        return bool(found) and all(
            (isinstance(r, GatedMatMul) or (isinstance(r, JoinedMatMul) and not r.weights[0].format.is_float))
            and r.x == buffer
            for r in found
        )

    def _quantize_normed(self, op: ops.RMSNorm) -> Coded:
        x, coded = self._at(op.x), self._codes(op.out)
        partials = self._partials(op.out)
        blocks, weight = op.x.width // 32, self.memory.vector(op.weight)
        arguments = [x.address, x.stride, blocks, weight, coded.address, coded.stride, partials]
        what = self._kernel("quantize", "quantize", 128, NORMED=1)
        self._emit(what, (-(-blocks // 4), self._n[op.x.wanted]), arguments)
        return Coded(coded, partials, op)

    def _norm(
        self, op: ops.RMSNorm | ops.LayerNorm, bias: np.ndarray | None, mean: int, size: int, each: int
    ) -> None:
        x, out = self._at(op.x), self._at(op.out)
        arguments: list[int | float] = [x.address, x.stride, out.address, out.stride]
        arguments += [
            self.memory.vector(op.weight),
            0 if bias is None else self.memory.vector(bias),
            float(op.eps),
            size,
            1 / size,
            op.x.width,
        ]
        what = self._kernel(
            "pointwise", "norm", 256, MEAN=mean, BIAS=int(bias is not None), EACH=each, GROUPS=op.groups
        )
        self._emit(what, (op.groups, self._n[op.x.wanted]), arguments, 64)
        self._wrote(op.out)

    # Products

    def _codes(self, buffer: ops.Buffer) -> Region:
        """Room for a few rows of a buffer in 8 bits."""
        return self.memory.rows(f"{buffer.name} in 8 bits", FEW, buffer.width + buffer.width // 2)

    def _partials(self, buffer: ops.Buffer) -> int:
        return self.memory.rows(f"{buffer.name}, squares", FEW, 4 * (buffer.width // 32)).address

    def _in_codes(self, buffer: ops.Buffer) -> Coded:
        """A buffer in 8 bits: made now, unless it is there already."""
        real = self._real(buffer)
        if real.name not in self._coded:
            x, coded, blocks = self._at(buffer), self._codes(real), buffer.width // 32
            arguments = [x.address, x.stride, blocks, 0, coded.address, coded.stride, 0]
            what = self._kernel("quantize", "quantize", 128, NORMED=0)
            self._emit(what, (-(-blocks // 4), self._n[buffer.wanted]), arguments)
            self._coded[real.name] = Coded(coded)
        return self._coded[real.name]

    def _matmul(self, i: int, op: JoinedMatMul) -> None:
        if op.weights[0].format.is_float:
            self._float_matmul(op)
            return
        matrix, out = self.matrices[id(op.weights[0])], self._at(op.outs[0])
        n_out, n = sum(w.shape[0] for w in op.weights), self._n[op.outs[0].wanted]
        if n > FEW:
            self._tiled(matrix, n_out, op.x, n, out, op.biases, op.accumulate)
            self._wrote(*op.outs)
            return
        coded = self._in_codes(op.x)
        next_norm = self._norm_behind(i, op) if n_out % 32 == 0 else None
        emitted = self._codes(next_norm.out) if next_norm else None
        partials = self._partials(next_norm.out) if next_norm else 0
        constants = {"BIAS": int(bool(op.biases)), "ACCUMULATE": int(op.accumulate), "STORE": 1}
        bias = self.memory.vector(*op.biases) if op.biases else 0
        self._matvec(matrix, None, n_out, coded, n, out, constants, bias, emitted, next_norm, partials)
        self._wrote(*op.outs)
        if next_norm and emitted:
            name = self._real(next_norm.x).name + " normed"
            self._coded[name] = Coded(emitted, partials, next_norm)

    def _norm_behind(self, i: int, op: JoinedMatMul) -> ops.RMSNorm | None:
        """The norm that reads a product's result next, if the product can begin it."""
        if len(op.outs) != 1:
            return None
        buffer, at = op.outs[0], i + 1
        while (
            at < len(self.found) and isinstance(select := self.found[at], ops.SelectRows) and self._all_wanted
        ):
            buffer = select.out if select.x == buffer else buffer
            at += 1
        if at < len(self.found):
            norm = self.found[at]
            if isinstance(norm, ops.RMSNorm) and norm.x == buffer and self._lazy(at, norm):
                return norm
        return None

    def _gated_matmul(self, i: int, op: GatedMatMul) -> None:
        matrix, other, out = self.matrices[id(op.gate)], self.matrices[id(op.up)], self._at(op.out)
        n, n_out = self._n[op.out.wanted], op.gate.shape[0]
        if n > FEW:
            up = self.memory.rows(f"{op.out.name}, up", self.layout.rows(op.out), 4 * n_out)
            self._tiled(matrix, n_out, op.x, n, out)
            self._tiled(other, n_out, op.x, n, up)
            arguments = [out.address, out.stride, up.address, up.stride, out.address, out.stride, n_out, 1.0]
            what = self._kernel("pointwise", "gated_activation", 256, KIND=GATES[op.kind])
            self._emit(what, (-(-n_out // 256), n), arguments)
            self._wrote(op.out)
            return
        coded = self._in_codes(op.x)
        emits = n_out % 32 == 0
        stores = not emits or not self._only_products(i, op.out)
        emitted = self._codes(op.out) if emits else None
        constants = {"BIAS": 0, "ACCUMULATE": 0, "STORE": int(stores), "KIND": GATES[op.kind]}
        self._matvec(matrix, other, n_out, coded, n, out, constants, emitted=emitted)
        self._wrote(op.out)
        if emitted:
            self._coded[self._real(op.out).name] = Coded(emitted)

    def _matvec(
        self,
        matrix: Matrix,
        other: Matrix | None,
        n_out: int,
        x: Coded,
        rows: int,
        out: Region,
        constants: dict[str, int],
        bias: int = 0,
        emitted: Region | None = None,
        norm: ops.RMSNorm | None = None,
        partials: int = 0,
    ) -> None:
        name, blocks = matrix.weight.format.name, matrix.blocks
        rows = 1 << (rows - 1).bit_length()  # kernels for 1, 2, 4 and 8 are enough
        emit = 0 if emitted is None else 2 if norm else 1
        matrices = 2 if other else 1
        measured = self.shapes.get((name, blocks, rows, 2 * matrices + (emit > 0)))
        shape = measured or matvec_shape(blocks, n_out, rows, matrices, RAW_WORDS[name], emit > 0)
        what = self._kernel(
            "matvec",
            "matvec",
            32 * shape.WARPS,
            FORMAT=name,
            N=rows,
            R=shape.R,
            U=shape.U,
            KS=shape.KS,
            WARPS=shape.WARPS,
            EXACT=int(shape.exact(blocks)),
            GATED=matrices - 1,
            NORMED=int(x.norm is not None),
            EMIT=emit,
            KIND=constants.pop("KIND", 0),
            **constants,
        )
        arguments: list[int | float] = [
            matrix.address,
            other.address if other else 0,
            matrix.row_bytes,
            blocks,
            n_out,
        ]
        arguments += [x.region.address, x.region.stride, x.partials, blocks]
        arguments += [1 / matrix.width, float(x.norm.eps) if x.norm else 1.0, bias, out.address, out.stride]
        arguments += [emitted.address, emitted.stride] if emitted else [0, 0]
        arguments += [self.memory.vector(norm.weight) if norm else 0, partials]
        shared = 4 * shape.KS * matrices * rows * shape.rows
        label = f"{name} {matrices * n_out}x{matrix.width}"
        self._emit(what, (-(-n_out // shape.rows),), arguments, shared, label)

    def _tiled(
        self,
        matrix: Matrix,
        n_out: int,
        x: ops.Buffer,
        n: int,
        out: Region,
        biases: tuple[np.ndarray, ...] = (),
        accumulate: bool = False,
    ) -> None:
        """The product of many rows."""
        name = self._real(x).name
        rows = self.layout.rows(self._real(x))
        halves = self.memory.rows(f"{name} in halves", rows, 2 * (-(-x.width // 64) * 64))
        scales = self.memory.rows(f"{name}, scales", 1, 4 * rows)
        if name not in self._halved:
            source = self._at(x)
            arguments = [
                source.address,
                source.stride,
                x.width,
                halves.address,
                halves.stride,
                scales.address,
            ]
            self._emit(self._kernel("quantize", "to_halves", 256), (1, n), arguments, 64)
            self._halved.add(name)
        constants: dict[str, int | str] = {
            "FORMAT": matrix.weight.format.name,
            "BIAS": int(bool(biases)),
            "ACCUMULATE": int(accumulate),
        }
        what = self._kernel("tiled", "tiled_matmul", 256, **constants)
        arguments = [matrix.address, matrix.row_bytes, matrix.blocks, n_out, halves.address, halves.stride]
        arguments += [
            scales.address,
            n,
            self.memory.vector(*biases) if biases else 0,
            out.address,
            out.stride,
        ]
        label = f"{matrix.weight.format.name} {n_out}x{matrix.width}"
        self._emit(what, (-(-n // 128), -(-n_out // 128)), arguments, 65536, label)

    def _float_matmul(self, op: JoinedMatMul) -> None:
        matrix, out, x = self.matrices[id(op.weights[0])], self._at(op.outs[0]), self._at(op.x)
        n_out, n = sum(w.shape[0] for w in op.weights), self._n[op.outs[0].wanted]
        if matrix.width % 4:
            raise UnsupportedModel(
                f"the CUDA machine needs float matrices of widths divisible by 4, not {matrix.width}"
            )
        together = 1 if n == 1 else 2 if n == 2 else 4 if n <= 4 else 8
        constants = {"BIAS": int(bool(op.biases)), "ACCUMULATE": int(op.accumulate), "N": together}
        what = self._kernel("floats", "float_matmul", 256, FLOAT=matrix.float_kind, **constants)
        bias = self.memory.vector(*op.biases) if op.biases else 0
        arguments = [matrix.address, matrix.row_bytes, matrix.width, n_out, x.address, x.stride, n, bias]
        grid = (-(-n_out // 8), -(-n // together))
        self._emit(what, grid, [*arguments, out.address, out.stride], 0, f"{n_out}x{matrix.width}")
        self._wrote(*op.outs)

    # Attention

    def _angles(self, op: ops.RoPE) -> Region:
        """Cosines and sines for the step's rows, made once for all that turn alike."""
        pairs, key = len(op.inv_freq), str(hash(turn_key(op)))
        angles = self.memory.rows(f"angles {key}", self.layout.max_rows, 8 * pairs)
        if key not in self._turned:
            self._turned.add(key)
            address, stride = self.memory.vector(op.inv_freq), 0
            if op.longer:
                region = self.memory.rows(f"frequencies {key}", self.layout.max_rows, 4 * pairs)
                self.by_length[hash(key)] = op, region
                address, stride = region.address, region.stride
            arguments = [self.inputs.positions, address, stride, pairs, float(op.attention_factor)]
            what, grid = self._kernel("rotate", "rotations", 128), (-(-pairs // 128), self._n[False])
            self._emit(what, grid, [*arguments, angles.address, angles.stride])
        return angles

    def _rope(self, op: ops.RoPE) -> None:
        angles, x = self._angles(op), self._at(op.x)
        head_dim, warps = op.x.width // op.heads, PREPARE_WARPS
        what = self._kernel(
            "rotate", "rope", 32 * warps, HD=head_dim, WARPS=warps, INTERLEAVED=int(op.interleaved)
        )
        arguments = [x.address, x.stride, op.heads, op.start, len(op.inv_freq), angles.address, angles.stride]
        self._emit(what, (-(-op.heads // warps), self._n[op.x.wanted]), arguments, 4 * warps * head_dim)
        self._wrote(op.x)

    def _prepare(self, op: PreparedAttend) -> None:
        turn = (self._angles(op.rope), op.rope) if op.rope else None
        self._into_cache(op.attend, op.attend.heads, op.q_norm, op.k_norm, turn)
        self._wrote(op.attend.q, op.attend.k)

    def _append(self, op: ops.Attend) -> None:
        if op.append:
            if op.value_dim != op.head_dim:
                raise UnsupportedModel("the CUDA machine has no latent attention yet")
            self._into_cache(op, 0, None, None, None)

    def _into_cache(
        self,
        op: ops.Attend,
        heads: int,
        q_norm: ops.RMSNorm | None,
        k_norm: ops.RMSNorm | None,
        turn: tuple[Region, ops.RoPE] | None,
    ) -> None:
        norms = [0 if n is None else 1 if len(n.weight) == op.head_dim else 2 for n in (q_norm, k_norm)]
        what = self._kernel(
            "rotate",
            "prepare",
            32 * PREPARE_WARPS,
            HD=op.head_dim,
            DP=padded(op.head_dim),
            KV=self.layout.cache_bits,
            PAGE=self.layout.page_size.bit_length() - 1,
            WARPS=PREPARE_WARPS,
            Q_NORM=norms[0],
            K_NORM=norms[1],
            ROPE=int(turn is not None),
            INTERLEAVED=int(turn is not None and turn[1].interleaved),
            INVERSE_HD=1 / op.head_dim,
        )
        keys, values = self.cache(op.layer, self.program.cache_layers[op.layer])
        arguments: list[int | float] = []
        for b in (op.q, op.k, op.v):
            arguments += [self._at(b).address, self._at(b).stride]
        arguments += [self.memory.vector(n.weight) if n else 0 for n in (q_norm, k_norm)]
        eps = next((n.eps for n in (q_norm, k_norm) if n), 1.0)
        arguments += [float(eps), len(turn[1].inv_freq) if turn else 0]
        arguments += [turn[0].address, turn[0].stride] if turn else [0, 0]
        inputs = self.inputs
        arguments += [keys.address, values.address, inputs.table, inputs.table_stride, inputs.sequences]
        arguments += [inputs.positions, heads, op.kv_heads]
        grid = -(-(heads + 2 * op.kv_heads) // PREPARE_WARPS), self._n[False]
        self._emit(what, grid, arguments, 4 * PREPARE_WARPS * padded(op.head_dim))

    def _attend(self, i: int, op: ops.Attend) -> None:
        layout, n = self.layout, self._n[False]
        group, dims = op.heads // op.kv_heads, padded(op.head_dim)
        if self._one_prompt and self._suits_prompts(op):
            self._attend_prompt(op)
            return
        lanes = min(32, 1 << (dims // 8 - 1).bit_length())
        vectors = -(-dims // (8 * lanes))
        most = max(1, 4 // vectors)
        together = max(g for g in range(1, most + 1) if group % g == 0)
        chunks = group // together
        emits = op.head_dim == dims and op.head_dim % 32 == 0 and n <= FEW and self._only_products(i, op.out)
        spans = 1 if n > 4 * self.device.multiprocessors // op.heads else SPANS
        constants: dict[str, int] = {
            "G": together,
            "HD": op.head_dim,
            "DP": dims,
            "LANES": lanes,
            "LANE_BITS": lanes.bit_length() - 1,
            "VEC": vectors,
            "U": 4 if vectors == 1 and layout.cache_bits == 16 else 2 if vectors <= 2 else 1,
            "KV": layout.cache_bits,
            "WARPS": ATTEND_WARPS,
            "CHUNKS": chunks,
            "PAGE": layout.page_size.bit_length() - 1,
            "SPAN": SPAN,
            "SOFTCAP": int(op.softcap > 0),
            "SINKS": int(op.sinks is not None),
            "WINDOW": int(op.window > 0),
            "EMIT": int(emits),
        }
        what = self._kernel("attention", "attend", 32 * ATTEND_WARPS, **constants)
        what = replace(what, resident=4)
        keys, values = self.cache(op.layer, self.program.cache_layers[op.layer])
        blocks = op.kv_heads * chunks
        few = max(
            1, 4 * self.device.multiprocessors // op.heads
        )  # rows, if their contexts are cut into spans
        room = min(few, layout.max_rows) * op.heads * SPANS * (dims + 4) * 4
        partials = self.memory.rows(f"spans {op.heads} {dims}", 1, room).address
        counters = self.memory.rows(f"counters {blocks}", 1, 4 * layout.max_rows * blocks).address
        q, out, inputs = self._at(op.q), self._at(op.out), self.inputs
        codes = self._codes(self._real(op.out)) if emits else Region(0, 0)
        cap = op.softcap or 1.0
        arguments: list[int | float] = [q.address, q.stride, keys.address, values.address, inputs.table]
        arguments += [inputs.table_stride, inputs.sequences, inputs.positions]
        arguments += [op.scale / cap if op.softcap else op.scale * LOG2_E, cap * LOG2_E, op.window]
        arguments += [0 if op.sinks is None else self.memory.vector(self._log2_sinks(op)), partials, counters]
        arguments += [out.address, out.stride, codes.address, codes.stride, op.heads, op.kv_heads]
        shared = max(4 * ATTEND_WARPS * together * (dims + 2) + 16, together * (8 * SPANS + 4 * dims))
        self._emit(what, (blocks, spans, n), arguments, shared)
        self._wrote(op.out)
        if emits:
            self._coded[self._real(op.out).name] = Coded(codes)

    def _suits_prompts(self, op: ops.Attend) -> bool:
        plain = not op.softcap and op.sinks is None and self.layout.cache_bits == 16
        return plain and op.head_dim in (64, 128) and self.layout.page_size == 64

    def _attend_prompt(self, op: ops.Attend) -> None:
        keys, values = self.cache(op.layer, self.program.cache_layers[op.layer])
        q, out, inputs, n = self._at(op.q), self._at(op.out), self.inputs, self._n[False]
        constants = {"HD": op.head_dim, "GROUP": op.heads // op.kv_heads, "WINDOW": int(op.window > 0)}
        what = self._kernel("prompt_attention", "attend_prompt", 128, **constants)
        arguments: list[int | float] = [q.address, q.stride, keys.address, values.address, inputs.table]
        arguments += [inputs.table_stride, inputs.sequences, inputs.positions, op.scale * LOG2_E, op.window]
        arguments += [out.address, out.stride, n, op.kv_heads]
        self._emit(what, (-(-n // 64), op.heads), arguments, 512 * op.head_dim)
        self._wrote(op.out)

    def _log2_sinks(self, op: ops.Attend) -> np.ndarray:
        assert op.sinks is not None
        return self._scaled_sinks.setdefault(id(op), op.sinks * np.float32(LOG2_E))

    # The rest

    def _pointwise(self, op: FusedOp) -> None:
        def each(
            name: str, width: int, arguments: Sequence[int | float], out: ops.Buffer, **constants: int
        ) -> None:
            what = self._kernel("pointwise", name, 256, **constants)
            self._emit(what, (-(-width // 256), self._n[out.wanted]), arguments)
            self._wrote(out)

        match op:
            case ops.GatedActivation():
                gate, up, out = self._at(op.gate), self._at(op.up).columns(4 * op.up_start), self._at(op.out)
                regions = [gate.address, gate.stride, up.address, up.stride, out.address, out.stride]
                arguments = [*regions, op.gate.width, float(op.scale)]
                each("gated_activation", op.gate.width, arguments, op.out, KIND=ACTIVATIONS[op.kind])
            case ops.Activation():
                x, out = self._at(op.x), self._at(op.out)
                arguments = [x.address, x.stride, out.address, out.stride, op.x.width]
                each("activation", op.x.width, arguments, op.out, KIND=ACTIVATIONS[op.kind])
            case ops.SigmoidGate():
                gate, x = self._at(op.gate), self._at(op.x)
                arguments = [gate.address, gate.stride, x.address, x.stride, op.x.width]
                narrow = int(op.gate.width == 1 and op.x.width > 1)
                each("sigmoid_gate", op.x.width, arguments, op.x, NARROW=narrow)
            case ops.Add():
                x, out = self._at(op.x), self._at(op.out)
                arguments = [x.address, x.stride, out.address, out.stride, op.x.width]
                each("add", op.x.width, [*arguments, float(op.scale), float(op.keep)], op.out)
            case ops.SoftCap():
                x = self._at(op.x)
                each("soft_cap", op.x.width, [x.address, x.stride, op.x.width, float(op.cap)], op.x)
            case ops.GrowQueries():
                q = self._at(op.q)
                arguments = [
                    q.address,
                    q.stride,
                    op.q.width,
                    self.inputs.positions,
                    float(op.beta),
                    op.length,
                ]
                what = self._kernel("rotate", "grow_queries", 256)
                self._emit(what, (-(-op.q.width // 256), self._n[op.q.wanted]), arguments)
                self._wrote(op.q)
            case _:
                raise unsupported(op)


def padded(head_dim: int) -> int:
    """Dimensions of a head in the cache."""
    return -(-head_dim // 8) * 8


SUPPORTED = (
    ops.Embed,
    ops.RMSNorm,
    ops.LayerNorm,
    ops.MatMul,
    ops.RoPE,
    ops.GrowQueries,
    ops.Attend,
    ops.GatedActivation,
    ops.SigmoidGate,
    ops.Activation,
    ops.Add,
    ops.SelectRows,
    ops.SoftCap,
)


def unsupported(op: object) -> UnsupportedModel:
    return UnsupportedModel(f"the CUDA machine cannot run this model: it has no {type(op).__name__} yet")


def check_supported(program: ops.Program) -> None:
    """Raise UnsupportedModel, naming the op, for a program that the card cannot run yet."""
    for op in program.ops:
        weight = op.weight if isinstance(op, ops.MatMul) else op.table if isinstance(op, ops.Embed) else None
        if weight is not None and not weight.format.is_float and weight.format.name not in RAW_WORDS:
            raise UnsupportedModel(
                f"the CUDA machine cannot run this model: it has no {weight.format.name} yet"
            )
    for op in program.ops:
        if not isinstance(op, SUPPORTED):
            raise unsupported(op)
        if isinstance(op, ops.Attend) and op.value_dim != op.head_dim:
            raise UnsupportedModel("the CUDA machine cannot run this model: it has no latent attention yet")


def weight_groups(found: Sequence[FusedOp]) -> list[tuple[QTensor, ...]]:
    """The matrices that products and look-ups read; those of a group must lie one behind the other."""
    groups: list[tuple[QTensor, ...]] = []
    seen: set[int] = set()
    for op in found:
        match op:
            case JoinedMatMul():
                group: tuple[QTensor, ...] = op.weights
            case GatedMatMul():
                group = (op.gate, op.up)
            case ops.Embed():
                group = (op.table,)
            case _:
                continue
        if not any(id(w) in seen for w in group):
            groups.append(group)
            seen |= {id(w) for w in group}
    return groups
