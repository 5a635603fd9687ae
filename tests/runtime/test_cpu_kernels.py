"""Every matmul kernel against NumPy: all block types, odd shapes, bias, accumulation, threads."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.quant.panels import aligned_empty, repack
from kukri.quant.simd import LANES
from kukri.runtime.cpu.matmul import (
    DIGIT,
    FACTS,
    MATMUL,
    MATMULS,
    OUTLIER,
    QUANTIZE,
    quantize,
    quantized_row_bytes,
)
from kukri.runtime.cpu.records import STEP

RNG = np.random.default_rng(11)
SCALES_AT = {  # byte offsets of the fp16 scales of a block, which random bytes would make NaN
    **dict.fromkeys(("Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


def random_weights(name: str, rows: int, width: int, exponents=(118, 132)) -> QTensor:
    kind = FORMATS[name]
    if kind.is_float:
        values = RNG.normal(size=(rows, width)).astype(np.float32)
        data = {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
        }[name].view(np.uint8)
        return QTensor("w", kind, (rows, width), data)
    blocks = RNG.integers(0, 256, (rows, width // kind.block_size, kind.type_size), dtype=np.uint8)
    for at in SCALES_AT.get(name, ()):
        scales = (RNG.normal(size=(*blocks.shape[:2], 1)) * 0.1).astype(np.float16)
        blocks[..., at : at + 2] = scales.view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = RNG.integers(*exponents, blocks.shape[:2])
    return QTensor("w", kind, (rows, width), blocks.reshape(rows, -1))


def quantized(x: np.ndarray, n_threads: int = 1) -> np.ndarray:
    """Rows of `x` as the quantise kernel makes them, uint8 [rows, quantized_row_bytes]."""
    n, width = x.shape
    out = aligned_empty(n * quantized_row_bytes(width)).reshape(n, -1)
    arguments, step = np.zeros(1, QUANTIZE), np.zeros(1, STEP)
    step["n_rows"], step["n_threads"] = n, n_threads
    arguments["x"], arguments["x_stride"] = x.ctypes.data, x.strides[0]
    arguments["out"], arguments["out_stride"] = out.ctypes.data, out.strides[0]
    arguments["width"] = width
    for thread in range(n_threads):
        quantize.compiled.ctypes(arguments.ctypes.data, step.ctypes.data, thread)
    return out


def parts(rows: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First digits, second digits, and the facts [rows, groups, 5] of quantised rows."""
    first, second, facts, _ = np.split(rows, (width, 2 * width, 2 * width + width // 32 * 20), axis=1)
    facts = np.ascontiguousarray(facts).view(np.float32).reshape(len(rows), -1, FACTS)
    return first.view(np.int8), second.view(np.int8), facts


def represented(rows: np.ndarray, width: int) -> np.ndarray:
    """The float64 values that quantised rows stand for."""
    first, second, facts = parts(rows, width)
    groups = (len(rows), -1, 32)
    has_second = facts[..., 1:2] != 0  # without one, the digits were never written
    digits = np.where(has_second, second.reshape(groups), 0)
    values = first.reshape(groups) * facts[..., :1].astype(np.float64) + digits * facts[..., 1:2]
    return values.reshape(len(rows), width)


def multiply(
    weights: QTensor, x: np.ndarray, bias: np.ndarray | None, out: np.ndarray, accumulate=False, n_threads=1
) -> None:
    """out = x · weightsᵀ by the kernel; `x` float32 or quantised rows, `out` padded to whole panels."""
    panels = repack(weights, LANES)
    padded_bias = np.zeros(len(panels) * LANES, np.float32)
    if bias is not None:
        padded_bias[: len(bias)] = bias
    arguments, step = np.zeros(1, MATMUL), np.zeros(1, STEP)
    step["n_rows"], step["n_threads"] = len(x), n_threads
    arguments["weights"], arguments["n_panels"] = panels.ctypes.data, len(panels)
    arguments["panel_bytes"], arguments["width"] = panels.shape[1], weights.shape[1]
    arguments["n_blocks"] = weights.shape[1] // weights.format.block_size
    arguments["x"], arguments["x_stride"] = x.ctypes.data, x.strides[0]
    arguments["out"], arguments["out_stride"] = out.ctypes.data, out.strides[0]
    arguments["bias"] = 0 if bias is None else padded_bias.ctypes.data
    arguments["accumulate"] = accumulate
    for thread in range(n_threads):
        kernel = MATMULS[weights.format.name].compiled.ctypes
        kernel(arguments.ctypes.data, step.ctypes.data, thread)


def operand(weights: QTensor, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel reads, and the float64 activations that this stands for."""
    if weights.format.is_float:
        return x, x.astype(np.float64)
    rows = quantized(x)
    return rows, represented(rows, x.shape[1])


@pytest.mark.parametrize("width", [32, 96, 576])
def test_quantize(width):
    x = (RNG.normal(size=(5, width)) * RNG.uniform(0.01, 100, (5, 1))).astype(np.float32)
    x[1] = 0
    x[2, :32] = 0
    x[3, 5] = 1e4  # an outlier: its group gets a second digit
    rows = quantized(x, n_threads=2)
    first, _, facts = parts(rows, width)
    groups = x.reshape(5, -1, 32)
    peak, rms = np.abs(groups).max(-1), np.sqrt((groups.astype(np.float64) ** 2).mean(-1))
    np.testing.assert_allclose(facts[..., 0], peak / 127, rtol=1e-6)
    two = peak > OUTLIER * rms
    assert two[3, 0]
    assert not two[1].any()
    np.testing.assert_array_equal(facts[..., 1] != 0, two)
    values = represented(rows, width).reshape(groups.shape)
    unit = np.where(two, facts[..., 0] / DIGIT, facts[..., 0])[..., None]
    assert (np.abs(values - groups) <= 0.5001 * unit + 1e-6 * peak[..., None]).all()
    assert first.min() >= -127
    np.testing.assert_allclose(facts[..., 2], values.sum(-1), rtol=1e-4, atol=1e-4 * peak.max())
    halves = values.reshape(5, -1, 2, 16).sum(-1)
    np.testing.assert_allclose(facts[..., 3:], halves, rtol=1e-4, atol=1e-4 * peak.max())


@pytest.mark.parametrize("name", FORMATS)
def test_matmul(name):
    """All token counts around the tile, rows that do not fill a panel, both outputs, several threads."""
    kind = FORMATS[name]
    for rows, blocks, n, accumulate, threads in (
        (1, 1, 1, False, 1),
        (LANES, 2, 4, True, 1),
        (3 * LANES + 5, 3, 5, False, 2),
        (37, 2, 11, True, 3),
        (2, 1, 2, False, 5),
    ):
        width = blocks * (kind.block_size if kind.block_size > 1 else 24 + blocks)
        weights = random_weights(name, rows, width)
        x = RNG.normal(size=(n, width)).astype(np.float32)
        x[:, :: width // 2 + 1] *= 40  # outliers, so that some groups have second digits and some have not
        read, values = operand(weights, x)
        bias = RNG.normal(size=rows).astype(np.float32) if accumulate else None
        out = np.full((n, -(-rows // 16) * 16), 0.5, np.float32)
        multiply(weights, read, bias, out, accumulate, threads)
        expected = values @ weights.dequantize().astype(np.float64).T
        if accumulate:
            expected += bias + 0.5
        scale = np.abs(expected).max() + np.abs(values).max() * np.abs(weights.dequantize()).max()
        np.testing.assert_allclose(out[:, :rows], expected, rtol=0, atol=2e-6 * scale)


@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 253, 254, 255])
def test_mxfp4_scales_at_the_ends_of_their_range(exponent):
    weights = random_weights("MXFP4", LANES, 32, (exponent, exponent + 1))
    weights.data[:, 1:] &= 0x11  # codes 0 and 1 only, so that nothing overflows
    x = (RNG.normal(size=(1, 32)) * 1e-3).astype(np.float32)
    read, values = operand(weights, x)
    out = np.zeros((1, 16), np.float32)
    multiply(weights, read, None, out)
    expected = values @ weights.dequantize().astype(np.float64).T
    tiny = 2e-38  # an underflow to zero is right as well
    np.testing.assert_allclose(out[:, :LANES], expected, rtol=1e-4, atol=np.abs(expected).max() * 1e-5 + tiny)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "Q2_K", "F16"])
def test_results_do_not_depend_on_threads_or_tiles(name):
    weights = random_weights(name, 70, 512)
    x = RNG.normal(size=(9, 512)).astype(np.float32)
    read, _ = operand(weights, x)
    outs = []
    for threads in (1, 2, 7):
        outs.append(np.zeros((9, 80), np.float32))
        multiply(weights, read, None, outs[-1], n_threads=threads)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])
    if not weights.format.is_float:  # a single token of those is added up in another order
        for row in range(9):
            alone = np.zeros((1, 80), np.float32)
            multiply(weights, read[row : row + 1], None, alone)
            np.testing.assert_array_equal(alone[0], outs[0][row])


def test_saturation_cannot_happen():
    """The largest codes against the largest activations: 16-bit sums in between must not overflow."""
    for name, byte in (("Q4_1", 0xFF), ("Q5_1", 0xFF), ("Q8_0", 0x80), ("Q8_0", 0x7F), ("Q6_K", 0xFF)):
        kind = FORMATS[name]
        weights = random_weights(name, LANES, kind.block_size)
        blocks = weights.data.reshape(LANES, -1)
        scales = {i for at in SCALES_AT[name] for i in (at, at + 1)}
        scales |= set(range(192, 208)) if name == "Q6_K" else set()
        for i in set(range(kind.type_size)) - scales:
            blocks[:, i] = byte
        x = np.full((1, kind.block_size), -3.0, np.float32)
        read, values = operand(weights, x)
        out = np.zeros((1, 16), np.float32)
        multiply(weights, read, None, out)
        expected = values @ weights.dequantize().astype(np.float64).T
        np.testing.assert_allclose(out[:, :LANES], expected, rtol=1e-5)
