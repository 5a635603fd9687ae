"""What follows a product of few rows, where it is made: sums over parts, the norm in front, the gate, bias,
residual, and the result's codes for the next product, already times the weight of the norm in between, whose
mean square is only needed behind that product.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    block_x,
    load_constant,
    load_float,
    load_shared,
    rsqrt,
    shared,
    shift_right,
    store_float,
    thread,
)
from ..common.common import activate, store_quantized, warp_sum

# Constants of the launch. NORMED: x is to be divided by its root mean square. EMIT: 0 no codes, 1 codes, 2
# codes of a normed row. STORE: the result itself is wanted. UNIT: what products are too large by.
WARPS = KS = GATED = NORMED = BIAS = ACCUMULATE = EMIT = STORE = UNIT = 0


@device
def ask(rows, outputs, n_out, partials, n_partials, bias, out, out_stride, norm_weight):
    """Begin to load what a warp's first row and outputs need in the end: four of the sums of squares in front
    of the product, what it is added to, the bias, and the weight of the norm behind it. Called before the
    product, which takes as long.
    """
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    before = registers(7, 0.0)
    at = block_x() * outputs + lane
    if warp < rows:
        if NORMED:
            for k in static(4):
                if 32 * k + lane < n_partials:
                    before[k] = load_float(partials + 4 * (warp * n_partials + 32 * k + lane))
        if lane < outputs and at < n_out:
            if ACCUMULATE:
                before[4] = load_float(out + warp * out_stride + 4 * at)
            if BIAS:
                before[5] = load_float(bias + 4 * at)
            if EMIT == 2:
                before[6] = load_float(norm_weight + 4 * at)
    return before[()]


@device
def finish(
    before: registers(7),
    rows,
    outputs,
    n_out,
    partials,
    n_partials,
    inverse_width,
    eps,
    bias,
    out,
    out_stride,
    codes,
    norm_weight,
    out_partials,
):
    """Of `rows` rows, this block's `outputs`, whose KS parts lie in shared memory: float32 [rows, KS, 1 +
    GATED, outputs]. `before` is what `ask` gave.
    """
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    for n in range(warp, rows, WARPS):
        factor = 1.0 / UNIT
        if NORMED:
            squares = 0.0
            start = lane
            if n == warp:
                squares = before[0] + before[1] + before[2] + before[3]
                start = lane + 128
            for i in range(start, n_partials, 32):
                squares = squares + load_float(partials + 4 * (n * n_partials + i))
            factor = factor * rsqrt(warp_sum(squares) * inverse_width + eps)
        for i in range(lane, (outputs + 31) // 32 * 32, 32):
            at = block_x() * outputs + i
            value = 0.0
            if i < outputs and at < n_out:
                for k in static(KS):
                    value = value + load_shared(shared() + 4 * ((n * KS + k) * (1 + GATED) * outputs + i))
                value = value * factor
                if GATED:
                    up = 0.0
                    for k in static(KS):
                        up = up + load_shared(shared() + 4 * (((n * KS + k) * 2 + 1) * outputs + i))
                    value = activate(value) * (up * factor)
                if BIAS:
                    if i == lane:
                        value = value + before[5]
                    else:
                        value = value + load_constant(bias + 4 * at)
                if ACCUMULATE:
                    if n == warp and i == lane:
                        value = value + before[4]
                    else:
                        value = value + load_float(out + n * out_stride + 4 * at)
                if STORE:
                    store_float(out + n * out_stride + 4 * at, value)
            if EMIT and at < n_out:  # the same for a whole warp
                if EMIT == 2:
                    squares = warp_sum(value * value)
                    if lane == 0:
                        store_float(out_partials + 4 * (n * (n_out // 32) + shift_right(at, 5)), squares)
                    if i == lane:
                        value = value * before[6]
                    else:
                        value = value * load_constant(norm_weight + 4 * at)
                store_quantized(codes, n_out // 32, n, at, value)
