"""Integers of compressed-tensors, packed ("pack-quantized") or one a byte ("int-quantized"), and LLM.int8's.

    weight_packed       int32 [out, in · b / 32]      codes along the inputs, low first, each more by 2^(b-1)
    weight_shape        int64 [2]                     out, in
    weight              int8 [out, in]                or codes as they are
    weight_scale        float [out, groups]           one group: per output
    weight_zero_point   int32 [out · b / 32, groups]  packed along the outputs, more by 2^(b-1); or int8
                                                      [out, groups] as they are; absent: 0
    weight_g_idx        int32 [in]                    the group of each input; absent: neighbours

    W[o, i] = weight_scale[o, g] · (q[o, i] - zero[o, g])

bitsandbytes' LLM.int8 has `weight` int8 [out, in] and `SCB` float32 [out], each output's largest magnitude:

    W[o, i] = (q[o, i] · SCB[o]) / 127

Sources: the compressed-tensors package's formats; Dettmers et al. 2022, "LLM.int8()", and bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import UnsupportedModel
from ..lazy_rows import Index
from ..raw_tensors import FLOATS, RawTensor, RawTensors, as_floats, need
from ..settings import Settings
from .bit_packing import unpack_at, unpack_row_words
from .groupwise import Groups, IntegerGrid, regular_groups
from .lossless import encode_floats, rounded
from .packed_weight import Found

BITS = (4, 8)
Zeros = Callable[[Index], np.ndarray] | None
OVER_127 = np.float32(1 / 127)


@dataclass(frozen=True)
class Declared:
    """What the groups of the configuration say of integer weights, whichever module each is for."""

    bits: frozenset[int]
    sizes: frozenset[int]


def declared(groups: list[Settings]) -> Declared:
    """UnsupportedModel for numbers of bits that are not read."""
    weights = [args for group in groups if (args := group.section("weights")) is not None]
    integers = [args for args in weights if args.text("type", "int") == "int"]
    bits = {args.integer("num_bits", 8) for args in integers}
    if strange := bits - set(BITS):
        raise UnsupportedModel(
            f"compressed-tensors with {min(strange)}-bit integers is not supported; 4 and 8 bits are"
        )
    sizes = {args.integer("group_size", -1, low=-1) for args in integers} - {-1}
    return Declared(frozenset(bits) or frozenset(BITS), frozenset(sizes))


def read_packed(raw: RawTensors, said: Declared) -> Iterator[Found]:
    """Every weight that is packed into words."""
    for packed in raw.ending(".weight_packed"):
        if packed.dtype in ("I32", "U32"):
            yield _packed(raw, packed, said).found()


def read_bytes(raw: RawTensors, said: Declared) -> Iterator[Found]:
    """Every weight that has a byte for each code."""
    for weight in raw.ending(".weight"):
        if weight.dtype == "I8":
            yield _bytes(raw, weight, said).found()


def read_llm_int8(raw: RawTensors) -> Iterator[Found]:
    """Every weight that LLM.int8 left."""
    for weight in raw.ending(".weight"):
        base = weight.name.removesuffix("weight")
        if weight.dtype == "I8":
            yield _llm_int8(raw, weight, base)


def _packed(raw: RawTensors, packed: RawTensor, said: Declared) -> IntegerGrid:
    base = packed.name.removesuffix("weight_packed")
    raw.take(packed.name, ("I32", "U32"))
    shape = raw.take(f"{base}weight_shape", ("I64", "I32"), (2,))
    rows, width = (int(n) for n in shape.array)
    need(
        len(packed.shape) == 2 and packed.shape[0] == rows,
        packed,
        f"has shape {packed.shape}, not {rows} rows",
    )
    fitting = [bits for bits in sorted(said.bits) if packed.shape[1] == -(-width // (32 // bits))]
    need(
        fitting and width > 0,
        packed,
        f"has {packed.shape[1]} words a row for {width} inputs",
    )
    bits = fitting[0]
    scales, groups = _scales(raw, base, rows, width, said)
    half, words, scale = 1 << bits - 1, packed.array, scales.array
    zeros: Zeros = None
    more: tuple[np.ndarray, ...] = ()
    if f"{base}weight_zero_point" in raw:
        stored = raw.take(f"{base}weight_zero_point", ("I32", "U32", "I8"))
        n_groups, is_packed = scale.shape[1], stored.dtype != "I8"
        expected = (-(-rows // (32 // bits)) if is_packed else rows, n_groups)
        need(stored.shape == expected, stored, f"has shape {stored.shape}, but {expected} is needed")
        points, more = stored.array, (stored.data,)

        def zeros_of(index: Index) -> np.ndarray:
            return unpack_at(points.T, index, bits) if is_packed else _unsigned(points[index], half)

        zeros = zeros_of
    return IntegerGrid(
        f"{base}weight",
        (rows, width),
        bits,
        groups,
        lambda index: np.ascontiguousarray(unpack_row_words(words[index], bits)[:, :width]),
        lambda index: as_floats(scale[index], scales.dtype),
        zeros,
        (packed.data, scales.data, *more),
    )


def _bytes(raw: RawTensors, weight: RawTensor, said: Declared) -> IntegerGrid:
    base = weight.name.removesuffix("weight")
    raw.take(weight.name, ("I8",))
    need(len(weight.shape) == 2, weight, f"has shape {weight.shape}, not two dimensions")
    rows, width = weight.shape
    scales, groups = _scales(raw, base, rows, width, said)
    codes, scale = weight.array, scales.array
    zeros: Zeros = None
    more: tuple[np.ndarray, ...] = ()
    if f"{base}weight_zero_point" in raw:
        stored = raw.take(f"{base}weight_zero_point", ("I8",))
        need(stored.data.size == scale.size, stored, f"has shape {stored.shape}, but {scale.shape} is needed")
        points, more = stored.array.reshape(scale.shape), (stored.data,)

        def zeros_of(index: Index) -> np.ndarray:
            return _unsigned(points[index], 128)

        zeros = zeros_of
    return IntegerGrid(
        weight.name,
        (rows, width),
        8,
        groups,
        lambda index: _unsigned(codes[index], 128),
        lambda index: as_floats(scale[index], scales.dtype),
        zeros,
        (weight.data, scales.data, *more),
    )


def _unsigned(codes: np.ndarray, half: int) -> np.ndarray:
    """int8 codes as uint8, more by `half`."""
    return np.ascontiguousarray(codes).view(np.uint8) + np.uint8(half)


def _scales(raw: RawTensors, base: str, rows: int, width: int, said: Declared) -> tuple[RawTensor, Groups]:
    """The scales as [rows, groups], and which group each input is in."""
    scales = raw.take(f"{base}weight_scale", FLOATS)
    if scales.shape in ((rows,), (1,), (), (1, 1)):
        one = np.broadcast_to(scales.array.reshape(-1, 1), (rows, 1))
        data = np.ascontiguousarray(one).view(np.uint8).reshape(-1)
        scales = RawTensor(scales.name, scales.dtype, (rows, 1), data)
    of_rows = len(scales.shape) == 2 and scales.shape[0] == rows
    need(of_rows, scales, f"has shape {scales.shape}, not of {rows} rows")
    n_groups = scales.shape[1]
    if f"{base}weight_g_idx" in raw:
        of_input = raw.take(f"{base}weight_g_idx", ("I32", "I64"), (width,))
        low, high = int(of_input.array.min()), int(of_input.array.max())
        need(low >= -1 and high < n_groups, of_input, f"names group {low if low < 0 else high} of {n_groups}")
        if low >= 0:  # -1: not used
            return scales, Groups(np.ascontiguousarray(of_input.array, np.int64))
    fitting = [size for size in sorted(said.sizes) if n_groups == -(-width // size)]
    if not fitting and n_groups <= width and width % n_groups == 0:
        fitting = [width // n_groups]
    need(fitting, scales, f"has {n_groups} groups, which do not divide {width} inputs")
    return scales, regular_groups(width, n_groups, fitting[0])


def _llm_int8(raw: RawTensors, weight: RawTensor, base: str) -> Found:
    raw.take(weight.name, ("I8",))
    need(len(weight.shape) == 2, weight, f"has shape {weight.shape}, not two dimensions")
    largest = raw.take(f"{base}SCB", ("F32", "F16"), weight.shape[:1])
    if f"{base}weight_format" in raw:
        layout = raw.take(f"{base}weight_format", ("U8", "I8"))
        need(not layout.data.any(), layout, "is of a layout other than row by row")
    codes, peaks = weight.array, largest.floats()

    def encode(index: Index, form: str) -> np.ndarray:
        return encode_floats(codes[index].astype(np.float32) * peaks[index, None] * OVER_127, form)

    def floats() -> tuple[str, ...]:
        return rounded(float(np.abs(peaks).max(initial=0)))

    return Found(weight.name, weight.shape, (), floats, encode, (weight.data, largest.data))
