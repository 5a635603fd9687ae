"""What several kernels do: sums over a warp, activations, activations in 8 bits."""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import (
    absolute,
    bits_and,
    div_f32,
    exp2,
    launch_dependents,
    maximum,
    minimum,
    multiply_add,
    shift_right,
    shuffle_xor,
    store_byte,
    store_float,
    thread,
    to_float,
    to_int,
    wait_for_grid,
)

SILU, GELU_TANH, GELU, RELU2, IDENTITY, TANH, SIGMOID, CLIPPED = range(1, 9)  # kinds of activations

# Constants of the launch. TOKENS: rows that there is room for in activations in 8 bits. LIMIT and ALPHA are
# those of `CLIPPED`, see `ops.MoE`.
KIND = TOKENS = PDL = 0
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
    return div_f32(1.0, 1.0 + exp2(x * -1.4426950408889634))


@device
def tanh(x):
    return 1.0 - div_f32(2.0, 1.0 + exp2(x * 2.8853900817779268))


@device
def error_function(x):
    """erf within 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    a = absolute(x)
    t = div_f32(1.0, 1.0 + a * 0.3275911)
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
def code_plane_bytes(blocks):
    """Bytes between the planes of codes: see `store_quantized`."""
    return 16 * TOKENS * blocks


@device
def scale_plane_bytes(blocks):
    """Bytes between the planes of scales."""
    return 16 * TOKENS * ((blocks + 3) // 4)


@device
def join_digits(first, second):
    """Sums over first and over second digits, together."""
    return to_float(multiply_add(first, 256, second))


@device
def store_quantized(codes, blocks, token, i, value):
    """A warp's 32 values, number i of each lane one of the same 32 of row `token`, in two digits of 8 bits:
    16-bit codes d · (256 · first + second) with one scale d for 32 of them.

    `codes` has the rows of a step, `TOKENS` of them, beside each other in pieces of 16 bytes, so that lanes
    that take a block each read without gaps, and fragments for tensor cores are pieces:

        planes t = 0 … 3    [blocks][TOKENS]: first digits 4t …, first digits 16 + 4t …, second digits 4t …,
                            second digits 16 + 4t … of a block
        planes 4 … 7        [blocks / 4][TOKENS]: of four blocks d, d · (sum of codes), the same of the first
                            halves, of the second halves
    """
    peak = warp_maximum(absolute(value))
    inverse = 0.0
    if peak > 0.0:
        inverse = div_f32(32512.0, peak)
    code = to_int(value * inverse)
    block = shift_right(i, 5)
    to = codes + bits_and(shift_right(i, 2), 3) * code_plane_bytes(blocks) + 16 * (block * TOKENS + token)
    to = to + 4 * bits_and(shift_right(i, 4), 1) + bits_and(i, 3)
    store_byte(to, (code + 128) >> 8)
    store_byte(to + 8, code)
    half = to_float(code) + value * 0.0  # what is no number stays so
    half = half + shuffle_xor(half, 1)
    half = half + shuffle_xor(half, 2)
    half = half + shuffle_xor(half, 4)
    half = half + shuffle_xor(half, 8)
    other = shuffle_xor(half, 16)
    d = peak * 3.0757874015748033e-05 + (half + other) * 0.0  # 1 / 32512
    if (thread() & 31) == 0:
        plane = scale_plane_bytes(blocks)
        to = codes + 4 * code_plane_bytes(blocks) + 16 * (shift_right(block, 2) * TOKENS + token)
        to = to + 4 * bits_and(block, 3)
        store_float(to, d)
        store_float(to + plane, d * (half + other))
        store_float(to + 2 * plane, d * half)
        store_float(to + 3 * plane, d * other)


@device
def begin():
    """With programmatic dependent launch: let the next kernel come, and wait for what was before this one."""
    if PDL:
        launch_dependents()
        wait_for_grid()
