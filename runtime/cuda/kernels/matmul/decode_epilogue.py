"""The epilogue of a decode product: what happens to its sums before they are stored.

It adds the partial sums of the warps that share the columns, divides by the root mean square of an RMSNorm in
front of the product, applies the gate's activation, adds bias and residual, and stores the result, in
float32, quantised for the next product, or both. If an RMSNorm follows, it also multiplies by that norm's
weight and stores sums of squares: the division by the root mean square is left to the epilogue of the next
product.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
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
from ..common.sums import SumArguments, send

# Constants of the launch. NORMED: x must still be divided by its root mean square. EMIT: 0 the result is not
# quantised, 1 it is, 2 it is multiplied by the weight of the next RMSNorm and quantised. STORE: the result is
# stored in float32. UNIT: divisor of all products. CARDS: if not 0, the result is a part of a sum, which is
# sent to so many cards.
WARPS = KS = GATED = NORMED = BIAS = ACCUMULATE = EMIT = STORE = UNIT = CARDS = 0


class EpilogueArguments(KernelArguments):
    """Arguments of the epilogue of a decode product with `n_out` outputs; addresses that are not used are 0.

    `partials`, float32 [rows, n_partials], are the sums of squares of x, `inverse_width` one over its width
    and `eps` the norm's. `bias` is float32 [n_out], `out` float32 [rows, n_out]. `codes` has the layout of
    `store_quantized`, `norm_weight` is float32 [n_out], and `out_partials` float32 [rows, n_out / 32].
    """

    partials: int = 0
    n_partials: int
    inverse_width: float
    eps: float
    bias: int = 0
    out: Region
    codes: int = 0
    norm_weight: int = 0
    out_partials: int = 0
    sums: SumArguments = SumArguments()


@device
def load_epilogue(block, rows, outputs, n_out, args: EpilogueArguments):
    """Load what a warp needs in `decode_epilogue` for its first row and first 32 outputs.

    Called before the product, so that these loads are hidden behind it. Returns seven registers: four sums of
    squares of x, the previous value of the output, the bias, and the weight of the next norm.
    """
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    loaded = registers(7, 0.0)
    at = block * outputs + lane
    if warp < rows:
        if NORMED:
            for k in static(4):
                if 32 * k + lane < args.n_partials:
                    loaded[k] = load_float(args.partials + 4 * (warp * args.n_partials + 32 * k + lane))
        if lane < outputs and at < n_out:
            if ACCUMULATE:
                loaded[4] = load_float(args.out.address + warp * args.out.stride + 4 * at)
            if BIAS:
                loaded[5] = load_float(args.bias + 4 * at)
            if EMIT == 2:
                loaded[6] = load_float(args.norm_weight + 4 * at)
    return loaded[()]


@device
def decode_epilogue(
    loaded: registers(7), sent: registers(1 + CARDS), block, rows, outputs, n_out, args: EpilogueArguments
):
    """Finish the `outputs` outputs of block number `block` of all rows; warp w takes rows w, w + WARPS, ….

    The partial sums are in shared memory: float32 [rows, KS, 1 + GATED, outputs]. `loaded` is what
    `load_epilogue` returned, `sent` what `begin_sum` did.
    """
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    for n in range(warp, rows, WARPS):
        factor = 1.0 / UNIT
        if NORMED:
            squares = 0.0
            start = lane
            if n == warp:
                squares = loaded[0] + loaded[1] + loaded[2] + loaded[3]
                start = lane + 128
            for i in range(start, args.n_partials, 32):
                squares = squares + load_float(args.partials + 4 * (n * args.n_partials + i))
            factor = factor * rsqrt(warp_sum(squares) * args.inverse_width + args.eps)
        for i in range(lane, (outputs + 31) // 32 * 32, 32):
            at = block * outputs + i
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
                        value = value + loaded[5]
                    else:
                        value = value + load_constant(args.bias + 4 * at)
                if ACCUMULATE:
                    if n == warp and i == lane:
                        value = value + loaded[4]
                    else:
                        value = value + load_float(args.out.address + n * args.out.stride + 4 * at)
                if CARDS:
                    send(*sent[()], n, at, value, args.sums)
                if STORE:
                    store_float(args.out.address + n * args.out.stride + 4 * at, value)
            if EMIT and at < n_out:  # uniform in a warp, since n_out is a multiple of 32
                if EMIT == 2:
                    squares = warp_sum(value * value)
                    if lane == 0:
                        store_float(args.out_partials + 4 * (n * (n_out // 32) + shift_right(at, 5)), squares)
                    if i == lane:
                        value = value * loaded[6]
                    else:
                        value = value * load_constant(args.norm_weight + 4 * at)
                store_quantized(args.codes, n_out // 32, n, at, value)
