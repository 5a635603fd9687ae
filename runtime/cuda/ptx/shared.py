"""Shared memory: `shared()` is the address of what the launch asked for (see compiler.py), to which the
addresses here are added.
"""

from __future__ import annotations

import ctypes

import numpy as np

from .instruction import instruction


@instruction("SHARED", "r", "")
def shared() -> int:
    """The address of the block's shared memory."""


@instruction("ld.shared.f32 $0, [$1];", "f", "r", ordered=True)
def load_shared(address: int) -> float:
    return np.float32(ctypes.c_float.from_address(address).value)


@instruction("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "r", ordered=True)
def load_shared4(address: int) -> tuple[float, ...]:
    return tuple(np.float32(v) for v in (ctypes.c_float * 4).from_address(address))


@instruction("ld.shared.u32 $0, [$1];", "r", "r", ordered=True)
def load_shared_int(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


@instruction("st.shared.f32 [$0], $1;", "", "rf", ordered=True)
def store_shared(address: int, value: float) -> None:
    ctypes.c_float.from_address(address).value = float(value)


@instruction("st.shared.u32 [$0], $1;", "", "rr", ordered=True)
def store_shared_int(address: int, value: int) -> None:
    ctypes.c_int32.from_address(address).value = value


@instruction("st.shared.v4.u32 [$0], {$1, $2, $3, $4};", "", "rrrrr", ordered=True)
def store_shared_int4(address: int, a: int, b: int, c: int, d: int) -> None:
    for i, value in enumerate((a, b, c, d)):
        ctypes.c_int32.from_address(address + 4 * i).value = value


@instruction("ld.shared.u64 $0, [$1];", "l", "r", ordered=True)
def load_shared_long(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


@instruction("st.shared.u64 [$0], $1;", "", "rl", ordered=True)
def store_shared_long(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr", ordered=True)
def copy_async(to_shared: int, source: int, n_bytes: int) -> None:
    """Copy 16 bytes from global to shared memory while the thread goes on; of them those behind the first
    `n_bytes` become zeros and are not read."""
    ctypes.memset(to_shared, 0, 16)
    ctypes.memmove(to_shared, source, n_bytes)


@instruction("cp.async.commit_group;", "", "", ordered=True)
def commit_copies() -> None:
    """The copies since the last call are a group."""


@instruction("cp.async.wait_group 0;", "", "", ordered=True)
def wait_copies() -> None:
    """Wait for all groups of this thread."""


@instruction("cp.async.wait_group 1;", "", "", ordered=True)
def wait_copies_all_but_1() -> None:
    """Wait for all groups of this thread but the latest."""


@instruction("cp.async.wait_group 2;", "", "", ordered=True)
def wait_copies_but_2() -> None:
    """Wait for all groups of this thread but the latest two."""
