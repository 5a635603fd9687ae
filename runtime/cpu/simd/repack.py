"""The compiled part of `panels.repack`: rows gathered into panels at the speed of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types

from ....quant.jit.decorators import jit, kernel
from ....quant.jit.simd.memory import as_pointer, prefetch
from ....quant.jit.simd.vectors import instruction
from .panels import GATHER, PLANE

CHUNK = 16  # elements of a row at a time: whole cache lines, since rows may map to the same cache sets


def _transpose(bits: int) -> Any:
    """An intrinsic that transposes a 4 x 4 block of elements of `bits` bits from `source` to `target`."""
    element = ir.IntType(bits)
    vector = ir.VectorType(element, 4)
    index = ir.VectorType(ir.IntType(32), 4)

    @instruction(types.none, types.int64, types.int64, types.int64, types.int64)
    def transpose(builder: Any, source: Any, row_bytes: Any, target: Any, stride: Any) -> None:
        def shuffle(a: Any, b: Any, *order: int) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(index, list(order)))

        def at(base: Any, step: Any, i: int) -> Any:
            address = builder.add(base, builder.mul(step, ir.Constant(ir.IntType(64), i)))
            return builder.inttoptr(address, vector.as_pointer())

        rows = [builder.load(at(source, row_bytes, i), align=1) for i in range(4)]
        low = [shuffle(rows[i], rows[i + 1], 0, 4, 1, 5) for i in (0, 2)]
        high = [shuffle(rows[i], rows[i + 1], 2, 6, 3, 7) for i in (0, 2)]
        for i, (a, b) in enumerate((low, high)):
            builder.store(shuffle(a, b, 0, 1, 4, 5), at(target, stride, 2 * i), align=1)
            builder.store(shuffle(a, b, 2, 3, 6, 7), at(target, stride, 2 * i + 1), align=1)

    return transpose


def _copy(bits: int) -> Any:
    """An intrinsic that copies one element of `bits` bits."""

    @instruction(types.none, types.int64, types.int64)
    def copy(builder: Any, source: Any, target: Any) -> None:
        pointer = ir.IntType(bits).as_pointer()
        value = builder.load(builder.inttoptr(source, pointer), align=1)
        builder.store(value, builder.inttoptr(target, pointer), align=1)

    return copy


def _gather_small_plane(size: int) -> Any:
    """A function that gathers a block's plane with fewer than four elements, of `size` bytes each."""
    copy = _copy(8 * size)

    @jit
    def gather_small_plane(a: Any, plane: Any, source: int, target: int) -> None:
        row_bytes = a.row_bytes
        for _ in range(plane.count):
            for row in range(0, a.lanes, 4):
                from_ = source + row * row_bytes
                copy(from_, target)
                copy(from_ + row_bytes, target + size)
                copy(from_ + 2 * row_bytes, target + 2 * size)
                copy(from_ + 3 * row_bytes, target + 3 * size)
                target += 4 * size
            source += size

    return gather_small_plane


def _gather_large_plane(size: int) -> Any:
    """A function that gathers a block's plane with four or more elements, of `size` bytes each; it prefetches
    as many bytes from address `ahead` on."""
    transpose, copy = _transpose(8 * size), _copy(8 * size)

    @jit
    def gather_large_plane(a: Any, plane: Any, source: int, target: int, ahead: int) -> None:
        row_bytes, stride, whole = a.row_bytes, a.lanes * size, plane.count // 4 * 4
        for start in range(0, whole, CHUNK):
            end = min(start + CHUNK, whole)
            for line in range(start * stride, end * stride, 64):
                prefetch(ahead + line)
            for row in range(0, a.lanes, 4):
                from_, to = source + row * row_bytes, target + row * size
                for i in range(start, end, 4):
                    transpose(from_ + i * size, row_bytes, to + i * stride, stride)
        for i in range(whole, plane.count):
            for row in range(a.lanes):
                copy(source + row * row_bytes + i * size, target + i * stride + row * size)

    return gather_large_plane


_small_1, _small_2, _small_4 = _gather_small_plane(1), _gather_small_plane(2), _gather_small_plane(4)
_large_2, _large_4 = _gather_large_plane(2), _gather_large_plane(4)


@jit
def _regrouped(word: Any) -> Any:
    """Move bit 4j + b of a uint32 to bit 8b + j, see `panels.regroup_high_bits`."""
    out = np.uint32(0)
    for b in range(4):
        x = (word >> np.uint32(b)) & np.uint32(0x11111111)
        x = (x | x >> np.uint32(3)) & np.uint32(0x03030303)
        x = (x | x >> np.uint32(6)) & np.uint32(0x000F000F)
        x = (x | x >> np.uint32(12)) & np.uint32(0x000000FF)
        out |= x << np.uint32(8 * b)
    return out


@kernel
def gather_rows(arguments: int, unused_step: int, unused_thread: int) -> None:
    """Gather rows into whole panels; `arguments` is the address of a GATHER record. Runs on one thread."""
    a = carray(as_pointer(arguments), 1, GATHER)[0]
    planes = carray(as_pointer(a.planes), a.n_planes, PLANE)
    for panel in range(a.n_panels):
        rows = a.data + panel * a.lanes * a.row_bytes
        target = a.out + panel * a.panel_bytes
        next_panel = rows + a.lanes * a.row_bytes - target  # of the file, from each byte of this one on
        for block in range(a.n_blocks):
            for i in range(a.n_planes):
                plane = planes[i]
                source = rows + block * a.type_size + plane.offset
                small = plane.count < 4
                if plane.size == 4:
                    if small:
                        _small_4(a, plane, source, target)
                    else:
                        _large_4(a, plane, source, target, target + next_panel)
                elif plane.size == 1:
                    _small_1(a, plane, source, target)
                elif small:
                    _small_2(a, plane, source, target)
                else:
                    _large_2(a, plane, source, target, target + next_panel)
                n_elements = plane.count * a.lanes
                if plane.regroup:
                    words = carray(as_pointer(target), n_elements, np.uint32)
                    for k in range(n_elements):
                        words[k] = _regrouped(words[k])
                target += n_elements * plane.size
