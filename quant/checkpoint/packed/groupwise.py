"""Weights on a grid of integers: groups of codes with a scale, and a zero point or an offset."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..lazy_rows import Index
from .bit_packing import encode_blocks
from .lossless import encode_floats, formats_of_products, formats_of_sums, in_f16, witnesses_of_integers
from .packed_weight import Found

BLOCK = 32  # codes that share a scale in the formats of GGUF that are used here


@dataclass(frozen=True)
class Groups:
    """Which scale each input has: `of_input` int [width] are the numbers of groups."""

    of_input: np.ndarray

    @cached_property
    def of_block(self) -> np.ndarray | None:
        """The group of each block, int [width / 32]; None where one has inputs of several, or is not full."""
        if len(self.of_input) % BLOCK:
            return None
        blocks = self.of_input.reshape(-1, BLOCK)
        return blocks[:, 0] if (blocks == blocks[:, :1]).all() else None


def regular_groups(width: int, n_groups: int, size: int) -> Groups:
    """Groups of `size` neighbours, the last one maybe smaller."""
    assert (n_groups - 1) * size < width <= n_groups * size
    return Groups(np.arange(width) // size)


@dataclass(frozen=True)
class IntegerGrid:
    """W[o, i] = scale[o, g] · (code[o, i] - zero[o, g]), g the group of input i.

    `codes` gives uint8 [n, width] of the rows at an index, 0 … 2^bits - 1; `scales` float32 and `zeros` uint8
    [n, groups]. `zeros` may give one more than the largest code. Where it is None it is 2^(bits-1).
    """

    name: str
    shape: tuple[int, ...]
    bits: int
    groups: Groups
    codes: Callable[[Index], np.ndarray]
    scales: Callable[[Index], np.ndarray]
    zeros: Callable[[Index], np.ndarray] | None
    sources: tuple[np.ndarray, ...]

    def found(self) -> Found:
        every = slice(0, math.prod(self.shape[:-1]), 1)
        scales, middle, top = self.scales(every), 1 << self.bits - 1, (1 << self.bits) - 1
        zeros = None if self.zeros is None else self.zeros(every)
        if zeros is not None and (zeros == middle).all():
            zeros = None
        largest = middle if zeros is None else int(max(zeros.max(), top - zeros.min()))
        blocks: tuple[str, ...] = ()
        if self.groups.of_block is not None and in_f16(scales):
            if zeros is None:
                blocks = ("Q4_0" if self.bits == 4 else "Q8_0",)
            if self.bits == 4:
                minima_fit = in_f16(scales * (np.float32(middle) if zeros is None else zeros))
                blocks += ("Q4_1", "Q5_0") if minima_fit else ("Q5_0",)
        witnesses = witnesses_of_integers(largest)

        def floats() -> tuple[str, ...]:
            return formats_of_products(self.scales(every), witnesses)

        return Found(self.name, self.shape, blocks, floats, self._encode, self.sources)

    def _encode(self, index: Index, form: str) -> np.ndarray:
        codes, scales = self.codes(index), self.scales(index)
        zeros = np.array([[1 << self.bits - 1]], np.uint8) if self.zeros is None else self.zeros(index)
        zeros = np.broadcast_to(zeros, scales.shape)
        of_block = self.groups.of_block
        if of_block is None or form in ("BF16", "F16", "F32"):
            of_input = self.groups.of_input
            values = codes.astype(np.float32)
            values -= zeros[:, of_input]
            values *= scales[:, of_input]
            return encode_floats(values, form)
        d = scales[:, of_block]
        if form in ("Q4_0", "Q8_0"):
            return encode_blocks(codes, form, d)
        offsets = zeros[:, of_block]
        if form == "Q4_1":
            return encode_blocks(codes, form, d, -d * offsets)
        # Q5_0: the distance from a zero point of 0 … 16 to a code of 0 … 15 is within -16 … 15.
        shifts = (16 - offsets.astype(np.int16)).astype(np.uint8)
        codes = (codes.reshape(*d.shape, BLOCK) + shifts[..., None]).reshape(codes.shape)
        return encode_blocks(codes, form, d)


@dataclass(frozen=True)
class AffineGrid:
    """W[o, i] = scale[o, g] · code[o, i] + offset[o, g], otherwise as `IntegerGrid`."""

    name: str
    shape: tuple[int, ...]
    bits: int
    groups: Groups
    codes: Callable[[Index], np.ndarray]
    scales: Callable[[Index], np.ndarray]
    offsets: Callable[[Index], np.ndarray]
    sources: tuple[np.ndarray, ...]

    def found(self) -> Found:
        every = slice(0, math.prod(self.shape[:-1]), 1)
        scales, offsets = self.scales(every), self.offsets(every)
        blocks: tuple[str, ...] = ()
        if self.bits <= 5 and self.groups.of_block is not None and in_f16(scales) and in_f16(offsets):
            blocks = ("Q4_1", "Q5_1") if self.bits <= 4 else ("Q5_1",)

        def floats() -> tuple[str, ...]:
            return formats_of_sums(self.scales(every), (1 << self.bits) - 1, self.offsets(every))

        return Found(self.name, self.shape, blocks, floats, self._encode, self.sources)

    def _encode(self, index: Index, form: str) -> np.ndarray:
        codes, scales, offsets = self.codes(index), self.scales(index), self.offsets(index)
        of_block = self.groups.of_block
        if of_block is not None and form in ("Q4_1", "Q5_1"):
            return encode_blocks(codes, form, scales[:, of_block], offsets[:, of_block])
        of_input = self.groups.of_input
        values = codes.astype(np.float32)
        values *= scales[:, of_input]
        values += offsets[:, of_input]
        return encode_floats(values, form)
