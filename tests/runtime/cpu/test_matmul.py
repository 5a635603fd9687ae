"""Every matmul kernel against NumPy: all block types, odd shapes, bias, accumulation, threads."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.quant.jit.levels import LANES
from kukri.runtime.cpu.abi.records import GELU_TANH, MATMUL, QUANTIZE, SILU, STEP
from kukri.runtime.cpu.abi.sizes import (
    BLOCK,
    FEW_ROWS,
    gemm_scratch_bytes,
    residual_list_bytes,
    row_bytes,
    skinny_scratch_bytes,
    tile_bytes,
)
from kukri.runtime.cpu.kernels import (
    FLOAT_GEMMS,
    GEMMS,
    GEMVS,
    LIST_RESIDUALS,
    QUANTIZE_ROW,
    QUANTIZE_ROWS,
    QUANTIZE_TILES,
    SKINNY_GEMMS,
)
from kukri.runtime.cpu.kernels.matmul.gemv import STATS_BYTES
from kukri.runtime.cpu.kernels.matmul.quantize import OUTLIER, RESIDUAL_STEPS
from kukri.runtime.cpu.simd.panels import aligned_empty, repack
from kukri.runtime.cpu.simd.tile_sizes import GROUP, RECORD, RESIDUAL, SCALES, TOGETHER, TOKENS

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
    factors = (0.00123,) if name == "NVFP4" else ()
    return QTensor("w", kind, (rows, width), blocks.reshape(rows, -1), factors)


def call(kernel, arguments: np.ndarray, n_rows: int, n_threads: int = 1) -> None:
    """Run a kernel on all threads, one after the other."""
    step = np.zeros(1, STEP)
    step["n_rows"], step["n_threads"] = n_rows, n_threads
    step["row_tile"] = step["expert_tile"] = 1
    for thread in range(n_threads):
        kernel.compiled.ctypes(arguments.ctypes.data, step.ctypes.data, thread)


class Tiles:
    """Rows of `x` as `quantize_tiles` makes them."""

    def __init__(self, x: np.ndarray, n_threads: int = 1) -> None:
        n, width = x.shape
        self.n, self.groups, self.tiles = n, width // GROUP, -(-n // TOKENS)
        sizes = *tile_bytes(width, n), residual_list_bytes(width, n)[0]
        self.memory = [aligned_empty(size) for size in sizes]
        for part in self.memory:
            part[:] = 0xAA  # what is not written must not matter
        residual_tile = self.groups * TOKENS * RESIDUAL
        self.memory[1][self.tiles * residual_tile :] = 0
        arguments = np.zeros(1, QUANTIZE)
        arguments["x"], arguments["x_stride"], arguments["width"] = x.ctypes.data, x.strides[0], width
        arguments["residual_list_stride"] = residual_list_bytes(width, n)[1]
        for name, part in zip(("out", "residuals", "residual_lists"), self.memory, strict=True):
            arguments[name] = part.ctypes.data
        call(QUANTIZE_TILES, arguments, n, n_threads)
        call(LIST_RESIDUALS, arguments, n, n_threads)

    def stats(self, number: int) -> np.ndarray:
        """float32 [rows, groups]: number 0 is the scales, 1 the sums, 2 and 3 the sums of the halves."""
        records = self.memory[0][: self.tiles * self.groups * RECORD].reshape(-1, self.groups, RECORD)
        at = SCALES + 4 * TOKENS * number
        stats = np.ascontiguousarray(records[..., at : at + 4 * TOKENS]).view(np.float32)
        return stats.transpose(0, 2, 1).reshape(-1, self.groups)[: self.n]

    def _residuals(self) -> np.ndarray:
        """uint8 [rows, groups, RESIDUAL]."""
        shape = (self.tiles, self.groups, TOKENS, RESIDUAL)
        residuals = self.memory[1][: self.tiles * self.groups * TOKENS * RESIDUAL].reshape(shape)
        return residuals.transpose(0, 2, 1, 3).reshape(-1, self.groups, RESIDUAL)[: self.n]

    def residual_scales(self) -> np.ndarray:
        """float32 [rows, groups]; 0 where the lists name no residual codes."""
        scales = np.zeros((self.n, self.groups), np.float32)
        lists = self.memory[2].view(np.int32).reshape(self.groups, -1)
        for g, (count, *rows) in enumerate(lists.tolist()):
            assert rows[:count] == sorted(set(rows[:count]))
            scales[rows[:count], g] = self._residuals()[rows[:count], g, GROUP:].copy().view(np.float32)[:, 0]
        return scales

    def represented(self) -> np.ndarray:
        """The float64 values that the tiles stand for."""
        records = self.memory[0][: self.tiles * self.groups * RECORD].reshape(-1, self.groups, RECORD)
        shape = (self.tiles, self.groups, TOKENS // TOGETHER, GROUP // 8, TOGETHER, 8)
        first = records[..., : TOKENS * GROUP].reshape(shape).view(np.int8)
        first = first.transpose(0, 2, 4, 1, 3, 5).reshape(-1, self.groups, GROUP)[: self.n]
        values = first * self.stats(0).astype(np.float64)[..., None]
        values += (
            self._residuals()[..., :GROUP].view(np.int8)
            * self.residual_scales().astype(np.float64)[..., None]
        )
        return values.reshape(self.n, -1)


def quantized_row(x: np.ndarray) -> np.ndarray:
    """A row as `quantize_row` makes it."""
    out = aligned_empty(row_bytes(len(x)))
    arguments = np.zeros(1, QUANTIZE)
    arguments["x"], arguments["width"], arguments["out"] = x.ctypes.data, len(x), out.ctypes.data
    call(QUANTIZE_ROW, arguments, 1)
    return out


def quantized_rows(x: np.ndarray, n_threads: int = 1) -> np.ndarray:
    """Rows as `quantize_rows` makes them, uint8 [FEW_ROWS, bytes]; the memory behind them is NaN."""
    stride = row_bytes(x.shape[1])
    out = aligned_empty(FEW_ROWS * stride).reshape(FEW_ROWS, stride)
    out[:] = 0xFF
    arguments = np.zeros(1, QUANTIZE)
    arguments["x"], arguments["x_stride"], arguments["width"] = x.ctypes.data, x.strides[0], x.shape[1]
    arguments["out"], arguments["out_stride"] = out.ctypes.data, stride
    call(QUANTIZE_ROWS, arguments, len(x), n_threads)
    return out


def matmul_arguments(weights: QTensor, panels: np.ndarray, out: np.ndarray, accumulate: bool) -> np.ndarray:
    arguments = np.zeros(1, MATMUL)
    arguments["weights"], arguments["n_panels"] = panels.ctypes.data, len(panels)
    arguments["panel_bytes"] = arguments["second_offset"] = panels.shape[1]
    arguments["pair_stride"] = 2 * panels.shape[1]
    arguments["width"] = weights.shape[1]
    arguments["n_blocks"] = weights.shape[1] // weights.format.block_size
    arguments["out"], arguments["out_stride"] = out.ctypes.data, out.strides[0]
    arguments["accumulate"] = accumulate
    return arguments


def multiply(
    weights: QTensor,
    x: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    accumulate: bool = False,
    n_threads: int = 1,
    gate: int = 0,
    kernel: str = "gemm",
) -> np.ndarray:
    """out = x · weightsᵀ by the gemm, the gemv or the skinny gemm; `out` is padded to whole panels.

    Returns the float64 values that the kernel took for `x`. With `gate` the rows of `weights` are two
    matrices, one after the other.
    """
    panels = repack(weights, LANES)
    padded_bias = np.zeros(len(panels) * LANES, np.float32)
    arguments = matmul_arguments(weights, panels, out, accumulate)
    if bias is not None:
        padded_bias[: len(bias)] = bias
        arguments["bias"] = padded_bias.ctypes.data
    if gate:
        arguments["n_panels"], arguments["gate"] = len(panels) // 2, gate
        arguments["pair_stride"] = panels.shape[1]
        arguments["second_offset"] = len(panels) // 2 * panels.shape[1]
    if kernel == "skinny gemm":
        rows = quantized_rows(x, n_threads)
        arguments["x"], arguments["x_stride"] = rows.ctypes.data, rows.strides[0]
        scratch = aligned_empty(n_threads * skinny_scratch_bytes())
        arguments["scratch"], arguments["scratch_stride"] = scratch.ctypes.data, skinny_scratch_bytes()
        call(SKINNY_GEMMS[weights.format.name], arguments, len(x), n_threads)
        return Tiles(x).represented()
    if kernel == "gemv":
        row = x[0] if weights.format.is_float else quantized_row(x[0])
        arguments["x"] = row.ctypes.data
        call(GEMVS[weights.format.name], arguments, 1, n_threads)
        return x.astype(np.float64) if weights.format.is_float else Tiles(x).represented()
    if weights.format.is_float:
        arguments["x"], arguments["x_stride"] = x.ctypes.data, x.strides[0]
        call(FLOAT_GEMMS[weights.format.name], arguments, len(x), n_threads)
        return x.astype(np.float64)
    tiles = Tiles(x)
    for name, part in zip(("x", "residuals", "residual_lists"), tiles.memory, strict=True):
        arguments[name] = part.ctypes.data
    arguments["residual_list_stride"] = residual_list_bytes(x.shape[1], len(x))[1]
    scratch = aligned_empty(n_threads * gemm_scratch_bytes(len(x)))
    arguments["scratch"], arguments["scratch_stride"] = scratch.ctypes.data, gemm_scratch_bytes(len(x))
    call(GEMMS[weights.format.name], arguments, len(x), n_threads)
    return tiles.represented()


multiply_row = partial(multiply, kernel="gemv")
multiply_few = partial(multiply, kernel="skinny gemm")


@pytest.mark.parametrize("width", [32, 96, 576, 32 * (2 * BLOCK + 1)])
def test_quantize(width):
    n = 2 * TOKENS + 1
    x = (RNG.normal(size=(n, width)) * RNG.uniform(0.01, 100, (n, 1))).astype(np.float32)
    x[1] = 0
    x[2, :32] = 0
    x[3, 5] = 1e4  # an outlier: its group gets residual codes
    x[n - 1, width - 1] = -1e4
    tiles = Tiles(x, n_threads=2)
    groups = x.reshape(n, -1, 32)
    peak, rms = np.abs(groups).max(-1), np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True))
    np.testing.assert_allclose(tiles.stats(0), peak / 127, rtol=1e-6)
    two = peak > OUTLIER * rms
    if width > 32:  # a row of one group cannot stand out against itself
        assert two[3, 0]
        assert two[n - 1, -1]
    assert not two[1].any()
    np.testing.assert_array_equal(tiles.residual_scales() != 0, two)
    values = tiles.represented().reshape(groups.shape)
    unit = np.where(two, tiles.stats(0) / RESIDUAL_STEPS, tiles.stats(0))[..., None]
    assert (np.abs(values - groups) <= 0.5001 * unit + 1e-6 * peak[..., None]).all()
    np.testing.assert_allclose(tiles.stats(1), values.sum(-1), rtol=1e-4, atol=1e-4 * peak.max())
    for half in range(2):
        expected = values.reshape(n, -1, 2, 16).sum(-1)[..., half]
        np.testing.assert_allclose(tiles.stats(2 + half), expected, rtol=1e-4, atol=1e-4 * peak.max())


def with_outliers(n: int, width: int) -> np.ndarray:
    """Rows in which some groups have residual codes and some have not."""
    x = RNG.normal(size=(n, width)).astype(np.float32)
    x[:, :: width // 2 + 1] *= 40
    return x


def tolerance(expected: np.ndarray, values: np.ndarray, weights: QTensor) -> float:
    return 2e-6 * (np.abs(expected).max() + np.abs(values).max() * np.abs(weights.dequantize()).max())


@pytest.mark.slow
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
        (2 * LANES, 2 * BLOCK * 32 // kind.block_size + 1, 3 * TOKENS, True, 1),  # several blocks of columns
    ):
        width = blocks * kind.block_size if kind.block_size > 1 else min(blocks * 32, 130) + blocks
        weights = random_weights(name, rows, width)
        x = with_outliers(n, width)
        bias = RNG.normal(size=rows).astype(np.float32) if accumulate else None
        few = [(multiply_few, min(n, FEW_ROWS))] if name in SKINNY_GEMMS else []
        for multiply_any, count in ((multiply, n), (multiply_row, 1), *few):
            out = np.full((count, -(-rows // 16) * 16), 0.5, np.float32)
            values = multiply_any(weights, x[:count], bias, out, accumulate, threads)
            expected = values @ weights.dequantize().astype(np.float64).T
            if accumulate:
                expected += bias + 0.5
            atol = tolerance(expected, values, weights) * max(1, width / 512)
            np.testing.assert_allclose(out[:, :rows], expected, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("gate", [SILU, GELU_TANH])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q6_K"])
def test_gated_matmul(name, gate):
    """f(first half · x) · (second half · x)."""
    rows, n = 3 * LANES, TOKENS + 2
    width = 2 * FORMATS[name].block_size
    weights = random_weights(name, 2 * rows, width)
    for multiply_any, count in (
        (multiply, n),
        (multiply_row, 1),
        (multiply_few, n),
        (multiply_few, FEW_ROWS),
    ):
        x = with_outliers(count, width) * np.float32(0.02)
        out = np.zeros((count, rows), np.float32)
        values = multiply_any(weights, x, None, out, n_threads=2, gate=gate)
        first, second = np.split(values @ weights.dequantize().astype(np.float64).T, 2, axis=1)
        first = np.clip(first, -80, None)  # where the exponential is finite
        inner = first if gate == SILU else 1.5957691216057308 * (first + 0.044715 * first**3)
        expected = first / (1 + np.exp(-inner)) * second
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_rows_are_quantised_as_a_row_is():
    x = with_outliers(FEW_ROWS, 96)
    x[3], x[5, 7] = 0, np.nan
    for threads in (1, 3):
        rows = quantized_rows(x[:11], threads)
        for row, values in zip(rows, x[:11], strict=False):
            used = 2 * 96 + 3 * STATS_BYTES
            alone = quantized_row(values)
            for g in range(3):  # residual codes that are not there are not written
                stats = row[2 * 96 + g * STATS_BYTES :][:STATS_BYTES].view(np.float32)
                if stats[1] == 0:
                    for codes in (row, alone):
                        codes[96 + 32 * g : 96 + 32 * g + 32] = 0
            np.testing.assert_array_equal(row[:used], alone[:used])
        assert (rows[11:] == 0xFF).all()


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K"])
def test_every_number_of_few_rows(name):
    """Each row is what the gemv makes of it, whatever is beside it, also behind the last row."""
    weights = random_weights(name, 2 * LANES + 3, 512)
    x = with_outliers(FEW_ROWS, 512)
    alone = np.zeros((FEW_ROWS, 3 * LANES), np.float32)
    for row in range(FEW_ROWS):
        multiply_row(weights, x[row : row + 1], None, alone[row : row + 1])
    atol = tolerance(alone, x, weights)
    for n in (*range(1, 9), 15, 16, FEW_ROWS - 1, FEW_ROWS):
        for threads in (1, 3):
            out = np.full((FEW_ROWS, 3 * LANES), 7.0, np.float32)
            multiply_few(weights, x[:n], None, out[:n], n_threads=threads)
            np.testing.assert_allclose(out[:n], alone[:n], rtol=0, atol=atol)
            assert (out[n:] == 7).all()


def test_threads_split_the_row_tiles_of_few_panels():
    weights = random_weights("Q4_0", 2 * LANES, 96)
    x = with_outliers(130 * TOKENS - 1, 96)
    outs = []
    for threads in (1, 3, 8):
        outs.append(np.zeros((len(x), 2 * LANES), np.float32))
        values = multiply(weights, x, None, outs[-1], n_threads=threads)
    expected = values @ weights.dequantize().astype(np.float64).T
    np.testing.assert_allclose(outs[0], expected, rtol=0, atol=tolerance(expected, values, weights))
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 253, 254, 255])
def test_mxfp4_scales_at_the_ends_of_their_range(exponent):
    weights = random_weights("MXFP4", LANES, 32, (exponent, exponent + 1))
    weights.data[:, 1:] &= 0x11  # codes 0 and 1 only, so that nothing overflows
    x = (RNG.normal(size=(1, 32)) * 1e-3).astype(np.float32)
    # Tiles hold 12 times the scale, which must be a number.
    for multiply_any in (
        (multiply, multiply_row, multiply_few) if exponent < 250 else (multiply_row, multiply_few)
    ):
        out = np.zeros((1, 16), np.float32)
        values = multiply_any(weights, x, None, out)
        expected = values @ weights.dequantize().astype(np.float64).T
        tiny = 2e-38 * 16  # an underflow to zero is right as well
        atol = np.abs(expected).max() * 1e-5 + tiny
        np.testing.assert_allclose(out[:, :LANES], expected, rtol=1e-4, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "Q2_K", "F16"])
def test_results_do_not_depend_on_threads_or_tiles(name):
    weights = random_weights(name, 70, 512)
    x = with_outliers(9, 512)
    outs = []
    for threads in (1, 2, 7):
        outs.append(np.zeros((9, 80), np.float32))
        multiply(weights, x, None, outs[-1], n_threads=threads)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])
    for row in range(9):
        alone = np.zeros((1, 80), np.float32)
        multiply(weights, x[row : row + 1], None, alone)
        np.testing.assert_array_equal(alone[0], outs[0][row])


@pytest.mark.slow
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
        for multiply_any in (multiply, multiply_row, multiply_few):
            out = np.zeros((1, 16), np.float32)
            values = multiply_any(weights, x, None, out)
            exact = weights.dequantize().astype(np.float64).T
            slack = 1e-6 * (np.abs(values) @ np.abs(exact)).max()  # where large terms cancel
            np.testing.assert_allclose(out[:, :LANES], values @ exact, rtol=1e-5, atol=slack)
