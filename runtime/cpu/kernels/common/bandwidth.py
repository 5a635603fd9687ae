"""The kernel that measures memory bandwidth for `runtime.cpu.bandwidth`."""

from __future__ import annotations

import numpy as np

from .....quant.jit.decorators import kernel
from .....quant.jit.simd.arithmetic import lane_sum_i32, splat_i32
from .....quant.jit.simd.memory import loadv_i32, prefetch
from ...abi.records import READ, READ_BLOCK
from ...simd.tile_sizes import VECTOR
from .access import record_reader

LINE = 64  # bytes of a cache line

read_at = record_reader(READ)


@kernel
def sum_buffer(arguments: int, step: int, thread: int) -> None:
    """Add up a buffer as int32, with the loads and prefetches of the matrix kernels. Runs on one thread;
    `step` is not read."""
    a = read_at(arguments)
    s0 = s1 = s2 = s3 = splat_i32(np.int32(0))
    for block in range(a.address, a.address + a.n_bytes, READ_BLOCK):
        for line in range(0, READ_BLOCK, LINE):
            prefetch(block + line + a.ahead)
        for at in range(block, block + READ_BLOCK, 4 * VECTOR):
            s0 = s0 + loadv_i32(at)
            s1 = s1 + loadv_i32(at + VECTOR)
            s2 = s2 + loadv_i32(at + 2 * VECTOR)
            s3 = s3 + loadv_i32(at + 3 * VECTOR)
    a.sum = lane_sum_i32(s0 + s1 + s2 + s3)
