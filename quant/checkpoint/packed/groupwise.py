"""Group-wise quantised weights: integer codes in groups of inputs that share a scale.

Symmetric and asymmetric packings (GPTQ, AWQ, compressed-tensors) have a zero point for each group, MLX an
offset. Where a group is one or several blocks of 32 inputs, some GGUF type has the same levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..lazy_rows import Index
from .bit_packing import pack_blocks
from .lossless import (
    encode_floats,
    extremes_of_integers,
    fits_f16,
    float_formats_of_products,
    float_formats_of_sums,
)
from .packed_weight import PackedWeight

BLOCK = 32  # codes a block in Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0
Rows = Callable[[Index], np.ndarray]


@dataclass(frozen=True)
class Groups:
    """The group of each input: `of_input` int [width] are group numbers."""

    of_input: np.ndarray

    @cached_property
    def of_block(self) -> np.ndarray | None:
        """The group of each block, int [width / 32]; None if a block is not full, or has several groups."""
        if len(self.of_input) % BLOCK:
            return None
        blocks = self.of_input.reshape(-1, BLOCK)
        return blocks[:, 0] if (blocks == blocks[:, :1]).all() else None


def regular_groups(width: int, n_groups: int, size: int) -> Groups:
    """Groups of `size` neighbouring inputs; the last group may be smaller."""
    assert (n_groups - 1) * size < width <= n_groups * size
    return Groups(np.arange(width) // size)


@dataclass(frozen=True)
class GroupwiseCodes:
    """The codes and scales of a weight of `shape` (…, outputs, inputs).

    `codes` gives uint8 [n, width] for the rows at an index, 0 … 2^bits - 1; `scales` gives float32
    [n, groups]. `sources` are the arrays of the file that these, and zero points or offsets, are read from.
    """

    name: str
    shape: tuple[int, ...]
    bits: int
    groups: Groups
    codes: Rows
    scales: Rows
    sources: tuple[np.ndarray, ...]

    @property
    def all_rows(self) -> slice:
        return slice(0, math.prod(self.shape[:-1]), 1)


def with_zero_points(weight: GroupwiseCodes, zeros: Rows | None) -> PackedWeight:
    """W[o, i] = scale[o, g] · (code[o, i] - zero[o, g]), where g is the group of input i.

    `zeros` gives unsigned integers [n, groups] up to 2^bits; None stands for the middle, 2^(bits-1),
    everywhere.
    """
    rows = weight.all_rows
    scales, middle, top = weight.scales(rows), 1 << weight.bits - 1, (1 << weight.bits) - 1
    zero_points = None if zeros is None else zeros(rows)
    if zero_points is not None and (zero_points == middle).all():
        zero_points = None
    largest = middle if zero_points is None else int(max(zero_points.max(), top - zero_points.min()))
    block_formats: tuple[str, ...] = ()
    if weight.groups.of_block is not None and fits_f16(scales):
        if zero_points is None:
            block_formats = ("Q4_0" if weight.bits == 4 else "Q8_0",)
        if weight.bits == 4:
            minimums = scales * (np.float32(middle) if zero_points is None else zero_points)
            block_formats += ("Q4_1", "Q5_0") if fits_f16(minimums) else ("Q5_0",)
    extremes = extremes_of_integers(largest)

    def float_formats() -> tuple[str, ...]:
        return float_formats_of_products(weight.scales(rows), extremes)

    def encode(index: Index, form: str) -> np.ndarray:
        return _encode_with_zero_points(weight, zeros, index, form)

    return PackedWeight(weight.name, weight.shape, block_formats, float_formats, encode, weight.sources)


def _encode_with_zero_points(
    weight: GroupwiseCodes, zeros: Rows | None, index: Index, form: str
) -> np.ndarray:
    codes, scales = weight.codes(index), weight.scales(index)
    zero_points = np.array([[1 << weight.bits - 1]], np.uint8) if zeros is None else zeros(index)
    zero_points = np.broadcast_to(zero_points, scales.shape)
    of_block = weight.groups.of_block
    if of_block is None or form in ("BF16", "F16", "F32"):
        of_input = weight.groups.of_input
        values = codes.astype(np.float32)
        values -= zero_points[:, of_input]
        values *= scales[:, of_input]
        return encode_floats(values, form)
    d = scales[:, of_block]
    if form in ("Q4_0", "Q8_0"):
        return pack_blocks(codes, form, d)
    zero_points = zero_points[:, of_block]
    if form == "Q4_1":
        return pack_blocks(codes, form, d, -d * zero_points)
    # Q5_0: codes 0 … 15 less a zero point 0 … 16 are -16 … 15.
    shifts = (16 - zero_points.astype(np.int16)).astype(np.uint8)
    codes = (codes.reshape(*d.shape, BLOCK) + shifts[..., None]).reshape(codes.shape)
    return pack_blocks(codes, form, d)


def with_offsets(weight: GroupwiseCodes, offsets: Rows) -> PackedWeight:
    """W[o, i] = scale[o, g] · code[o, i] + offset[o, g], where g is the group of input i.

    `offsets` gives float32 [n, groups].
    """
    rows = weight.all_rows
    scales, minimums = weight.scales(rows), offsets(rows)
    block_formats: tuple[str, ...] = ()
    fits_blocks = weight.bits <= 5 and weight.groups.of_block is not None
    if fits_blocks and fits_f16(scales) and fits_f16(minimums):
        block_formats = ("Q4_1", "Q5_1") if weight.bits <= 4 else ("Q5_1",)

    def float_formats() -> tuple[str, ...]:
        return float_formats_of_sums(weight.scales(rows), (1 << weight.bits) - 1, offsets(rows))

    def encode(index: Index, form: str) -> np.ndarray:
        codes, scales, minimums = weight.codes(index), weight.scales(index), offsets(index)
        of_block = weight.groups.of_block
        if of_block is not None and form in ("Q4_1", "Q5_1"):
            return pack_blocks(codes, form, scales[:, of_block], minimums[:, of_block])
        of_input = weight.groups.of_input
        values = codes.astype(np.float32)
        values *= scales[:, of_input]
        values += minimums[:, of_input]
        return encode_floats(values, form)

    return PackedWeight(weight.name, weight.shape, block_formats, float_formats, encode, weight.sources)
