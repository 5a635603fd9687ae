"""What several kernels do: sums over a warp, activations, activations in 8 bits."""

from __future__ import annotations

from ..ptx import (
    absolute,
    exp2,
    let_next_start,
    maximum,
    minimum,
    quotient,
    shuffle_xor,
    store_byte,
    store_float4,
    thread,
    to_float,
    to_int,
    wait_for_grid,
)
from ..stage import device

SILU, GELU_TANH, GELU, RELU2, IDENTITY, TANH, SIGMOID, CLIPPED = range(1, 9)  # kinds of activations

KIND = PDL = 0  # constants of the launch; LIMIT and ALPHA are those of `CLIPPED`, see `ops.MoE`
LIMIT = ALPHA = 0.0


@device
def warp_sum(value):
    """The sum over the lanes of a warp, in each of them."""
    value = value + shuffle_xor(value, 16)
    value = value + shuffle_xor(value, 8)
    value = value + shuffle_xor(value, 4)
    value = value + shuffle_xor(value, 2)
    return value + shuffle_xor(value, 1)


@device
def warp_maximum(value):
    value = maximum(value, shuffle_xor(value, 16))
    value = maximum(value, shuffle_xor(value, 8))
    value = maximum(value, shuffle_xor(value, 4))
    value = maximum(value, shuffle_xor(value, 2))
    return maximum(value, shuffle_xor(value, 1))


@device
def sigmoid(x):
    return quotient(1.0, 1.0 + exp2(x * -1.4426950408889634))


@device
def tanh(x):
    return 1.0 - quotient(2.0, 1.0 + exp2(x * 2.8853900817779268))


@device
def error_function(x):
    """erf within 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    a = absolute(x)
    t = quotient(1.0, 1.0 + a * 0.3275911)
    p = ((((t * 1.061405429 - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    y = 1.0 - p * exp2(a * a * -1.4426950408889634)
    if x < 0.0:
        y = -y
    return y


@device
def activate(x):
    """f(x) of `KIND`."""
    if KIND == 1:
        y = x * sigmoid(x)
    elif KIND == 2:
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif KIND == 3:
        y = 0.5 * x * (1.0 + error_function(x * 0.7071067811865476))
    elif KIND == 4:
        y = maximum(x, 0.0)
        y = y * y
    elif KIND == 6:
        y = tanh(x)
    elif KIND == 7:
        y = sigmoid(x)
    else:
        y = x
    return y


@device
def gated(gate, up):
    """f(gate) · up of `KIND`."""
    if KIND == 8:
        gate = minimum(gate, LIMIT)
        value = gate * sigmoid(ALPHA * gate) * (maximum(-LIMIT, minimum(LIMIT, up)) + 1.0)
    else:
        value = activate(gate) * up
    return value


@device
def emit_codes(codes, i, scales, value):
    """A warp's 32 values in 8 bits: codes at `codes + i`, i different in each lane, and, at `scales`, the
    scale d and d times the sum of codes of the block, of its first half and of its second."""
    peak = warp_maximum(absolute(value))
    inverse = 0.0
    if peak > 0.0:
        inverse = quotient(127.0, peak)
    code = to_int(value * inverse)
    store_byte(codes + i, code)
    half = to_float(code)
    half = half + shuffle_xor(half, 1)
    half = half + shuffle_xor(half, 2)
    half = half + shuffle_xor(half, 4)
    half = half + shuffle_xor(half, 8)
    other = shuffle_xor(half, 16)
    d = peak * 0.007874015748031496
    if (thread() & 31) == 0:
        store_float4(scales, d, d * (half + other), d * half, d * other)


@device
def begin():
    """With programmatic dependent launch: let the next kernel come, and wait for what was before this one."""
    if PDL:
        let_next_start()
        wait_for_grid()
