"""Tensors into block formats: rounded to the nearest value, or by a search for the scales that lose least.

Without importance, the formats that the `gguf` package can write get its bytes. All others, and all with
importance, get scales that make Σ importance · (weight - stored)² small (`codebook`). The result does not depend
on the number of threads.
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

CHUNK_WEIGHTS = 1 << 18  # of a thread at a time, but at least a row


def encode(
    weights: np.ndarray,
    form: BlockFormat,
    importance: np.ndarray | None = None,
    threads: int | None = None,
    zero_nonfinite: bool = False,
) -> np.ndarray:
    """float32 `[rows, width]` as uint8 `[rows, row_bytes]` of `form`; see `encode_tensor`."""
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
    """A tensor of any format as uint8 `[rows, row_bytes]` of `form`, written into `out` if given.

    `importance` is float32 `[width]`, at least 0: what an error in each column counts, as the mean of the
    squared activations that meet it. `threads`: default, one a processor. Beside the result each thread needs
    some `20 · CHUNK_WEIGHTS` bytes.

    Without importance, blocks that have the format already are copied; else scales and fp16 values beyond
    fp16's range become infinite, as in the `gguf` package: see `holds`.

    Raises NonFinite if a weight is NaN or infinite, unless `zero_nonfinite` makes those 0, and ValueError if
    the width is no multiple of the block size or `importance` makes no sense.
    """
    rows, width = len(tensor.data), tensor.shape[-1]
    row_bytes = form.row_bytes(width)
    if out is None:
        out = np.empty((rows, row_bytes), np.uint8)
    if importance is not None and np.shape(importance) != (width,):
        raise ValueError(f"importance has shape {np.shape(importance)}, not ({width},)")
    step = max(1, CHUNK_WEIGHTS // width)

    def part(first: int) -> None:
        data = np.ascontiguousarray(tensor.data[first : first + step])
        _encode_rows(data, tensor.format, form, importance, zero_nonfinite, out[first : first + step])

    starts = range(0, rows, step)
    n_threads = min(threads or _processors(), len(starts))
    if n_threads <= 1:
        for first in starts:
            part(first)
        return out
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for _ in pool.map(part, starts):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return out


def peak(tensor: QTensor) -> float:
    """The largest magnitude in a tensor; infinity or NaN if some weight is not finite."""
    step = max(1, CHUNK_WEIGHTS // tensor.shape[-1])
    found = np.float32(0)
    for first in range(0, len(tensor.data), step):
        blocks = tensor.data[first : first + step].reshape(-1, tensor.format.type_size)
        weights = tensor.format.dequantize(blocks)
        found = np.maximum(found, np.maximum(weights.max(), -weights.min()))  # both hand NaN on
    return float(found)


def holds(form: BlockFormat, largest: float) -> bool:
    """Whether weights up to `largest` stay finite when rounded to `form` without importance.

    Scales are fp16 in most formats. Those of searched formats and all that have importance saturate instead.
    """
    steps = {"F32": np.inf, "BF16": np.inf, "MXFP4": np.inf, "F16": 1, "Q8_0": 127, "Q4_0": 8, "Q5_0": 16}
    return largest / steps.get(form.name, 1) < 65520


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
    plain = importance is None and form.name in NEAREST_KERNELS
    if plain and source.name in SOURCE_TYPES and out.flags.c_contiguous:
        if not encode_to_nearest(data, source.name, form.name, out, zero_nonfinite):
            raise NonFinite("a weight is NaN or infinite")
        return
    weights = source.dequantize(data.reshape(-1, source.type_size)).reshape(len(data), -1)
    finite = np.isfinite(weights)
    if not finite.all():
        if not zero_nonfinite:
            raise NonFinite("a weight is NaN or infinite")
        weights = np.where(finite, weights, np.float32(0))
    if plain:
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
