"""Whether the kernels of matrix tiles (level `amx`) may be used in this process.

An instruction that the system does not permit, or that a virtual machine announces but does not have, ends
the process. So the first process that would use tiles lets another one multiply a small matrix and compare
the result with NumPy's; the verdict is kept beside the kernels, which belong to this very CPU. Whatever goes
wrong, products are those of `avx512vnni`.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from ...quant.block import QTensor
from ...quant.child_process import start_python
from ...quant.formats import FORMATS
from ...quant.jit.file_cache import FileCache
from ...quant.jit.kernel import CpuKernel
from ...quant.jit.kernel_cache import KernelCache, kernel_cache
from ...quant.jit.levels import CHOSEN_LEVEL, LANES, LEVEL
from .abi.records import MATMUL, QUANTIZE, STEP
from .abi.sizes import matrix_tile_bytes, tile_gemm_scratch_bytes
from .kernels import TILE_GEMMS, TILE_ROWS
from .simd.panels import GATHER_ROWS, aligned_empty, repack

SECONDS = 120.0  # that the trial may take, most of which is compiling
TOLERANCE = 2e-4  # of a result, in parts of the sum of its products' magnitudes
RIGHT, WRONG = b"right", b"wrong"
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA = 158, 0x1023, 18


@cache
def usable_tiles() -> bool:
    """Whether kernels of matrix tiles may be run by all threads of this process.

    The first call of all on a CPU with AMX takes seconds; without AMX it takes none.
    """
    return CHOSEN_LEVEL == "amx" and _permitted() and verdict_of_trial(kernel_cache().folder)


def level_in_use() -> str:
    """The SIMD level of this process: CHOSEN_LEVEL, or LEVEL where tiles cannot be used."""
    return CHOSEN_LEVEL if usable_tiles() else LEVEL


def verdict_of_trial(folder: Path, entry: str = f"{__name__}:try_tiles") -> bool:
    """Whether the trial `entry` ends well in a child process, or did so before: `folder` keeps what it said.

    A trial that cannot be started, or does not end in time, counts as failed this time only.
    """
    verdicts = FileCache(folder, ".verdict")
    verdict = verdicts.load("matrix tiles")
    if verdict is None:
        process = start_python(entry, [str(folder.absolute())])
        if process is None:
            return False
        try:
            verdict = RIGHT if process.wait(SECONDS) == 0 else WRONG
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
        verdicts.store("matrix tiles", verdict)
    return verdict == RIGHT


def try_tiles(arguments: Sequence[str]) -> None:
    """Run in a child process: exit with 0 if products in matrix tiles are right, and else with 1, or die.

    `arguments` is the folder of the cache of kernels.
    """
    if not _permitted():
        raise SystemExit(1)
    cache = KernelCache(Path(arguments[0]))
    kernels = [GATHER_ROWS, TILE_ROWS, TILE_GEMMS["Q4_0"]]
    for kernel in kernels:
        kernel.load(cache) or kernel.compile(cache)
    raise SystemExit(0 if products_are_right(TILE_GEMMS["Q4_0"]) else 1)


def products_are_right(gemm: CpuKernel) -> bool:
    """Whether a kernel of TILE_GEMMS for Q4_0 multiplies a random matrix as NumPy does.

    The shape has every edge: rows that do not fill a tile, an odd number of panels, groups that do not fill a
    block of weights.
    """
    rng = np.random.default_rng(1)
    n, outputs, width, kind = 71, 40, 1088, FORMATS["Q4_0"]
    x = rng.normal(size=(n, width)).astype(np.float32)
    blocks = rng.integers(0, 256, (outputs, width // kind.block_size, kind.type_size), np.uint8)
    blocks[..., :2] = rng.uniform(0.5, 1.0, blocks.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    weights = QTensor("w", kind, (outputs, width), blocks.reshape(outputs, -1))
    exact = _bfloat16(x).astype(np.float64) @ _bfloat16(weights.dequantize()).astype(np.float64).T
    size = np.abs(x) @ np.abs(weights.dequantize()).T
    return bool((np.abs(_product(gemm, weights, x) - exact) <= TOLERANCE * size).all())


def _product(gemm: CpuKernel, weights: QTensor, x: np.ndarray) -> np.ndarray:
    """x · Wᵀ by the kernels, float32."""
    (outputs, width), n_panels = weights.shape, -(-weights.shape[0] // LANES)
    panels, scratch = repack(weights, LANES), aligned_empty(tile_gemm_scratch_bytes())
    tiles = aligned_empty(matrix_tile_bytes(width, len(x)))
    out = np.full((len(x), n_panels * LANES), np.nan, np.float32)
    step, rows, product = np.zeros(1, STEP), np.zeros(1, QUANTIZE), np.zeros(1, MATMUL)
    step["n_rows"] = len(x)
    step["n_threads"] = step["row_tile"] = 1
    rows["x"], rows["x_stride"], rows["width"] = x.ctypes.data, x.strides[0], width
    rows["out"] = product["x"] = tiles.ctypes.data
    product["weights"], product["n_panels"] = panels.ctypes.data, n_panels
    product["pair_stride"] = 2 * (panels.nbytes // n_panels)
    product["panel_bytes"] = product["second_offset"] = panels.nbytes // n_panels
    product["n_blocks"], product["width"] = width // weights.format.block_size, width
    product["out"], product["out_stride"] = out.ctypes.data, out.strides[0]
    tickets = np.zeros(1, np.int64)
    product["scratch"], product["tickets"] = scratch.ctypes.data, tickets.ctypes.data
    for kernel, arguments in ((TILE_ROWS, rows), (gemm, product)):
        kernel.compiled.ctypes(arguments.ctypes.data, step.ctypes.data, 0)
    return out[:, :outputs]


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, to even; as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _permitted() -> bool:
    """Ask Linux for the tile registers, for all threads of this process; False if it refuses.

    It does so where a thread has a stack for signals that is too small to save them.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    return bool(syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA) == 0)
