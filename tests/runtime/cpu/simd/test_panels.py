"""Repacking into row panels: every byte of the file is there once, where the layout says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.quant.formats.nvfp4 import E4M3, scale_codes
from kukri.runtime.cpu.simd.panels import (
    HIGH_BITS_PLANE,
    NORMAL_SCALES,
    PLANES,
    WITH_FACTOR,
    regroup_high_bits,
    repack,
    repacked_bytes,
    stored_factor,
)

RNG = np.random.default_rng(3)


def random_tensor(name: str, rows: int, blocks: int) -> QTensor:
    kind = FORMATS[name]
    data = RNG.integers(0, 256, (rows, blocks * kind.type_size), dtype=np.uint8)
    return QTensor("w", kind, (rows, blocks * kind.block_size), data)


def test_planes_cover_every_byte_of_a_block_once():
    assert PLANES.keys() == FORMATS.keys()
    for name, planes in PLANES.items():
        covered = sorted(i for p in planes for i in range(p.offset, p.offset + p.n_bytes))
        assert covered == list(range(FORMATS[name].type_size)), name


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "blocks"), [(16, 1), (37, 3), (1, 2), (9, 23)])
def test_layout(name, lanes, rows, blocks):
    """panel[block][plane][element][row], looked up one element at a time."""
    tensor = random_tensor(name, rows, blocks)
    panels = repack(tensor, lanes)
    n_panels = -(-rows // lanes)
    planes = lanes * tensor.data.shape[1]
    factor = 4 * lanes if name in WITH_FACTOR else 0
    assert panels.shape == (n_panels, planes + factor)  # not a bit more a weight
    if factor:
        assert (panels[:, planes:].view(np.float32) == stored_factor(tensor)).all()
    assert panels.ctypes.data % 64 == 0
    padded = np.zeros((n_panels * lanes, blocks, tensor.format.type_size), np.uint8)
    padded[:rows] = tensor.data.reshape(rows, blocks, -1)
    if name == "NVFP4":
        padded[..., :4] = NORMAL_SCALES[padded[..., :4]]
    at, in_blocks = 0, panels[:, :planes].reshape(n_panels, blocks, -1)
    for i, plane in enumerate(PLANES[name]):
        element = np.dtype(f"u{plane.size}")
        stored = np.ascontiguousarray(in_blocks[:, :, at : at + lanes * plane.n_bytes]).view(element)
        stored = stored.reshape(n_panels, blocks, plane.count, lanes)
        at += lanes * plane.n_bytes
        for row in range(n_panels * lanes):
            for block in range(blocks):
                piece = padded[row, block, plane.offset : plane.offset + plane.n_bytes].view(element)
                if HIGH_BITS_PLANE.get(name) == i:
                    piece = regroup_high_bits(piece)
                np.testing.assert_array_equal(stored[row // lanes, block, :, row % lanes], piece)


def test_scales_of_nvfp4_are_normal_numbers():
    codes = np.arange(256)
    values = (NORMAL_SCALES[codes].astype(np.uint32) << 20).view(np.float32)
    assert ((values == 0) | (values >= np.finfo(np.float32).tiny)).all()
    np.testing.assert_array_equal(values * np.float32(2.0**117), E4M3[scale_codes(codes)])


def test_regrouped_high_bits():
    for k in range(32):
        word = np.array([1 << k], np.uint32)
        assert regroup_high_bits(word)[0] == 1 << (8 * (k % 4) + k // 4)
    words = RNG.integers(0, 2**32, 100, dtype=np.uint32)
    assert len(set(regroup_high_bits(words).tolist())) == len(set(words.tolist()))


def test_parts_of_the_rows_give_the_same():
    """Rows repacked in parts of whole panels, into one array."""
    tensor = random_tensor("Q4_0", 45, 4)
    out = np.zeros(repacked_bytes(tensor, 8), np.uint8)
    for rows in (slice(0, 16), slice(16, 40), slice(40, 45)):
        part = QTensor("w", tensor.format, (len(tensor.data[rows]), 128), tensor.data[rows])
        start = rows.start * tensor.data.shape[1]
        repack(part, 8, out[start : start + repacked_bytes(part, 8)])
    np.testing.assert_array_equal(out, repack(tensor, 8).ravel())


def test_parts_from_several_threads():
    """The same result when all parts are repacked at once, and none beyond its own bytes."""
    tensor = random_tensor("Q5_1", 64, 3)
    row_bytes = tensor.data.shape[1]
    out = np.zeros(repacked_bytes(tensor, 16), np.uint8)

    def part(first: int) -> None:
        data = tensor.data[first : first + 16]
        repack(QTensor("w", tensor.format, (16, 96), data), 16, out[first * row_bytes :][: data.size])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(part, range(0, 64, 16)))
    np.testing.assert_array_equal(out, repack(tensor, 16).ravel())


def test_rows_that_do_not_lie_together():
    tensor = random_tensor("Q4_0", 24, 2)
    wide = np.zeros((24, 2 * tensor.data.shape[1]), np.uint8)
    wide[:, ::2] = tensor.data
    strided = QTensor("w", tensor.format, tensor.shape, wide[:, ::2])
    np.testing.assert_array_equal(repack(strided, 8), repack(tensor, 8))
