"""Products with float matrices, on CUDA cores in float32."""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    as_float,
    bits_and,
    block_x,
    block_y,
    high_f16,
    load_constant,
    load_float,
    load_float4,
    load_stream2,
    load_stream4,
    low_f16,
    shift_left,
    shift_right,
    store_float,
    thread,
)
from ..common.common import begin, warp_sum

FLOAT = N = BIAS = ACCUMULATE = PDL = 0  # constants of the launch; N: rows of x of a warp


@device
def load_four_weights(row, i):
    """Weights i … i + 3 of a row as float32; FLOAT is 32 for float32, 16 for float16, 0 for bfloat16."""
    if FLOAT == 32:
        a, b, c, d = load_stream4(row + 4 * i)
        values = (as_float(a), as_float(b), as_float(c), as_float(d))
    elif FLOAT == 16:
        a, b = load_stream2(row + 2 * i)
        values = (low_f16(a), high_f16(a), low_f16(b), high_f16(b))
    else:
        a, b = load_stream2(row + 2 * i)
        values = (
            as_float(shift_left(a, 16)),
            as_float(bits_and(a, 0xFFFF0000)),
            as_float(shift_left(b, 16)),
            as_float(bits_and(b, 0xFFFF0000)),
        )
    return values


class FloatMatmulArguments(KernelArguments):
    """Arguments of `float_matmul`: weights [n_out, width] whose rows are `row_bytes` apart, x float32 [rows,
    width], bias float32 [n_out], out float32 [rows, n_out]. The width is a multiple of 4.
    """

    weights: int
    row_bytes: int
    width: int
    n_out: int
    x: Region
    rows: int
    bias: int = 0
    out: Region


def float_matmul(args: FloatMatmulArguments):
    """out = x @ weightsᵀ + bias, plus the previous `out` with ACCUMULATE.

    Grid: (⌈n_out / 8⌉, ⌈rows / N⌉), blocks of 256 threads: a warp computes one output of N rows.
    """
    begin()
    at = block_x() * 8 + shift_right(thread(), 5)
    if at < args.n_out:
        weights = args.weights + at * args.row_bytes
        first = block_y() * N
        acc = registers(N, 0.0)
        for i in range(4 * (thread() & 31), args.width, 128):
            w = registers(4)
            w[()] = load_four_weights(weights, i)
            for n in static(N):
                row = first + n
                if row >= args.rows:
                    row = args.rows - 1
                a, b, c, d = load_float4(args.x.address + row * args.x.stride + 4 * i)
                acc[n] = acc[n] + a * w[0] + b * w[1] + c * w[2] + d * w[3]
        for n in static(N):
            value = warp_sum(acc[n])
            if (thread() & 31) == 0 and first + n < args.rows:
                to = args.out.address + (first + n) * args.out.stride + 4 * at
                if BIAS:
                    value = value + load_constant(args.bias + 4 * at)
                if ACCUMULATE:
                    value = value + load_float(to)
                store_float(to, value)
