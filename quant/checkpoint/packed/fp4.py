"""4-bit floats (e2m1) of compressed-tensors and ModelOpt: NVFP4, and MXFP4 with the same tensor names.

    weight_packed or weight   uint8 [out, in / 2]           bits 7654        3210
                                                            input 2j + 1     input 2j    of byte j
    weight_scale              float8 e4m3 [out, in / 16]    NVFP4
                              uint8 [out, in / 32]          MXFP4: an exponent with bias 127
    weight_global_scale       float32 [1]                   NVFP4 of compressed-tensors: a divisor
    weight_scale_2            float32 []                    NVFP4 of ModelOpt: a factor

    q       0 … 7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; 8 … 15: their negatives
    NVFP4   W[o, i] = e2m1(q[o, i]) · (weight_scale[o, i // 16] / weight_global_scale)
    MXFP4   W[o, i] = e2m1(q[o, i]) · 2^(weight_scale[o, i // 32] - 127)

Both become GGUF's types of these names; NVFP4 with a width that 64 does not divide, whose blocks are larger,
becomes floats.

Sources: OCP Microscaling Formats (MX) Specification 1.0; the tensors that compressed-tensors and ModelOpt
write.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...formats.nvfp4 import NVFP4_BLOCK
from ...gguf.tensor_factors import usable_factors
from ..lazy_rows import Index
from ..raw_tensors import RawCheckpoint, RawTensor, as_floats, check_tensor
from .bit_packing import look_up, pack_blocks, unpack_rows
from .lossless import encode_floats, float_formats_of_products
from .packed_weight import PackedWeight

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
EXTREMES = (0.5, 1.5, 6.0)  # see `float_formats_of_products`
NVFP4_GROUP = 16
MXFP4_GROUP = 32


def read(raw: RawCheckpoint) -> Iterator[PackedWeight]:
    """All weights packed as NVFP4 or MXFP4. Raises DamagedFile."""
    for packed in raw.ending(".weight_packed", ".weight"):
        base = packed.name.removesuffix("_packed").removesuffix("weight")
        if packed.dtype != "U8" or f"{base}weight_scale" not in raw:
            continue
        raw.take(packed.name, ("U8",))
        check_tensor(len(packed.shape) == 2, packed, f"has shape {packed.shape}, not two dimensions")
        scale = raw.take(f"{base}weight_scale", ("U8", "F8_E8M0", "F8_E4M3"))
        if scale.dtype == "F8_E4M3":
            yield _nvfp4(raw, base, packed, scale)
        else:
            rows, width = packed.shape[0], 2 * packed.shape[1]
            raw.take(scale.name, ("U8", "F8_E8M0"), (rows, width // MXFP4_GROUP))
            check_tensor(
                width % MXFP4_GROUP == 0, packed, f"has {width} inputs, which are no groups of {MXFP4_GROUP}"
            )
            shape = (rows, width)
            yield mxfp4(f"{base}weight", shape, packed.array, scale.array, (packed.data, scale.data))


def mxfp4(
    name: str,
    shape: tuple[int, ...],
    packed: np.ndarray,
    exponents: np.ndarray,
    sources: tuple[np.ndarray, ...],
) -> PackedWeight:
    """An MXFP4 weight of codes `packed` uint8 [rows, in / 2] and `exponents` uint8 [rows, in / 32]."""

    def encode(index: Index, form: str) -> np.ndarray:
        codes, exponent = unpack_rows(packed[index], 4), exponents[index]
        if form == "MXFP4":  # GGUF stores the same exponent
            return pack_blocks(codes, form, exponent)
        scale = np.ldexp(np.float32(1), exponent.astype(np.int32) - 127)
        return encode_floats(look_up(E2M1, codes) * np.repeat(scale, MXFP4_GROUP, axis=1), form)

    return PackedWeight(name, shape, ("MXFP4",), lambda: ("F32",), encode, sources)


def _nvfp4(raw: RawCheckpoint, base: str, packed: RawTensor, scale: RawTensor) -> PackedWeight:
    """An NVFP4 weight: a scale for 16 inputs, and one for the tensor."""
    rows, width = packed.shape[0], 2 * packed.shape[1]
    check_tensor(width % NVFP4_GROUP == 0, packed, f"has {width} inputs, no groups of {NVFP4_GROUP}")
    raw.take(scale.name, ("F8_E4M3",), (rows, width // NVFP4_GROUP))
    divides = f"{base}weight_global_scale" in raw
    tensor_scale = raw.take(f"{base}{'weight_global_scale' if divides else 'weight_scale_2'}", ("F32",))
    check_tensor(tensor_scale.data.size == 4, tensor_scale, f"has shape {tensor_scale.shape}, not one number")
    number = tensor_scale.floats().reshape(())
    check_tensor(np.isfinite(number) and number != 0, tensor_scale, f"is {number}")
    codes, scales = packed.array, scale.array

    def combined(group_scales: np.ndarray) -> np.ndarray:
        values = as_floats(group_scales, scale.dtype)
        return values / number if divides else values * number

    def encode(index: Index, form: str) -> np.ndarray:
        if form == "NVFP4":
            return _blocks(unpack_rows(codes[index], 4), scales[index])
        values = look_up(E2M1, unpack_rows(codes[index], 4))
        values *= np.repeat(combined(scales[index]), NVFP4_GROUP, axis=1)
        return encode_floats(values, form)

    def floats() -> tuple[str, ...]:
        occurring = np.flatnonzero(np.bincount(scale.data, minlength=256))
        return float_formats_of_products(combined(occurring), EXTREMES)

    factor = np.float32(1) / number if divides else number
    # Scales are positive numbers, and all fits into blocks.
    as_blocks = width % 64 == 0 and scale.data.max(initial=0) < 127 and usable_factors(factor)
    formats, factors = ("NVFP4",) if as_blocks else (), (float(factor),)
    return PackedWeight(
        f"{base}weight", (rows, width), formats, floats, encode, (packed.data, scale.data), factors
    )


def _blocks(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Codes uint8 [n, width] and scales uint8 [n, width / 16] in blocks of NVFP4: uint8 [n, row_bytes]."""
    blocks = np.empty((len(codes), codes.shape[1] // 64), NVFP4_BLOCK)
    blocks["d"] = scales.reshape(*blocks.shape, 4)
    pairs = codes.reshape(*blocks.shape, 4, 2, 8)
    blocks["qs"] = pairs[..., 0, :] | pairs[..., 1, :] << 4
    return blocks.view(np.uint8).reshape(len(codes), -1)
