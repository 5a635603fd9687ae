"""Loads, stores and asynchronous copies of shared memory.

Addresses are 32-bit; `shared()` is that of the dynamic shared memory of the launch (see
compile/ptx_compiler.py).
"""

from __future__ import annotations

import ctypes

import numpy as np

from .instruction import Instruction, instruction


@instruction("SHARED", "r", "")
def shared() -> int:
    """The address of the block's dynamic shared memory."""


@instruction("ld.shared.f32 $0, [$1];", "f", "r", ordered=True)
def load_shared(address: int) -> float:
    """A float32."""
    return np.float32(ctypes.c_float.from_address(address).value)


@instruction("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "r", ordered=True)
def load_shared4(address: int) -> tuple[float, ...]:
    """Four float32, from an address that is a multiple of 16."""
    return tuple(map(np.float32, (ctypes.c_float * 4).from_address(address)))


@instruction("ld.shared.u32 $0, [$1];", "r", "r", ordered=True)
def load_shared_int(address: int) -> int:
    """An int32."""
    return ctypes.c_int32.from_address(address).value


@instruction("ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True)
def load_shared_int4(address: int) -> tuple[int, ...]:
    """Four int32, from an address that is a multiple of 16."""
    return tuple((ctypes.c_int32 * 4).from_address(address))


@instruction("ld.shared.v2.u32 {$0, $1}, [$2];", "rr", "r", ordered=True)
def load_shared_int2(address: int) -> tuple[int, ...]:
    """Two int32, from an address that is a multiple of 8."""
    return tuple((ctypes.c_int32 * 2).from_address(address))


@instruction("{ .reg .u16 t; ld.shared.u16 t, [$1]; cvt.u32.u16 $0, t; }", "r", "r", ordered=True)
def load_shared_short(address: int) -> int:
    """A uint16, zero-extended."""
    return ctypes.c_uint16.from_address(address).value


@instruction("{ .reg .u16 t; ld.shared.u8 t, [$1]; cvt.u32.u16 $0, t; }", "r", "r", ordered=True)
def load_shared_byte(address: int) -> int:
    """A uint8, zero-extended."""
    return ctypes.c_uint8.from_address(address).value


@instruction("st.shared.f32 [$0], $1;", "", "rf", ordered=True)
def store_shared(address: int, value: float) -> None:
    """Store a float32."""
    ctypes.c_float.from_address(address).value = float(value)


@instruction("st.shared.u32 [$0], $1;", "", "rr", ordered=True)
def store_shared_int(address: int, value: int) -> None:
    """Store an int32."""
    ctypes.c_int32.from_address(address).value = value


@instruction("st.shared.v2.f32 [$0], {$1, $2};", "", "rff", ordered=True)
def store_shared2(address: int, a: float, b: float) -> None:
    """Store two float32, at an address that is a multiple of 8."""
    for i, value in enumerate((a, b)):
        ctypes.c_float.from_address(address + 4 * i).value = float(value)


@instruction("{ .reg .u16 t; cvt.u16.u32 t, $1; st.shared.u16 [$0], t; }", "", "rr", ordered=True)
def store_shared_short(address: int, value: int) -> None:
    """Store the low 2 bytes."""
    ctypes.c_uint16.from_address(address).value = value & 0xFFFF


@instruction("st.shared.v4.u32 [$0], {$1, $2, $3, $4};", "", "rrrrr", ordered=True)
def store_shared_int4(address: int, a: int, b: int, c: int, d: int) -> None:
    """Store four int32, at an address that is a multiple of 16."""
    for i, value in enumerate((a, b, c, d)):
        ctypes.c_int32.from_address(address + 4 * i).value = value


@instruction("ld.shared.u64 $0, [$1];", "l", "r", ordered=True)
def load_shared_long(address: int) -> int:
    """An int64."""
    return ctypes.c_int64.from_address(address).value


@instruction("st.shared.u64 [$0], $1;", "", "rl", ordered=True)
def store_shared_long(address: int, value: int) -> None:
    """Store an int64."""
    ctypes.c_int64.from_address(address).value = value


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr", ordered=True)
def copy_async(to_shared: int, source: int, n_bytes: int) -> None:
    """Start a copy of 16 bytes from global to shared memory (`cp.async`). Only `n_bytes` are read,
    the rest is 0.
    """
    ctypes.memset(to_shared, 0, 16)
    ctypes.memmove(to_shared, source, n_bytes)


def _copy_async(n: int) -> Instruction:
    step = 8192 // n
    text = "".join(f"cp.async.cg.shared.global [$0+{i * step}], [$1+{4096 * i}], 16; " for i in range(n))

    @instruction(text.strip(), "", "rl", ordered=True)
    def copy(to_shared: int, source: int) -> None:
        """Start n copies of 16 bytes, a thread's part of 64 rows (`attention/prefill_sm90.py`): 4096 bytes
        apart in global memory, 8192 / n in shared memory."""
        for i in range(n):
            ctypes.memmove(to_shared + i * step, source + 4096 * i, 16)

    return copy


copy_async_2 = _copy_async(2)
copy_async_4 = _copy_async(4)
copy_async_8 = _copy_async(8)


@instruction("cp.async.commit_group;", "", "", ordered=True)
def commit_copies() -> None:
    """Make the copies since the last call a group."""


@instruction("cp.async.wait_group 0;", "", "", ordered=True)
def wait_copies() -> None:
    """Wait for all groups of this thread."""


@instruction("cp.async.wait_group 1;", "", "", ordered=True)
def wait_copies_all_but_1() -> None:
    """Wait for all groups of this thread except the latest one."""


@instruction("cp.async.wait_group 2;", "", "", ordered=True)
def wait_copies_all_but_2() -> None:
    """Wait for all groups of this thread except the latest two."""


@instruction("cp.async.wait_group 3;", "", "", ordered=True)
def wait_copies_all_but_3() -> None:
    """Wait for all groups of this thread except the latest three."""


@instruction("cp.async.wait_group 4;", "", "", ordered=True)
def wait_copies_all_but_4() -> None:
    """Wait for all groups of this thread except the latest four."""


# Clusters: blocks that run at the same time and read each other's shared memory (sm_90)


@instruction("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "", "", ordered=True)
def cluster_barrier() -> None:
    """Wait for all threads of the cluster; their earlier writes are visible afterwards."""


@instruction("mapa.shared::cluster.u32 $0, $1, $2;", "r", "rr")
def shared_of_block(address: int, rank: int) -> int:
    """The address of what block number `rank` of the cluster has at the shared address `address`."""


@instruction("ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "r", ordered=True)
def load_cluster4(address: int) -> tuple[float, ...]:
    """Four float32 at an address of `shared_of_block` that is a multiple of 16."""
    return tuple(map(np.float32, (ctypes.c_float * 4).from_address(address)))
