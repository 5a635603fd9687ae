"""Quantising tensors to block formats: round-to-nearest, or with a search for the scales with the least
error.

Without importance, the formats that the `gguf` package can write get the bytes that it writes. All other
formats, and all with importance, get scales that make Σ importance · (weight - dequantised weight)² small
(`codebook`). The result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..block import BlockFormat, QTensor
from ..errors import NonFinite
from ..formats import FORMATS
from .codebook import encode_blocks
from .codebooks import CODEBOOKS
from .round_to_nearest import NEAREST_KERNELS, SOURCE_TYPES, encode_to_nearest

CHUNK_WEIGHTS = 1 << 18  # that a thread encodes at a time; at least a row


def encode(
    weights: np.ndarray,
    form: BlockFormat,
    importance: np.ndarray | None = None,
    threads: int | None = None,
    zero_nonfinite: bool = False,
) -> np.ndarray:
    """Quantise float32 `[rows, width]` to uint8 `[rows, row_bytes]` of `form`; see `encode_tensor`."""
    weights = np.ascontiguousarray(weights, np.float32)
    tensor = QTensor("", FORMATS["F32"], weights.shape, weights.view(np.uint8))
    return encode_tensor(tensor, form, importance, threads, zero_nonfinite)


def encode_tensor(
    tensor: QTensor,
    form: BlockFormat,
    importance: np.ndarray | None = None,
    threads: int | None = None,
    zero_nonfinite: bool = False,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Encode a tensor of any format as uint8 `[rows, row_bytes]` of `form`, into `out` if it is given.

    `importance` is float32 `[width]`, at least 0: the weight of squared errors in each column, usually the
    mean square of the inputs. `threads` defaults to one a processor; each needs about `20 · CHUNK_WEIGHTS`
    bytes.

    Without importance, blocks that have the format already are copied, and fp16 values and scales beyond
    fp16's range become infinite, as in the `gguf` package (see `holds`).

    Raises NonFinite if a weight is NaN or infinite, unless `zero_nonfinite` replaces it by 0, and ValueError
    if the width is no multiple of the block size, or `importance` has another shape or is negative.
    """
    rows, width = len(tensor.data), tensor.shape[-1]
    row_bytes = form.row_bytes(width)
    if out is None:
        out = np.empty((rows, row_bytes), np.uint8)
    if importance is not None and np.shape(importance) != (width,):
        raise ValueError(f"importance has shape {np.shape(importance)}, not ({width},)")
    step = max(1, CHUNK_WEIGHTS // width)

    def encode_rows(first: int) -> None:
        data, source = np.ascontiguousarray(tensor.data[first : first + step]), tensor.format
        if tensor.factors:
            index = np.arange(first, first + len(data))
            data, source = tensor.rows(index).view(np.uint8), FORMATS["F32"]
        _encode_rows(data, source, form, importance, zero_nonfinite, out[first : first + step])

    starts = range(0, rows, step)
    n_threads = min(threads or _processors(), len(starts))
    if n_threads <= 1:
        for first in starts:
            encode_rows(first)
        return out
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for _ in pool.map(encode_rows, starts):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return out


def holds(form: BlockFormat, largest: float) -> bool:
    """Whether weights up to `largest` stay finite in `form` without importance.

    Most formats have fp16 scales. The scale search, used for other formats and with importance, clips them.
    """
    top_levels = {
        "F32": np.inf,
        "BF16": np.inf,
        "MXFP4": np.inf,
        "NVFP4": 10,  # with the largest factor of a tensor, see `quant.recipes.tensor_scales`
        "F16": 1,
        "Q8_0": 127,
        "Q4_0": 8,
        "Q5_0": 16,
    }
    return largest / top_levels.get(form.name, 1) < 65520


def _encode_rows(
    data: np.ndarray,
    source: BlockFormat,
    form: BlockFormat,
    importance: np.ndarray | None,
    zero_nonfinite: bool,
    out: np.ndarray,
) -> None:
    if source is form and not form.is_float and importance is None:
        out[:] = data
        return
    has_kernel = importance is None and form.name in NEAREST_KERNELS
    if has_kernel and source.name in SOURCE_TYPES and out.flags.c_contiguous:
        if not encode_to_nearest(data, source.name, form.name, out, zero_nonfinite):
            raise NonFinite("a weight is NaN or infinite")
        return
    weights = source.dequantize(data.reshape(-1, source.type_size)).reshape(len(data), -1)
    finite = np.isfinite(weights)
    if not finite.all():
        if not zero_nonfinite:
            raise NonFinite("a weight is NaN or infinite")
        weights = np.where(finite, weights, np.float32(0))
    if has_kernel:
        encoded = np.empty(out.shape, np.uint8)
        encode_to_nearest(weights.view(np.uint8), "F32", form.name, encoded, False)
        out[:] = encoded
        return
    blocks = weights.reshape(-1, form.block_size)
    if form.quantize is not None and (importance is None or form.is_float):
        out[:] = form.quantize(blocks).reshape(out.shape)
    else:
        out[:] = encode_blocks(CODEBOOKS[form.name], blocks, importance).reshape(out.shape)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
