"""How a gemv asks for weights before it uses them, which depends on the format and the CPU.

A software prefetch holds one of the few entries for misses of the L1 cache until its line has come. One
thread of a Zen 4 reads 22 GB/s that way, and 30 if its hardware prefetchers run ahead, which learn from loads
only: so there a load that nobody waits for takes the place of the prefetch, in a format whose groups are
whole cache lines and few instructions. Numbers, also of the formats that do not gain: docs/performance.md.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from numba.extending import overload

from .....quant.jit.levels import LANES
from .....quant.jit.simd.memory import look_at, prefetch, prefetch_far
from ...simd.dot8 import Codes

# Formats that are read ahead by loads, and the distance in bytes.
LOADED = ("Q4_1",) if LANES == 16 and llvm.get_host_cpu_name().startswith("znver") else ()
LOADED_AHEAD = 4096

# Prefetch distance in bytes of all others. With 512-bit vectors it pays to prefetch into the L2 cache, which
# can wait for more lines at a time than the L1 cache.
AHEAD, ask_first = (16384, prefetch_far) if LANES == 16 else (4096, prefetch)


def distance(codes: Codes) -> int:
    """How many bytes ahead of their use weights are asked for; a constant in compiled code."""
    raise TypeError("for compiled code")


@overload(distance, jit_options={"forceinline": True})
def _choose_distance(codes: Any) -> Any:
    n_bytes = LOADED_AHEAD if codes.value.name in LOADED else AHEAD

    def constant_distance(codes: Any) -> Any:
        return n_bytes

    return constant_distance


def ask(codes: Codes, address: int) -> None:
    """Ask for the cache line at an address within the thread's weights, `distance` bytes ahead."""
    raise TypeError("for compiled code")


@overload(ask, jit_options={"forceinline": True})
def _choose_ask(codes: Any, address: Any) -> Any:
    def by_prefetch(codes: Any, address: Any) -> Any:
        ask_first(address)

    def by_load(codes: Any, address: Any) -> Any:
        look_at(address)

    return by_load if codes.value.name in LOADED else by_prefetch
