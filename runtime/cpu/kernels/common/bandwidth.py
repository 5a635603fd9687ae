"""The kernel that `..bandwidth` measures with."""

from __future__ import annotations

import numpy as np

from .....quant.jit.jit import kernel
from .....quant.jit.simd import lane_sum_i32, loadv_i32, prefetch, splat_i32
from ...abi.records import READ, READ_BLOCK
from ...simd.tile_sizes import VECTOR
from .access import reader

LINE = 64  # bytes

read_at = reader(READ)


@kernel
def read_all(arguments: int, step: int, thread: int) -> None:
    """Add up the buffer as int32."""
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
