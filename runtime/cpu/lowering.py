"""From a Program to the instructions of the CPU machine: memory, argument records, barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.jit import Kernel
from ...quant.panels import aligned_empty, repack, repacked_bytes
from ...quant.simd import LANES
from .. import ops
from . import attention, matmul, pointwise
from .records import INSTRUCTION

REPACK_BYTES = 2 << 20  # of a weight at once

# How threads share an instruction's work. Two instructions that give every thread the same rows need no
# barrier between them, since no thread reads what another wrote.
ROWS, WANTED_ROWS, OTHER = "rows", "wanted rows", "other"


@dataclass(frozen=True)
class Region:
    """A matrix in memory: the address of its first element and the bytes from row to row."""

    name: str
    address: int
    stride: int


@dataclass
class Instructions:
    """The finished list, and everything that its addresses point into."""

    table: np.ndarray
    keep: list[np.ndarray]
    buffers: dict[str, np.ndarray]  # by the names of the program's buffers, float32 [rows, padded width]


@dataclass
class _Access:
    reads: set[str]
    writes: set[str]
    sharing: str


@dataclass
class Lowering:
    """Translates one program; `instructions()` does it."""

    program: ops.Program
    n_pages: int
    page_size: int
    n_threads: int
    max_rows: int
    max_wanted: int
    cache_type: str  # "F16" or "F32"
    release: Callable[[QTensor], None] | None = None
    progress: Callable[[str, int, int], None] | None = None
    _keep: list[np.ndarray] = field(default_factory=list)
    _regions: dict[str, Region] = field(default_factory=dict)
    _arrays: dict[str, np.ndarray] = field(default_factory=dict)
    _panels: dict[int, np.ndarray] = field(default_factory=dict)  # by the tensor's identity
    _stopped: bool = False
    _kernels: list[tuple[Kernel, np.ndarray]] = field(default_factory=list)
    _barriers: list[bool] = field(default_factory=list)
    _pending: list[_Access] = field(default_factory=list)
    _quantized: set[str] = field(default_factory=set)
    _angles: dict[bytes, tuple[Region, Region]] = field(default_factory=dict)

    def instructions(self) -> Instructions:
        """Lower every op in order. Weights are repacked on all threads while kernels are compiled."""
        for buffer in self.program.buffers:
            self._buffer(buffer)
        weights = {id(op.weight): op.weight for op in self.program.ops if isinstance(op, ops.MatMul)}
        self._lay_out(weights.values())
        pool = ThreadPoolExecutor(self.n_threads)
        try:
            repacking = {pool.submit(self._repack, w): w.n_bytes for w in weights.values()}
            for op in self.program.ops:
                self._lower(op)
            self._barriers[-1] = True  # whoever leads returns when all are done
            table = self._table()
            done = 0
            for future in as_completed(repacking):
                future.result()
                done += repacking[future]
                self._report("repacking weights", done, sum(repacking.values()))
        finally:
            self._stopped = True
            pool.shutdown(cancel_futures=True)
        buffers = {b.name: self._arrays[b.name] for b in self.program.buffers}
        return Instructions(table, self._keep, buffers)

    def _table(self) -> np.ndarray:
        """INSTRUCTION [n]; compiles the kernels that are not in the cache."""
        kernels = {id(kernel): kernel for kernel, _ in self._kernels}
        for i, kernel in enumerate(kernels.values()):
            self._report("compiling kernels", i, len(kernels))
            kernel.address  # noqa: B018
        table = np.zeros(len(self._kernels), INSTRUCTION)
        for row, (kernel, arguments), barrier in zip(table, self._kernels, self._barriers, strict=True):
            row["kernel"], row["arguments"] = kernel.address, arguments.ctypes.data
            row["barrier"] = barrier
        return table

    def _report(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)

    # --- memory ------------------------------------------------------------------------------------------

    def _memory(self, name: str, rows: int, row_bytes: int) -> Region:
        """Zeroed rows that start at 64-byte boundaries."""
        stride = -(-row_bytes // 64) * 64
        memory = _aligned_zeros(rows * stride).reshape(rows, stride)
        self._keep.append(memory)
        self._arrays[name] = memory.view(np.float32)
        region = self._regions[name] = Region(name, memory.ctypes.data, stride)
        return region

    def _buffer(self, buffer: ops.Buffer) -> Region:
        rows = self.max_wanted if buffer.wanted else self.max_rows
        return self._memory(buffer.name, rows, 4 * buffer.width)

    def _vector(self, values: np.ndarray) -> int:
        """The address of float32 values, padded with zeros to whole vectors of the widest kind."""
        memory = _aligned_zeros(-(-values.size // 16) * 64).view(np.float32)
        memory[: values.size] = values
        self._keep.append(memory)
        return memory.ctypes.data

    def _lay_out(self, weights: Iterable[QTensor]) -> None:
        """Give every weight its panels in one piece of memory, which the system can back by huge pages."""
        sizes = [(w, repacked_bytes(w, LANES)) for w in weights]
        arena = aligned_empty(sum(-(-size // 64) * 64 for _, size in sizes))
        self._keep.append(arena)
        for weight, size in sizes:
            self._panels[id(weight)], arena = arena[:size], arena[-(-size // 64) * 64 :]

    def _repack(self, weight: QTensor) -> None:
        """Fill the weight's panels part by part, so that file and panels are never both whole in memory."""
        (n_rows, row_bytes), panels = weight.data.shape, self._panels[id(weight)]
        rows = max(1, REPACK_BYTES // (LANES * row_bytes)) * LANES
        for first in range(0, n_rows, rows):
            data = weight.data[first : first + rows]
            part = replace(weight, shape=(len(data), weight.shape[1]), data=data)
            start = first * row_bytes
            repack(part, LANES, panels[start : start + repacked_bytes(part, LANES)])
            if self.release is not None:
                self.release(part)
            if self._stopped:  # interrupted: nobody waits for the rest
                return

    # --- instructions ------------------------------------------------------------------------------------

    def _emit(
        self,
        kernel: Kernel,
        record: np.dtype,
        reads: list[Region],
        writes: list[Region],
        sharing: str,
        **values: Any,
    ) -> None:
        access = _Access({r.name for r in reads}, {r.name for r in writes}, sharing)
        if any(_conflict(before, access) for before in self._pending):
            self._barriers[-1] = True
            self._pending.clear()
        self._pending.append(access)
        self._quantized -= access.writes
        arguments = np.zeros(1, record)
        for name, value in values.items():
            arguments[name] = value
        self._keep.append(arguments)
        self._kernels.append((kernel, arguments))
        self._barriers.append(False)

    def _emit_rows(
        self, kernel: Kernel, out: ops.Buffer, x: ops.Buffer, y: ops.Buffer | None = None, **values: Any
    ) -> None:
        """A pointwise kernel on x (and y), row by row."""
        source, target = self._regions[x.name], self._regions[out.name]
        other = self._regions[y.name] if y else target
        self._emit(
            kernel,
            pointwise.POINTWISE,
            [source, other],
            [target],
            WANTED_ROWS if out.wanted else ROWS,
            x=source.address,
            x_stride=source.stride,
            y=other.address,
            y_stride=other.stride,
            out=target.address,
            out_stride=target.stride,
            width=x.width,
            groups=values.pop("groups", 1),
            on_wanted=out.wanted,
            **values,
        )

    def _lower(self, op: ops.Op) -> None:
        match op:
            case ops.Embed():
                pass  # looked up in the file by the machine: a handful of rows, not worth a second layout
            case ops.RMSNorm():
                weight = self._vector(op.weight)
                self._emit_rows(
                    pointwise.rms_norm, op.out, op.x, weight=weight, groups=op.groups, number=op.eps
                )
            case ops.MatMul():
                self._matmul(op)
            case ops.RoPE():
                self._rope(op)
            case ops.Attend():
                self._attend(op)
            case ops.GatedActivation():
                self._emit_rows(pointwise.GATES[op.kind], op.out, op.gate, op.up)
            case ops.Add():
                self._emit_rows(pointwise.add, op.out, op.x)
            case ops.SelectRows():
                source, target = self._regions[op.x.name], self._regions[op.out.name]
                self._emit(
                    pointwise.select_rows,
                    pointwise.POINTWISE,
                    [source],
                    [target],
                    OTHER,  # reads rows that other threads wrote
                    x=source.address,
                    x_stride=source.stride,
                    out=target.address,
                    out_stride=target.stride,
                    width=op.x.width,
                    on_wanted=True,
                )
            case ops.SoftCap():
                self._emit_rows(pointwise.soft_cap, op.x, op.x, number=op.cap)

    def _matmul(self, op: ops.MatMul) -> None:
        weight = op.weight
        panel_bytes = LANES * weight.data.shape[1]
        panels = self._panels[id(weight)].reshape(-1, panel_bytes)
        x = self._regions[op.x.name] if weight.format.is_float else self._quantize(op.x)
        out = self._regions[op.out.name]
        self._emit(
            matmul.MATMULS[weight.format.name],
            matmul.MATMUL,
            [x, out] if op.accumulate else [x],
            [out],
            OTHER,
            weights=panels.ctypes.data,
            n_panels=len(panels),
            panel_bytes=panel_bytes,
            n_blocks=weight.shape[1] // weight.format.block_size,
            width=weight.shape[1],
            x=x.address,
            x_stride=x.stride,
            out=out.address,
            out_stride=out.stride,
            bias=0 if op.bias is None else self._vector(op.bias),
            accumulate=op.accumulate,
            on_wanted=op.out.wanted,
        )

    def _quantize(self, x: ops.Buffer) -> Region:
        """The 8-bit form of a buffer's present contents, made once for all that read it."""
        name = f"{x.name}:int8"
        rows = self.max_wanted if x.wanted else self.max_rows
        region = self._regions.get(name)
        if region is None:
            region = self._memory(name, rows, matmul.quantized_row_bytes(x.width))
        if x.name not in self._quantized:
            source = self._regions[x.name]
            self._emit(
                matmul.quantize,
                matmul.QUANTIZE,
                [source],
                [region],
                WANTED_ROWS if x.wanted else ROWS,
                x=source.address,
                x_stride=source.stride,
                out=region.address,
                out_stride=region.stride,
                width=x.width,
                on_wanted=x.wanted,
            )
            self._quantized.add(x.name)
        return region

    def _rope(self, op: ops.RoPE) -> None:
        frequencies = np.ascontiguousarray(op.inv_freq, np.float32)
        key = frequencies.tobytes() + np.float64(op.attention_factor).tobytes()
        if key not in self._angles:
            n = len(self._angles)
            cos = self._memory(f"cos {n}", self.max_rows, 4 * frequencies.size)
            sin = self._memory(f"sin {n}", self.max_rows, 4 * frequencies.size)
            self._angles[key] = cos, sin
            self._emit(
                pointwise.angles,
                pointwise.POINTWISE,
                [],
                [cos, sin],
                ROWS,
                weight=self._vector(frequencies),
                n_angles=frequencies.size,
                cos=cos.address,
                sin=sin.address,
                angle_stride=cos.stride,
                number=op.attention_factor,
            )
        cos, sin = self._angles[key]
        x = self._regions[op.x.name]
        self._emit(
            pointwise.rope,
            pointwise.POINTWISE,
            [x, cos, sin],
            [x],
            ROWS,
            x=x.address,
            x_stride=x.stride,
            width=op.x.width,
            groups=op.heads,
            interleaved=op.interleaved,
            n_angles=frequencies.size,
            cos=cos.address,
            sin=sin.address,
            angle_stride=cos.stride,
        )

    def _attend(self, op: ops.Attend) -> None:
        padded = attention.padded(op.head_dim)
        size = 2 if self.cache_type == "F16" else 4
        pages = self.n_pages * op.kv_heads * self.page_size
        keys = self._memory(f"keys {op.layer}", 1, pages * op.head_dim * size)
        values = self._memory(f"values {op.layer}", 1, pages * padded * size)
        scratch = self._regions.get("attention scratch")
        if scratch is None or scratch.stride < 4 * (self.page_size + padded):
            scratch = self._memory("attention scratch", self.n_threads, 4 * (self.page_size + padded))
        q, k, v, out = (self._regions[b.name] for b in (op.q, op.k, op.v, op.out))
        arguments: dict[str, Any] = {
            name: getattr(region, part)
            for prefix, region in (("q", q), ("k", k), ("v", v), ("out", out), ("scratch", scratch))
            for name, part in ((prefix, "address"), (f"{prefix}_stride", "stride"))
        } | {
            "keys": keys.address,
            "values": values.address,
            "heads": op.heads,
            "kv_heads": op.kv_heads,
            "head_dim": op.head_dim,
            "padded_dim": padded,
            "window": op.window,
            "scale": op.scale,
            "softcap": op.softcap,
        }
        record = attention.ATTENTION
        self._emit(attention.STORES[self.cache_type], record, [k, v], [keys, values], ROWS, **arguments)
        self._emit(
            attention.ATTENDS[self.cache_type], record, [q, keys, values], [out, scratch], OTHER, **arguments
        )


def _conflict(before: _Access, after: _Access) -> bool:
    if before.sharing == after.sharing != OTHER:
        return False
    return bool(before.writes & (after.reads | after.writes) or before.reads & after.writes)


def _aligned_zeros(n_bytes: int) -> np.ndarray:
    """uint8 [n_bytes] at a 64-byte boundary, zeroed by the system page by page when first touched."""
    raw = np.zeros(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes]
