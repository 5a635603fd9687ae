"""bitsandbytes' 4-bit weights, NF4 and FP4: codes into a table, times the largest magnitude of a block.

    weight                 uint8 [out · in / 2, 1]   bits 7654         3210
                                                     element 2k        element 2k + 1    of byte k
                                                     of W row by row; any dtype of as many bytes
    weight.quant_map       float32 [16]              the table
    weight.absmax          float32 [blocks]          of each block; or, with double quantisation,
                           uint8 [blocks]            codes into
    weight.nested_quant_map  float32 [256]
    weight.nested_absmax   float32 [ceil(blocks / nested blocksize)]
    weight.quant_state.bitsandbytes__nf4   uint8     JSON: shape, blocksize, dtype, nested_blocksize,
                                                     nested_offset

    W[k] = quant_map[q[k]] · absmax[k // blocksize], rounded to `dtype`
    absmax[b] = nested_quant_map[code[b]] · nested_absmax[b // nested_blocksize] + nested_offset

Source: Dettmers et al. 2023, "QLoRA"; the tensors that bitsandbytes and transformers write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import numpy as np

from ...errors import DamagedFile
from ...gguf.metadata import shown
from ..lazy_rows import Index, numbers_of
from ..raw_tensors import RawTensor, RawTensors, need
from ..settings import Settings
from .bit_packing import look_up
from .lossless import encode_floats
from .packed_weight import Found

KINDS = ("nf4", "fp4")
FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def read(raw: RawTensors) -> Iterator[Found]:
    """Every weight that is packed so."""
    for kind in KINDS:
        for state in raw.ending(f".quant_state.bitsandbytes__{kind}"):
            yield _read_one(raw, state, state.name.removesuffix(f".quant_state.bitsandbytes__{kind}"))


def _read_one(raw: RawTensors, found: RawTensor, name: str) -> Found:
    state = _state(raw.take(found.name, ("U8",)))
    rows, width = state.pair("shape") or (0, 0)
    need(rows, found, "states no shape")
    size = state.integer("blocksize", 64)
    form = FORMATS.get(state.text("dtype", "float32"))
    need(form, found, f"states a dtype other than {', '.join(FORMATS)}")
    if name not in raw:
        raise DamagedFile(f"tensor {shown(name)} is missing")
    weight = raw.take(name, ("U8", "I8", "F16", "BF16", "F32"))
    n_blocks = -(-rows * width // size)
    n_bytes = -(-rows * width // 2)
    need(weight.data.size == n_bytes, weight, f"has not the {n_bytes} bytes of {rows} x {width} codes")
    table = raw.take(f"{name}.quant_map", ("F32",), (16,)).floats()
    peaks, more = _peaks(raw, name, n_blocks, state)
    packed = weight.data

    def encode(index: Index, out: str) -> np.ndarray:
        if width % size == 0 and width % 2 == 0:
            codes = _high_first(packed.reshape(rows, -1)[index])
            blocks = numbers_of(index)[:, None] * (width // size) + np.arange(width // size)
            factors = np.repeat(peaks(blocks), size, axis=1)
        else:  # blocks go on in the next row
            at = numbers_of(index)[:, None] * width + np.arange(width)
            codes = packed[at >> 1] >> np.where(at & 1, 0, 4).astype(np.uint8) & np.uint8(15)
            factors = peaks(at // size)
        values = look_up(table, codes)
        values *= factors
        return encode_floats(values, out)

    return Found(name, (rows, width), (), lambda: (str(form),), encode, (packed, *more))


def _high_first(packed: np.ndarray) -> np.ndarray:
    """The codes of bytes uint8 [n, k]: uint8 [n, 2 k]."""
    wide = packed.astype(np.uint16)
    return ((wide << np.uint16(8) | wide >> np.uint16(4)) & np.uint16(0x0F0F)).view(np.uint8)


def _peaks(
    raw: RawTensors, name: str, n_blocks: int, state: Settings
) -> tuple[Callable[[np.ndarray], np.ndarray], tuple[np.ndarray, ...]]:
    """What gives the largest magnitudes of blocks by their numbers, and what of the file it reads."""
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

    def peaks(blocks: np.ndarray) -> np.ndarray:
        return table[codes[blocks]] * nested[blocks // size] + np.float32(offset)

    return peaks, (absmax.data,)


def _state(tensor: RawTensor) -> Settings:
    try:
        values = json.loads(tensor.data.tobytes())
    except (ValueError, RecursionError):
        values = None
    need(isinstance(values, dict), tensor, "is no JSON object")
    return Settings(values, f"tensor {shown(tensor.name)}")
