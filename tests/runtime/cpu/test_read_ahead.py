"""Gemv kernels read ahead, with loads on some CPUs, but nothing behind their weights."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import sys

import numpy as np
import pytest

from kukri.quant.jit.levels import LANES
from kukri.runtime.cpu.abi.records import QUANTIZE
from kukri.runtime.cpu.abi.sizes import row_bytes
from kukri.runtime.cpu.kernels import GEMVS, QUANTIZE_ROW
from kukri.runtime.cpu.simd.panels import aligned_empty, repack

from .test_matmul import call, matmul_arguments, random_weights


def in_front_of_a_forbidden_page(content: np.ndarray) -> np.ndarray:
    """A copy of uint8 [n] that ends where a page begins that no load may touch. It is never freed."""
    page = mmap.PAGESIZE
    room = -(-content.size // page) * page
    memory = mmap.mmap(-1, room + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + room), ctypes.c_size_t(page), 0) == 0
    copy = np.frombuffer(memory, np.uint8, content.size, room - content.size)
    copy[:] = content
    return copy


@pytest.mark.skipif(sys.platform != "linux", reason="forbids a page with mprotect, and forks")
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "F16"])
@pytest.mark.parametrize(("rows", "width"), [(1, 256), (5 * LANES, 512)])
def test_nothing_behind_the_weights_is_read(name, rows, width):
    weights = random_weights(name, rows, width)
    x = np.random.default_rng(3).normal(size=width).astype(np.float32)
    row = x
    if not weights.format.is_float:
        row, quantize = aligned_empty(row_bytes(width)), np.zeros(1, QUANTIZE)
        quantize["x"], quantize["width"], quantize["out"] = x.ctypes.data, width, row.ctypes.data
        call(QUANTIZE_ROW, quantize, 1)
    panels = repack(weights, LANES)
    guarded = in_front_of_a_forbidden_page(panels.reshape(-1)).reshape(panels.shape)

    def product(where: np.ndarray, n_threads: int) -> np.ndarray:
        out = np.zeros((1, len(where) * LANES), np.float32)
        arguments = matmul_arguments(weights, where, out, accumulate=False)
        arguments["x"] = row.ctypes.data
        call(GEMVS[name], arguments, 1, n_threads)
        return out

    expected = product(panels, 1)
    assert np.isfinite(expected).all()

    def compare() -> None:  # in a process of its own, which a forbidden load ends
        for n_threads in (1, 2, 3):
            np.testing.assert_array_equal(product(guarded, n_threads), expected)

    child = multiprocessing.get_context("fork").Process(target=compare)
    child.start()
    child.join(60)
    assert child.exitcode == 0
