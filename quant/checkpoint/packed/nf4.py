"""NF4 and FP4 of bitsandbytes: 4-bit codes into a table of 16 levels, times the absmax of a block of weights.

    weight                 uint8 [out · in / 2, 1]   bits 7654         3210
                                                     element 2k        element 2k + 1    of byte k
                                                     of W in row-major order; stored as any dtype
    weight.quant_map       float32 [16]              the levels
    weight.absmax          float32 [blocks]          the largest magnitude of each block; or, with double
                           uint8 [blocks]            quantisation, codes into nested_quant_map
    weight.nested_quant_map  float32 [256]           levels of absmax
    weight.nested_absmax   float32 [ceil(blocks / nested_blocksize)]   scales of absmax
    weight.quant_state.bitsandbytes__nf4   uint8     JSON: shape, blocksize, dtype, nested_blocksize,
                                                     nested_offset

    W[k] = quant_map[q[k]] · absmax[k // blocksize], rounded to `dtype`
    absmax[b] = nested_quant_map[code[b]] · nested_absmax[b // nested_blocksize] + nested_offset

Source: Dettmers et al. 2023, "QLoRA"; the tensors that bitsandbytes and transformers write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from ...errors import DamagedFile
from ...gguf.metadata import quoted
from ..json_files import parse_object
from ..lazy_rows import Index, row_numbers
from ..raw_tensors import RawCheckpoint, RawTensor, check_tensor
from ..settings import Settings
from .bit_packing import look_up
from .lossless import encode_floats
from .packed_weight import PackedWeight

KINDS = ("nf4", "fp4")
MAX_STATE_BYTES = 1 << 12  # of JSON; seven short entries
FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def read(raw: RawCheckpoint) -> Iterator[PackedWeight]:
    """All weights with a quantisation state of bitsandbytes. Raises DamagedFile."""
    for kind in KINDS:
        for state in raw.ending(f".quant_state.bitsandbytes__{kind}"):
            yield _read_one(raw, state, state.name.removesuffix(f".quant_state.bitsandbytes__{kind}"))


def _read_one(raw: RawCheckpoint, quant_state: RawTensor, name: str) -> PackedWeight:
    state = _state(raw.take(quant_state.name, ("U8",)))
    rows, width = state.pair("shape") or (0, 0)
    check_tensor(rows, quant_state, "states no shape")
    size = state.integer("blocksize", 64)
    form = FORMATS.get(state.text("dtype", "float32"))
    check_tensor(form, quant_state, f"states a dtype other than {', '.join(FORMATS)}")
    if name not in raw:
        raise DamagedFile(f"tensor {quoted(name)} is missing")
    weight = raw.take(name, ("U8", "I8", "F16", "BF16", "F32"))
    n_blocks = -(-rows * width // size)
    n_bytes = -(-rows * width // 2)
    check_tensor(
        weight.data.size == n_bytes, weight, f"has not the {n_bytes} bytes of {rows} x {width} codes"
    )
    table = raw.take(f"{name}.quant_map", ("F32",), (16,)).floats()
    absmax, absmax_sources = _absmax(raw, name, n_blocks, state)
    packed = weight.data

    def encode(index: Index, out: str) -> np.ndarray:
        if width % size == 0 and width % 2 == 0:
            codes = _high_first(packed.reshape(rows, -1)[index])
            blocks = row_numbers(index)[:, None] * (width // size) + np.arange(width // size)
            scales = np.repeat(absmax(blocks), size, axis=1)
        else:  # blocks extend over row ends
            at = row_numbers(index)[:, None] * width + np.arange(width)
            codes = packed[at >> 1] >> np.where(at & 1, 0, 4).astype(np.uint8) & np.uint8(15)
            scales = absmax(at // size)
        values = look_up(table, codes)
        values *= scales
        return encode_floats(values, out)

    return PackedWeight(name, (rows, width), (), lambda: (str(form),), encode, (packed, *absmax_sources))


def _high_first(packed: np.ndarray) -> np.ndarray:
    """Unpack bytes uint8 [n, k] into codes uint8 [n, 2 k], the high four bits first."""
    words = packed.astype(np.uint16)
    return ((words << np.uint16(8) | words >> np.uint16(4)) & np.uint16(0x0F0F)).view(np.uint8)


def _absmax(
    raw: RawCheckpoint, name: str, n_blocks: int, state: Settings
) -> tuple[Callable[[np.ndarray], np.ndarray], tuple[np.ndarray, ...]]:
    """A function from block numbers to their absmax, float32, and the arrays of the file that it reads."""
    absmax = raw.take(f"{name}.absmax", ("F32", "U8"), (n_blocks,))
    if absmax.dtype == "F32":
        return absmax.array.take, (absmax.data,)
    size = state.integer("nested_blocksize", 256)
    offset = state.values.get("nested_offset", 0.0)
    if type(offset) not in (int, float) or not math.isfinite(offset):
        raise state.fail("nested_offset", "a number")
    table = raw.take(f"{name}.nested_quant_map", ("F32",), (256,)).floats()
    nested = raw.take(f"{name}.nested_absmax", ("F32",), (-(-n_blocks // size),)).floats()
    codes = absmax.array

    def dequantize_absmax(blocks: np.ndarray) -> np.ndarray:
        return table[codes[blocks]] * nested[blocks // size] + np.float32(offset)

    return dequantize_absmax, (absmax.data,)


def _state(tensor: RawTensor) -> Settings:
    """The quantisation state: a JSON object in the bytes of a tensor."""
    label = f"tensor {quoted(tensor.name)}"
    check_tensor(tensor.data.size <= MAX_STATE_BYTES, tensor, f"has over {MAX_STATE_BYTES} bytes of JSON")
    return Settings(parse_object(tensor.data.tobytes(), label, MAX_STATE_BYTES), label)
