"""A tile unit whose registers are in memory: the kernels of matrix tiles on any CPU with AVX-512 BF16.

Its products are those that Intel's manual gives for `tdpbf16ps`, in its order: for each pair of columns the
first product is added and then the second, each rounded once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kukri.quant.jit.decorators import EntryPoint
from kukri.quant.jit.kernel import CpuKernel
from kukri.quant.jit.llvm_ir import (
    F32V,
    I32_,
    I32V,
    I64,
    all_lanes,
    beside,
    load,
    multiply_add,
    splat,
    store,
)
from kukri.runtime.cpu.abi.sizes import CACHE_TYPES
from kukri.runtime.cpu.kernels.attention.kv_cache import kinds
from kukri.runtime.cpu.kernels.attention.tile_prefill import tile_attention
from kukri.runtime.cpu.kernels.matmul.tile_gemm import tile_gemm
from kukri.runtime.cpu.kernels.matmul.tile_weights import TILE_KINDS
from kukri.runtime.cpu.simd.amx_sizes import TILE


class MemoryUnit:
    """Eight registers in the thread's state."""

    def _register(self, builder: Any, state: Any, tile: int) -> Any:
        return beside(builder, state, tile * TILE)

    def _copy(self, builder: Any, source: Any, target: Any) -> None:
        for at in range(0, TILE, 64):
            value = load(builder, beside(builder, source, at), F32V, 4)
            store(builder, value, beside(builder, target, at), 4)

    def begin(self, builder: Any, state: Any) -> None:
        """Registers hold anything at first; NaN here."""
        for at in range(0, 8 * TILE, 64):
            store(builder, all_lanes(I32V, -1), beside(builder, state, at), 4)

    def end(self, builder: Any, state: Any) -> None:
        self.begin(builder, state)

    def zero(self, builder: Any, state: Any, tile: int) -> None:
        for at in range(0, TILE, 64):
            register = self._register(builder, state, tile)
            store(builder, all_lanes(F32V, 0.0), beside(builder, register, at), 4)

    def load(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        self._copy(builder, address, self._register(builder, state, tile))

    load_once = load

    def store(self, builder: Any, state: Any, tile: int, address: Any) -> None:
        self._copy(builder, self._register(builder, state, tile), address)

    def dot(self, builder: Any, state: Any, sums: int, x: int, w: int) -> None:
        registers = [self._register(builder, state, tile) for tile in (sums, x, w)]
        high = all_lanes(I32V, 0xFFFF0000)

        def halves(pair: Any) -> tuple[Any, Any]:
            first = builder.shl(pair, all_lanes(I32V, 16))
            return builder.bitcast(first, F32V), builder.bitcast(builder.and_(pair, high), F32V)

        with cgutils.for_range(builder, ir.Constant(I64, 16), intp=I64) as rows:
            offset = builder.mul(rows.index, ir.Constant(I64, 64))
            at = builder.add(registers[0], offset)
            total = load(builder, at, F32V, 4)
            for pair in range(16):
                pairs = load(builder, beside(builder, builder.add(registers[1], offset), 4 * pair), I32_, 4)
                x0, x1 = halves(splat(builder, pairs, I32V))
                w0, w1 = halves(load(builder, beside(builder, registers[2], 64 * pair), I32V, 4))
                total = multiply_add(builder, x0, w0, total)
                total = multiply_add(builder, x1, w1, total)
            store(builder, total, at, 4)


# The cache of kernels notices edits of the package, but not of this file: its digest is in their name.
_DIGEST = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
_NAME, _ATTENTION_NAME = f"TILE_GEMMS_{_DIGEST}", f"TILE_ATTENTIONS_{_DIGEST}"
_KERNELS: dict[str, EntryPoint] = {name: tile_gemm(kind, MemoryUnit()) for name, kind in TILE_KINDS.items()}
globals()[_NAME] = _KERNELS
KERNELS = {name: CpuKernel(__name__, _NAME, name) for name in TILE_KINDS}
_ATTENTIONS: dict[str, EntryPoint] = {n: tile_attention(*kinds(n), MemoryUnit()) for n in CACHE_TYPES}
globals()[_ATTENTION_NAME] = _ATTENTIONS
ATTENTIONS = {name: CpuKernel(__name__, _ATTENTION_NAME, name) for name in CACHE_TYPES}
