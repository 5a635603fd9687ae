"""Accesses to memory that other cards write or read while a kernel runs (scope .sys)."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from .instruction import instruction


@instruction(
    "{ .reg .b32 u; .reg .b64 t; mov.b32 u, $1; mov.b64 t, {u, $2}; st.relaxed.sys.global.b64 [$0], t; }",
    "",
    "lfr",
    ordered=True,
)
def store_flagged(address: int, value: float, flag: int) -> None:
    """Store a float32 and behind it a flag, an int32, at once: who reads the flag has the value as well."""
    bits = int(np.float32(value).view(np.uint32)) | (int(flag) & 0xFFFFFFFF) << 32
    ctypes.c_uint64.from_address(address).value = bits


@instruction(
    "{ .reg .b32 u; .reg .b64 t; ld.relaxed.sys.global.b64 t, [$2]; mov.b64 {u, $1}, t; mov.b32 $0, u; }",
    "fr",
    "l",
    ordered=True,
)
def load_flagged(address: int) -> tuple[float, int]:
    """A float32 and its flag, stored by `store_flagged`."""
    bits = ctypes.c_uint64.from_address(address).value
    flag = bits >> 32
    return np.uint32(bits & 0xFFFFFFFF).view(np.float32), flag - (flag >> 31 << 32)


@instruction("st.release.sys.global.u32 [$0], $1;", "", "lr", ordered=True)
def store_release(address: int, value: int) -> None:
    """Store an int32: who reads it by `load_acquire` sees what this thread has written or seen before."""
    ctypes.c_int32.from_address(address).value = value


@instruction("ld.acquire.sys.global.u32 $0, [$1];", "r", "l", ordered=True)
def load_acquire(address: int) -> int:
    """An int32, stored by `store_release`."""
    return ctypes.c_int32.from_address(address).value


@instruction("fence.acq_rel.sys;", "", "", ordered=True)
def fence_system() -> None:
    """Make this thread's earlier writes visible to all cards before its later ones."""


@instruction("mov.u64 $0, %clock64;", "l", "", ordered=True)
def cycles() -> int:
    """Cycles that this multiprocessor has counted: about two in a nanosecond."""
    return time.perf_counter_ns()
