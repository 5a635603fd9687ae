"""INT4 and INT8 of compressed-tensors ("pack-quantized", "int-quantized"), and LLM.int8 of bitsandbytes.

    weight_packed       int32 [out, in · b / 32]      codes + 2^(b-1), packed along the inputs, low first
    weight_shape        int64 [2]                     out, in
    weight              int8 [out, in]                or one code a byte
    weight_scale        float [out, groups]           one group means per output
    weight_zero_point   int32 [out · b / 32, groups]  zero points + 2^(b-1), packed along the outputs;
                        or int8 [out, groups]         zero points; 0 if the tensor is absent
    weight_g_idx        int32 [in]                    the group of each input (act-order); if absent,
                                                      groups are neighbouring inputs

    W[o, i] = weight_scale[o, g] · (q[o, i] - zero[o, g])

LLM.int8 has `weight` int8 [out, in] and `SCB` float32 [out], the largest magnitude of each output:

    W[o, i] = (q[o, i] · SCB[o]) / 127

Sources: the compressed-tensors package's formats; Dettmers et al. 2022, "LLM.int8()", and bitsandbytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...errors import UnsupportedModel
from ..lazy_rows import Index
from ..raw_tensors import FLOATS, RawCheckpoint, RawTensor, as_floats, check_tensor
from ..settings import Settings
from .bit_packing import unpack_columns, unpack_rows
from .groupwise import Groups, GroupwiseCodes, regular_groups, with_zero_points
from .lossless import encode_floats, rounding_formats
from .packed_weight import PackedWeight

BITS = (4, 8)
WORDS = ("I32", "U32")
OVER_127 = np.float32(1 / 127)


@dataclass(frozen=True)
class Declared:
    """Bits and group sizes of integer weights that any group of the configuration declares.

    Which group a module belongs to is not looked up; shapes decide among the declared numbers.
    """

    bits: frozenset[int]
    sizes: frozenset[int]


def declared_sizes(groups: list[Settings]) -> Declared:
    """Read bits and group sizes from `config_groups`. Raises UnsupportedModel for other than 4 or 8 bits."""
    weights = [args for group in groups if (args := group.section("weights")) is not None]
    integers = [args for args in weights if args.text("type", "int") == "int"]
    bits = {args.integer("num_bits", 8) for args in integers}
    if unsupported := bits - set(BITS):
        raise UnsupportedModel(
            f"compressed-tensors with {min(unsupported)}-bit integers is not supported; 4 and 8 bits are"
        )
    sizes = {args.integer("group_size", -1, low=-1) for args in integers} - {-1}
    return Declared(frozenset(bits) or frozenset(BITS), frozenset(sizes))


def read_packed(raw: RawCheckpoint, declared: Declared) -> Iterator[PackedWeight]:
    """All weights whose codes are packed into 32-bit words. Raises DamagedFile."""
    for packed in raw.ending(".weight_packed"):
        if packed.dtype in WORDS:
            yield _in_words(raw, packed, declared)


def read_bytes(raw: RawCheckpoint, declared: Declared) -> Iterator[PackedWeight]:
    """All weights with one code a byte. Raises DamagedFile."""
    for weight in raw.ending(".weight"):
        if weight.dtype == "I8":
            yield _in_bytes(raw, weight, declared)


def read_llm_int8(raw: RawCheckpoint) -> Iterator[PackedWeight]:
    """All weights of LLM.int8. Raises DamagedFile."""
    for weight in raw.ending(".weight"):
        if weight.dtype == "I8":
            yield _llm_int8(raw, weight)


def _in_words(raw: RawCheckpoint, packed: RawTensor, declared: Declared) -> PackedWeight:
    base = packed.name.removesuffix("weight_packed")
    raw.take(packed.name, WORDS)
    shape = raw.take(f"{base}weight_shape", ("I64", "I32"), (2,))
    rows, width = (int(n) for n in shape.array)
    check_tensor(
        len(packed.shape) == 2 and packed.shape[0] == rows,
        packed,
        f"has shape {packed.shape}, not {rows} rows",
    )
    fitting = [bits for bits in sorted(declared.bits) if packed.shape[1] == -(-width // (32 // bits))]
    check_tensor(fitting and width > 0, packed, f"has {packed.shape[1]} words a row for {width} inputs")
    bits, words = fitting[0], packed.array

    def codes(index: Index) -> np.ndarray:
        return np.ascontiguousarray(unpack_rows(words[index], bits)[:, :width])

    weight, n_groups = _with_scales(raw, packed, (rows, width), bits, codes, declared)
    name = f"{base}weight_zero_point"
    if name not in raw:
        return with_zero_points(weight, None)
    stored = raw.take(name, (*WORDS, "I8"))
    is_packed = stored.dtype != "I8"
    expected = (-(-rows // (32 // bits)) if is_packed else rows, n_groups)
    check_tensor(stored.shape == expected, stored, f"has shape {stored.shape}, but {expected} is needed")
    points, half = stored.array, 1 << bits - 1

    def zero_points(index: Index) -> np.ndarray:
        return unpack_columns(points.T, index, bits) if is_packed else _unsigned(points[index], half)

    return with_zero_points(replace(weight, sources=(*weight.sources, stored.data)), zero_points)


def _in_bytes(raw: RawCheckpoint, int8: RawTensor, declared: Declared) -> PackedWeight:
    shape, codes = _matrix(raw, int8)
    weight, n_groups = _with_scales(raw, int8, shape, 8, lambda index: _unsigned(codes[index], 128), declared)
    name = f"{int8.name}_zero_point"
    if name not in raw:
        return with_zero_points(weight, None)
    stored, expected = raw.take(name, ("I8",)), (shape[0], n_groups)
    check_tensor(
        stored.data.size == math.prod(expected),
        stored,
        f"has shape {stored.shape}, but {expected} is needed",
    )
    points = stored.array.reshape(expected)
    sources = (*weight.sources, stored.data)
    return with_zero_points(replace(weight, sources=sources), lambda index: _unsigned(points[index], 128))


def _matrix(raw: RawCheckpoint, weight: RawTensor) -> tuple[tuple[int, int], np.ndarray]:
    """The shape and the elements of an int8 matrix."""
    raw.take(weight.name, ("I8",))
    check_tensor(len(weight.shape) == 2, weight, f"has shape {weight.shape}, not two dimensions")
    return (weight.shape[0], weight.shape[1]), weight.array


def _unsigned(codes: np.ndarray, half: int) -> np.ndarray:
    """int8 codes from -half on as uint8 codes from 0 on."""
    return np.ascontiguousarray(codes).view(np.uint8) + np.uint8(half)


def _with_scales(
    raw: RawCheckpoint,
    stored: RawTensor,
    shape: tuple[int, int],
    bits: int,
    codes: Callable[[Index], np.ndarray],
    declared: Declared,
) -> tuple[GroupwiseCodes, int]:
    """The `codes` of the tensor `stored` with their scales and groups, and how many groups there are."""
    base = stored.name.removesuffix("_packed").removesuffix("weight")
    scales, groups = _scales(raw, base, *shape, declared)
    scale = scales.array

    def scales_of(index: Index) -> np.ndarray:
        return as_floats(scale[index], scales.dtype)

    sources = (stored.data, scales.data)
    weight = GroupwiseCodes(f"{base}weight", shape, bits, groups, codes, scales_of, sources)
    return weight, scales.shape[1]


def _scales(
    raw: RawCheckpoint, base: str, rows: int, width: int, declared: Declared
) -> tuple[RawTensor, Groups]:
    """The scales as [rows, groups], and the group of each input."""
    scales = raw.take(f"{base}weight_scale", FLOATS)
    if scales.shape in ((rows,), (1,), (), (1, 1)):
        one = np.broadcast_to(scales.array.reshape(-1, 1), (rows, 1))
        data = np.ascontiguousarray(one).view(np.uint8).reshape(-1)
        scales = RawTensor(scales.name, scales.dtype, (rows, 1), data)
    has_rows = len(scales.shape) == 2 and scales.shape[0] == rows
    check_tensor(has_rows, scales, f"has shape {scales.shape}, not of {rows} rows")
    n_groups = scales.shape[1]
    if f"{base}weight_g_idx" in raw:
        g_idx = raw.take(f"{base}weight_g_idx", ("I32", "I64"), (width,))
        low, high = int(g_idx.array.min()), int(g_idx.array.max())
        in_range = low >= -1 and high < n_groups
        check_tensor(in_range, g_idx, f"names group {low if low < 0 else high} of {n_groups}")
        if low >= 0:  # -1 marks an unused g_idx
            return scales, Groups(np.ascontiguousarray(g_idx.array, np.int64))
    fitting = [size for size in sorted(declared.sizes) if n_groups == -(-width // size)]
    if not fitting and n_groups <= width and width % n_groups == 0:
        fitting = [width // n_groups]
    check_tensor(fitting, scales, f"has {n_groups} groups, which do not divide {width} inputs")
    return scales, regular_groups(width, n_groups, fitting[0])


def _llm_int8(raw: RawCheckpoint, weight: RawTensor) -> PackedWeight:
    shape, codes = _matrix(raw, weight)
    base = weight.name.removesuffix("weight")
    scb = raw.take(f"{base}SCB", ("F32", "F16"), shape[:1])
    if f"{base}weight_format" in raw:
        layout = raw.take(f"{base}weight_format", ("U8", "I8"))
        check_tensor(not layout.data.any(), layout, "is of a layout other than row by row")
    absmax = scb.floats()

    def encode(index: Index, form: str) -> np.ndarray:
        return encode_floats(codes[index].astype(np.float32) * absmax[index, None] * OVER_127, form)

    def float_formats() -> tuple[str, ...]:
        return rounding_formats(float(np.abs(absmax).max(initial=0)))

    return PackedWeight(weight.name, shape, (), float_formats, encode, (weight.data, scb.data))
