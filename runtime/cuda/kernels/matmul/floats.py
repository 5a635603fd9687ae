"""Products with float weights, in float32."""

from __future__ import annotations

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

FLOAT = N = BIAS = ACCUMULATE = PDL = 0  # constants of the launch


@device
def four_weights(row, i):
    """Weights i … i + 3 of a row of float32, halves, or bf16 (`FLOAT` 32, 16, 0)."""
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


def float_matmul(weights, row_bytes, width, n_out, x, x_stride, rows, bias, out, out_stride):
    """out = x @ weightsᵀ. Grid: (outputs / 8, rows / N), of 256 threads: a warp takes an output and N rows.

    The width is a multiple of 4.
    """
    begin()
    at = block_x() * 8 + shift_right(thread(), 5)
    if at < n_out:
        row = weights + at * row_bytes
        first = block_y() * N
        acc = registers(N, 0.0)
        for i in range(4 * (thread() & 31), width, 128):
            w = registers(4)
            w[()] = four_weights(row, i)
            for n in static(N):
                line = first + n
                if line >= rows:
                    line = rows - 1
                a, b, c, d = load_float4(x + line * x_stride + 4 * i)
                acc[n] = acc[n] + a * w[0] + b * w[1] + c * w[2] + d * w[3]
        for n in static(N):
            value = warp_sum(acc[n])
            if (thread() & 31) == 0 and first + n < rows:
                to = out + (first + n) * out_stride + 4 * at
                if BIAS:
                    value = value + load_constant(bias + 4 * at)
                if ACCUMULATE:
                    value = value + load_float(to)
                store_float(to, value)
