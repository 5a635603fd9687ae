"""Matrix products in matrix tiles against NumPy, with tile registers in memory (`simd.tile_unit`).

The code of AMX itself is compiled and read here, and run where there is such a CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.jit.levels import LANES, LEVEL, cpu_features, supported_levels
from kukri.runtime.cpu import matrix_tiles
from kukri.runtime.cpu.abi.records import GELU_TANH, MATMUL, QUANTIZE, SILU
from kukri.runtime.cpu.abi.sizes import matrix_tile_bytes, tile_gemm_scratch_bytes
from kukri.runtime.cpu.kernels import TILE_GEMMS, TILE_ROWS
from kukri.runtime.cpu.kernels.matmul.unpack import CODES, MINIMA
from kukri.runtime.cpu.lowering import lower
from kukri.runtime.cpu.lowering import matrix_tiles as tile_lowering
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.cpu.simd.panels import aligned_empty, repack
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.machine import ReferenceMachine

from .programs import VOCAB, program
from .test_matmul import call, random_weights
from .test_moe import VOCAB as EXPERTS_VOCAB
from .test_moe import program as experts_program

if LEVEL != "plain16" and (LANES != 16 or not cpu_features().get("avx512bf16")):
    pytest.skip("needs AVX-512 BF16, or level plain16", allow_module_level=True)

from .simd.tile_unit import ATTENTIONS, KERNELS

RNG = np.random.default_rng(5)
UNITS = {"memory": KERNELS} | ({"AMX": TILE_GEMMS} if matrix_tiles.usable_tiles() else {})


@pytest.fixture(params=UNITS, autouse=True)
def unit(request, monkeypatch):
    """The kernels with registers in memory, and those of this CPU if it has them."""
    monkeypatch.setattr(sys.modules[__name__], "KERNELS", UNITS[request.param])


def rounded(x: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, to even; as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def tiles_of(x: np.ndarray, n_threads: int = 1, split: bool = False) -> np.ndarray:
    """Rows as `tile_rows` makes them; with `split`, what bfloat16 lacks is behind them."""
    n_bytes = matrix_tile_bytes(x.shape[1], len(x))
    out = aligned_empty((1 + split) * n_bytes)
    out[:] = 0xAA
    arguments = np.zeros(1, QUANTIZE)
    arguments["x"], arguments["x_stride"] = x.ctypes.data, x.strides[0]
    arguments["width"], arguments["out"] = x.shape[1], out.ctypes.data
    arguments["rest"] = n_bytes if split else 0
    call(TILE_ROWS, arguments, len(x), n_threads)
    return out


def product(
    weights, x: np.ndarray, n_threads: int = 1, up=None, gate: int = 0, bias=None, out=None, limits=(0, 0)
) -> np.ndarray:
    """out = x · Wᵀ by the kernel, with all that an epilogue can do."""
    n_out = -(-weights.shape[0] // LANES) * LANES
    panels = [repack(w, LANES) for w in ([weights] if up is None else [weights, up])]
    tiles = tiles_of(x, split=weights.format.is_float)
    scratch_bytes = tile_gemm_scratch_bytes()
    scratch = aligned_empty(n_threads * scratch_bytes)
    scratch[:] = 0xFF
    result = np.full((len(x), n_out), np.nan, np.float32)
    arguments = np.zeros(1, MATMUL)
    if out is not None:
        result[:, : out.shape[1]] = out
        arguments["accumulate"] = 1
    arguments["weights"], arguments["n_panels"] = panels[0].ctypes.data, n_out // LANES
    size = panels[0].nbytes // (n_out // LANES)
    arguments["panel_bytes"], arguments["pair_stride"], arguments["second_offset"] = size, 2 * size, size
    if up is not None:
        arguments["pair_stride"], arguments["gate"] = size, gate
        arguments["second_offset"] = panels[1].ctypes.data - panels[0].ctypes.data
    if bias is not None:
        padded = np.zeros(n_out, np.float32)
        padded[: len(bias)] = bias
        arguments["bias"] = padded.ctypes.data
    arguments["n_blocks"] = x.shape[1] // weights.format.block_size
    arguments["width"], arguments["x"] = x.shape[1], tiles.ctypes.data
    arguments["out"], arguments["out_stride"] = result.ctypes.data, result.strides[0]
    arguments["min_rows"], arguments["max_rows"] = limits
    arguments["x_rest"] = matrix_tile_bytes(x.shape[1], len(x))
    tickets = np.zeros(1, np.int64)
    arguments["tickets"] = tickets.ctypes.data
    arguments["scratch"], arguments["scratch_stride"] = scratch.ctypes.data, scratch_bytes
    call(KERNELS[weights.format.name], arguments, len(x), n_threads)
    assert tickets[0] == 0
    return result[:, : weights.shape[0]]


def expected(weights, x: np.ndarray) -> np.ndarray:
    """The product of operands rounded to bfloat16, in float64."""
    return rounded(x).astype(np.float64) @ rounded(weights.dequantize()).astype(np.float64).T


def other_way(weights: np.ndarray, name: str) -> np.ndarray:
    """By how much a weight may be off that is rounded to the other bfloat16.

    The kernel computes number · scale + offset (`simd.amx._Numbers`), where the number of a code is 128 to
    512 and the offset takes back what that is too much. A scale of 18 bits leaves room for it, so that all is
    exact; but with a minimum, or NVFP4's factor, the offset and the weight are rounded, by up to half a unit
    in the last place. The codes of some sub-block of 16 weights span a half of their range at least.
    """
    largest = np.abs(weights).max(axis=1, keepdims=True)
    if (codes := CODES.get(name)) is None:
        slack = largest * 2.0**-21
    elif name not in MINIMA and name != "NVFP4":
        slack = np.zeros_like(largest)
    else:
        spans = np.ptp(weights.reshape(len(weights), -1, 16), axis=2).max(axis=1, keepdims=True)
        scale = spans / ((2 * codes.limit if codes.signed else codes.limit) / 2)
        zero = 256 + 128 if codes.signed else 128 + codes.zero
        slack = (zero * scale + 2 * largest) * 2.0**-24  # a minimum is no larger than a weight
    return np.abs(rounded(weights + slack) - rounded(weights - slack))


def assert_close(found: np.ndarray, wanted: np.ndarray, weights, x: np.ndarray) -> None:
    """Within what float32 sums may differ, and weights that lie between two bfloat16 numbers."""
    dense, x = weights.dequantize(), np.abs(rounded(x))
    assert np.isfinite(found).all()
    between = other_way(dense, weights.format.name)
    assert between.sum() < np.abs(dense).sum() / 1_000
    assert (np.abs(found - wanted) <= 2e-6 * (x @ np.abs(dense).T) + x @ between.T).all()


def test_rows_are_rounded_and_laid_out_in_tiles():
    x = RNG.normal(size=(37, 96)).astype(np.float32)
    x[3, 5], x[36, 95] = np.nan, np.inf
    tiles = tiles_of(x)
    np.testing.assert_array_equal(tiles, tiles_of(x, n_threads=3))
    bits = tiles.view(np.uint16).reshape(3, 3, 16, 8, 4)[..., [0, 2, 1, 3]]
    values = (bits.astype(np.uint32) << 16).view(np.float32).transpose(0, 2, 1, 3, 4).reshape(48, 96)
    assert np.isnan(values[3, 5])
    assert values[36, 95] == np.inf
    x[3, 5] = values[3, 5] = 0
    np.testing.assert_array_equal(values[:37], np.where(np.isinf(x), x, rounded(x)))
    assert not values[37:].any()


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "NVFP4", "Q2_K"])
def test_formats(name):
    """One of each shape of unpacked weights, signed and unsigned."""
    weights = random_weights(name, 40, 512)
    x = RNG.normal(size=(33, 512)).astype(np.float32)
    assert_close(product(weights, x), expected(weights, x), weights, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q5_0", "Q5_1", "Q5_K", "Q3_K", "IQ4_NL", "IQ4_XS"])
def test_other_formats(name):
    weights = random_weights(name, 40, 512)
    x = RNG.normal(size=(33, 512)).astype(np.float32)
    assert_close(product(weights, x), expected(weights, x), weights, x)


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_floats(name):
    """Float weights and activations are not rounded to one bfloat16 but two, which leave 2**-17 of each."""
    weights = random_weights(name, 40, 1056)
    x = RNG.normal(size=(83, 1056)).astype(np.float32)
    bias = RNG.normal(size=40).astype(np.float32)
    exact = x.astype(np.float64) @ weights.dequantize().astype(np.float64).T
    size = np.abs(x) @ np.abs(weights.dequantize()).T
    error = np.abs(product(weights, x, n_threads=2, bias=bias) - bias - exact) / size
    assert error.max() < 2.0**-16
    assert error.mean() < 3e-7


@pytest.mark.parametrize(
    ("rows", "outputs", "width"),
    [(1, 16, 32), (16, 17, 64), (32, 33, 544), (65, 300, 1056), (515, 40, 1120), (1060, 18, 2048)],
)
def test_shapes(rows, outputs, width):
    """Fewer rows than a tile; an odd number of panels; groups beyond a block of weights; more columns than a
    part of the activations, and more rows than are multiplied at a time."""
    weights = random_weights("Q4_0", outputs, width)
    x = RNG.normal(size=(rows, width)).astype(np.float32)
    found = product(weights, x)
    assert_close(found, expected(weights, x), weights, x)
    for n_threads in (2, 3, 9):  # with many, activations are prefetched
        np.testing.assert_array_equal(product(weights, x, n_threads), found)


def test_a_row_is_the_same_beside_others():
    weights = random_weights("Q4_0", 48, 640)
    x = RNG.normal(size=(70, 640)).astype(np.float32)
    np.testing.assert_array_equal(product(weights, x)[5:40], product(weights, x[5:40].copy()))


def test_experts():
    """Each matrix and bias on its own rows: none, one tile, a block and a half, more than are multiplied at a
    time."""
    counts, outputs, width = [0, 16, 48, 0, 544, 32], 40, 96
    experts = [random_weights("Q4_0", outputs, width) for _ in counts]
    x = RNG.normal(size=(sum(counts), width)).astype(np.float32)
    bias = RNG.normal(size=(len(counts), 48)).astype(np.float32)
    panels = np.stack([repack(w, LANES) for w in experts])
    ends, tiles = np.cumsum([0, *counts]).astype(np.int32), tiles_of(x)
    first_tiles, count = ends // 16, np.array([len(x)], np.int32)
    arguments = np.zeros(1, MATMUL)
    arguments["weights"], arguments["n_panels"] = panels.ctypes.data, 3
    size = panels.shape[2]
    arguments["pair_stride"], arguments["second_offset"] = 2 * size, size
    arguments["n_blocks"], arguments["width"], arguments["x"] = width // 32, width, tiles.ctypes.data
    arguments["n_experts"], arguments["expert_stride"] = len(counts), panels.strides[0]
    arguments["bias"], arguments["bias_stride"] = bias.ctypes.data, bias.strides[0]
    arguments["expert_tiles"], arguments["n_rows_address"] = first_tiles.ctypes.data, count.ctypes.data
    tickets = np.zeros(1, np.int64)
    arguments["tickets"] = tickets.ctypes.data
    for n_threads in (1, 2, 5):
        out = np.full((len(x), 48), np.nan, np.float32)
        scratch = aligned_empty(n_threads * tile_gemm_scratch_bytes())
        arguments["out"], arguments["out_stride"] = out.ctypes.data, out.strides[0]
        arguments["scratch"], arguments["scratch_stride"] = scratch.ctypes.data, tile_gemm_scratch_bytes()
        call(KERNELS["Q4_0"], arguments, 1, n_threads)
        for e, weights in enumerate(experts):
            rows = slice(ends[e], ends[e + 1])
            if counts[e]:
                found = out[rows, :outputs] - bias[e, :outputs]
                assert_close(found, expected(weights, x[rows]), weights, x[rows])


def test_rows_left_to_another_kernel():
    """No output is written where there are more or fewer rows than the kernel takes."""
    weights, x = random_weights("Q4_0", 16, 32), RNG.normal(size=(17, 32)).astype(np.float32)
    for limits, runs in (((18, 0), False), ((0, 16), False), ((17, 17), True)):
        assert np.isfinite(product(weights, x, limits=limits)).all() == runs


def test_bias_and_accumulation():
    weights = random_weights("Q4_0", 24, 64)
    x = RNG.normal(size=(40, 64)).astype(np.float32)
    bias = RNG.normal(size=24).astype(np.float32)
    before = RNG.normal(size=(40, 24)).astype(np.float32)
    wanted = expected(weights, x)
    assert_close(product(weights, x, bias=bias) - bias, wanted, weights, x)
    assert_close(product(weights, x, out=before) - before, wanted, weights, x)


@pytest.mark.parametrize("gate", [SILU, GELU_TANH])
def test_gated(gate):
    first, second = random_weights("Q4_0", 48, 96), random_weights("Q4_0", 48, 96)
    x = 0.1 * RNG.normal(size=(40, 96)).astype(np.float32)
    a, b = expected(first, x), expected(second, x)
    inner = a if gate == SILU else 2 * 0.7978845608028654 * (a + 0.044715 * a**3)
    found = product(first, x, n_threads=2, up=second, gate=gate)
    np.testing.assert_allclose(found, a / (1 + np.exp(-inner)) * b, rtol=3e-3, atol=1e-4)


def test_trial_tells_right_from_wrong(monkeypatch):
    """The trial, with tiles in memory: the kernel for Q4_0 is right, one for other codes is not."""
    assert matrix_tiles.products_are_right(KERNELS["Q4_0"])
    assert not matrix_tiles.products_are_right(KERNELS["Q4_1"])


@pytest.mark.slow
def test_a_trial_that_dies_is_remembered(tmp_path):
    """The process goes on without tiles, and does not try again."""
    trial = "kukri.runtime.cpu.matrix_tiles:_no_such_function"
    assert not matrix_tiles.verdict_of_trial(tmp_path, trial)
    assert [path.suffix for path in tmp_path.iterdir()] == [".verdict"]
    assert not matrix_tiles.verdict_of_trial(tmp_path, "kukri.quant.home:home")
    other = tmp_path / "other"
    assert matrix_tiles.verdict_of_trial(other, "builtins:list")  # ends with 0
    assert matrix_tiles.verdict_of_trial(other, trial)


def test_a_level_whose_trial_fails_is_not_in_use(monkeypatch):
    monkeypatch.setattr(matrix_tiles, "CHOSEN_LEVEL", "amx")
    monkeypatch.setattr(matrix_tiles, "usable_tiles", lambda: False)
    assert matrix_tiles.level_in_use() == LEVEL
    monkeypatch.setattr(matrix_tiles, "usable_tiles", lambda: True)
    assert matrix_tiles.level_in_use() == "amx"


@pytest.mark.slow
def test_trial_without_the_instructions(tmp_path):
    """On a CPU without AMX the real trial is refused by the system, or dies; with it, it is right."""
    has = "amx" in supported_levels()
    assert matrix_tiles.verdict_of_trial(tmp_path) == has


@pytest.fixture
def tile_machines(monkeypatch):
    """Machines use tiles, those of the unit."""
    monkeypatch.setattr(lower, "usable_tiles", lambda: True)
    monkeypatch.setattr(tile_lowering, "TILE_GEMMS", KERNELS)
    if KERNELS is UNITS["memory"]:
        monkeypatch.setattr(tile_lowering, "TILE_ATTENTIONS", ATTENTIONS)


def logits_of(machine, ids: np.ndarray, indices: np.ndarray, n_pages: int = 3) -> np.ndarray:
    table = PageTable(n_pages)
    table.extend(0, len(ids))
    rows = np.arange(len(ids), dtype=np.int32)
    return machine.step(Batch(ids, 0 * rows, rows, indices), table).copy()


def test_prompts_use_tiles(tile_machines):
    """A machine with tiles against the reference machine; the same bits with any number of threads; few and
    many logits."""
    model = program(3, "Q8_0")
    n = 150
    ids = RNG.integers(0, VOCAB, n).astype(np.int32)
    rows = np.arange(n, dtype=np.int32)
    few = rows[5::10]
    logits, some = {}, {}
    for threads in (1, 3):
        machine = CpuMachine(model, n_pages=3, threads=threads, kv_type="f32")
        names = machine._lowered.prefill.names
        assert sum("TILE_GEMMS" in name for name in names) == 13
        assert sum("SKINNY_GEMMS" in name for name in names) == 1  # few logits
        logits[threads], some[threads] = logits_of(machine, ids, rows), logits_of(machine, ids, few)
        machine.close()
    np.testing.assert_array_equal(logits[1], logits[3])
    np.testing.assert_array_equal(some[1], some[3])
    exact = logits_of(ReferenceMachine(model, n_pages=3), ids, rows)
    for found, wanted in ((logits[1], exact), (some[1], exact[few])):
        assert np.abs(found - wanted).max() < 0.15
        assert np.abs(found - wanted).mean() < 0.01


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
def test_float_models_are_not_rounded(tile_machines, kind):
    """Against the reference machine; float32 does without tiles."""
    model = experts_program(kind)
    ids = RNG.integers(0, EXPERTS_VOCAB, 150).astype(np.int32)
    for indices in (np.arange(150, dtype=np.int32), np.array([3, 149], np.int32)):
        machine = CpuMachine(model, n_pages=3, threads=2)
        assert machine.kv_type == "f32"
        names = machine._lowered.prefill.names
        assert any("TILE" in name for name in names) == (kind != "F32")
        found = logits_of(machine, ids, indices)
        machine.close()
        exact = logits_of(ReferenceMachine(model, n_pages=3), ids, indices)
        assert np.abs(found - exact).max() < 2e-4


@pytest.mark.parametrize("options", [{}, {"biases": True, "limit": 7.0}, {"up_kind": "Q4_0"}])
def test_experts_use_tiles(tile_machines, options):
    """Mixtures of experts on a machine with tiles against the reference machine."""
    model = experts_program("Q8_0", **options)
    ids = RNG.integers(0, EXPERTS_VOCAB, 150).astype(np.int32)
    last = np.array([70, 149], np.int32)
    logits = {}
    for threads in (1, 3):
        machine = CpuMachine(model, n_pages=3, threads=threads, kv_type="f32")
        assert not any(".GEMMS" in name for name in machine._lowered.prefill.names)
        logits[threads] = logits_of(machine, ids, last)
        machine.close()
    np.testing.assert_array_equal(logits[1], logits[3])
    exact = logits_of(ReferenceMachine(model, n_pages=3), ids, last)
    assert np.abs(logits[1] - exact).max() < 0.15
    assert np.abs(logits[1] - exact).mean() < 0.02


@pytest.mark.slow
def test_code_of_amx():
    """What LLVM makes for a CPU with AMX: a step loads four tiles and multiplies each twice, nothing else."""
    script = Path(__file__).parents[3] / "scripts" / "amx_assembly.py"
    text = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout
    names = "ldtilecfg|tilerelease|tilezero|tileloadd|tileloaddt1|tilestored|tdpbf16ps"
    used = re.findall(rf"\b({names})\b(.*)", text)
    counts = Counter(name for name, _ in used)
    copies = counts["tilestored"] // 4
    assert 1 <= copies <= 4  # for one matrix and for experts
    assert counts == {
        "ldtilecfg": 1,
        "tilerelease": 1,
        "tilezero": 4 * copies,  # where sums begin
        # Sums that go on, weights of a step, and of one with a single tile of rows.
        "tileloadd": (4 + 2 + 2) * copies,
        "tileloaddt1": (2 + 1) * copies,
        "tilestored": 4 * copies,
        "tdpbf16ps": (4 + 2) * copies,
    }
    products = Counter(
        tuple(re.findall(r"%tmm(\d)", operands)) for name, operands in used if name == "tdpbf16ps"
    )
    # Weights, activations, sums.
    first, second = [("2", "0", "4"), ("3", "0", "5")], [("2", "1", "6"), ("3", "1", "7")]
    assert products == dict.fromkeys(first, 2 * copies) | dict.fromkeys(second, copies)
    steps = re.findall(r"(?:.*\n){10}(?:\s*tdpbf16ps.*\n){4}", text)
    assert len(steps) == copies
    for step in steps:
        assert len(re.findall("tileload", step)) == 4
