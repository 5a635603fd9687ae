"""Packing of weights, and unpacking in the kernels, for every block format."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.runtime.cuda.compile.stage import registers, static
from kukri.runtime.cuda.kernels.common.gather import embed, embed_floats
from kukri.runtime.cuda.kernels.matmul.scales import nvfp4_scale, power_of_two, quick_power_of_two, two_e4m3
from kukri.runtime.cuda.kernels.matmul.unpack import READERS
from kukri.runtime.cuda.ptx import as_int, load_int4, store_float, store_int, thread
from kukri.runtime.cuda.weights.packing import pack, packed_bytes, tile_bytes

from ..simulator import run


def random_tensor(name: str, rows: int, width: int, seed: int = 0) -> QTensor:
    """Random blocks with scales that are small and finite."""
    rng, form = np.random.default_rng(seed), FORMATS[name]
    data = rng.integers(0, 256, (rows, form.row_bytes(width)), dtype=np.uint8)
    blocks = data.reshape(-1, form.type_size)
    if form.is_float:
        values = rng.standard_normal((rows, width)).astype(np.float32)
        kinds = {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": values.view(np.uint16)[:, 1::2].copy(),
        }
        data = kinds[name].view(np.uint8).reshape(rows, -1)
    halves = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q2_K": (80, 82)}
    halves |= {"Q6_K": (208,), "Q3_K": (108,)}
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 130, len(blocks))
        blocks[:2, 0] = 0, 1
    elif name == "NVFP4":
        blocks[0, :4] = 1, 7, 127, 255  # subnormal, NaN, and the largest
        return QTensor("random", form, (rows, width), data, (0.00123,))
    elif not form.is_float:
        for at in halves.get(name, (0,)):
            scales = rng.uniform(-0.02, 0.02, len(blocks)).astype(np.float16)
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return QTensor("random", form, (rows, width), data)


def packed(tensor: QTensor) -> np.ndarray:
    """The packed matrix: a row of the array for each tile, or for each row of a float matrix."""
    size = tile_bytes(tensor)
    out = np.full((packed_bytes(tensor) // size, size), 0xFF, np.uint8)
    pack(tensor, 0, out)
    return out


@pytest.mark.parametrize("name", READERS)
def test_blocks(name):
    width = {32: 480, 64: 448}.get(FORMATS[name].block_size, 512)
    tensor = random_tensor(name, 19, width)
    rows, tokens = packed(tensor), np.array([2, 0, 18, 19], np.int32)
    out = np.full((4, width), np.nan, np.float32)
    arguments = [tokens, rows, rows.shape[1], width // 32, 19, out, 4 * width, 2.0]
    run(embed, {**READERS[name], "PDL": 0}, (1, 4), 128, arguments)
    np.testing.assert_allclose(out, 2 * tensor.rows(np.array([2, 0, 18, 0])), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", READERS)
def test_parts(name):
    """Rows packed in parts, from a multiple of 16 on, are those of the whole."""
    tensor = random_tensor(name, 40, 256)
    whole, part = packed(tensor), np.full((2, tile_bytes(tensor)), 0xFF, np.uint8)
    pack(tensor, 16, part)
    np.testing.assert_array_equal(part, whole[1:])


@pytest.mark.parametrize(("name", "kind"), [("F32", 32), ("F16", 16), ("BF16", 0)])
def test_floats(name, kind):
    tensor = random_tensor(name, 3, 200)
    rows, tokens = packed(tensor), np.array([1, 2], np.int32)
    out = np.full((2, 200), np.nan, np.float32)
    arguments = [tokens, rows, rows.shape[1], 200, 3, out, 4 * 200, 1.0]
    run(embed_floats, {"FLOAT": kind, "PDL": 0}, (2, 2), 128, arguments)
    np.testing.assert_array_equal(out, tensor.rows(tokens))


def unpack_twice(words, codes, sums):
    """The codes of a lane's four words, as they are and as sums."""
    piece = registers(4)
    whole = registers(8)
    parts = registers(16)
    piece[()] = load_int4(words + 16 * thread())
    whole[()] = UNPACK_CODES(*piece[()])
    parts[()] = UNPACK_SUMMANDS(0, *piece[()])
    for i in static(8):
        store_int(codes + 4 * (8 * thread() + i), whole[i])
        for k in static(2):
            store_int(sums + 4 * (16 * thread() + 2 * i + k), parts[2 * i + k])


UNPACK_CODES = UNPACK_SUMMANDS = None  # constants of the launch


@pytest.mark.parametrize("name", [name for name in READERS if READERS[name]["SUMMANDS"]])
def test_tables_as_sums(name):
    nibbles = np.random.default_rng(0).integers(0, 16, (32, 4, 8))
    if name in ("MXFP4", "NVFP4"):
        nibbles[nibbles == 4] = 0  # a negative 0, which packed weights do not have
    words = (nibbles.astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    codes, sums = np.zeros((32, 8, 4), np.int8), np.zeros((32, 8, 2, 4), np.int8)
    run(unpack_twice, READERS[name], (1,), 32, [words, codes, sums])
    np.testing.assert_array_equal(sums.astype(int).sum(2), codes)
    assert len(np.unique(codes)) == (15 if name in ("MXFP4", "NVFP4") else 16)


def scales_twice(out):
    """Scales of MXFP4 and NVFP4, each by the function of decode products and by that of the others."""
    for i in range(thread(), 256, 32):
        a, _, _, _ = power_of_two(i, 0)
        b, _, _, _ = quick_power_of_two(i, 0)
        scales = (i & 127) + 256 * (127 - (i & 127))
        c, _, d, _ = nvfp4_scale(scales, as_int(1.0), 0)
        e, _, f, _ = two_e4m3(scales, 0)
        at = out + 24 * i
        store_float(at, a)
        store_float(at + 4, b)
        store_float(at + 8, c)
        store_float(at + 12, e)
        store_float(at + 16, d)
        store_float(at + 20, f)


def test_scales_of_decode_products():
    out = np.full((256, 3, 2), np.nan, np.float32)
    run(scales_twice, {}, (1,), 32, [out])
    np.testing.assert_array_equal(out[..., 0], out[..., 1])
    np.testing.assert_array_equal(out[:, 0, 0], np.ldexp(np.float32(1), np.arange(256) - 128))


def test_sizes():
    """Nothing grows by more than a byte for each 6-bit scale, or four for 256 weights in NVFP4, where
    rows and blocks fill tiles and chunks."""
    for name in READERS:
        tensor = random_tensor(name, 32, 4096)
        growth = packed_bytes(tensor) / tensor.data.size
        assert growth < {"Q3_K": 1.05, "Q4_K": 1.03, "Q5_K": 1.03, "IQ4_XS": 1.02, "NVFP4": 1.03}.get(
            name, 1 + 1e-9
        )
